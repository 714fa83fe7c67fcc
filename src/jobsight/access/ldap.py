"""Sign-in with the password of a directory: the only module that uses ldap3.

Either the DN of a user follows from a template, or it is searched with a service account or
anonymously. The password is verified by a bind as that DN. Names are escaped, an empty password is
refused (it would be an anonymous bind, which succeeds), and referrals are not followed.
"""

from __future__ import annotations

import math
import ssl
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from jobsight.config.settings import LdapSettings
from jobsight.errors import ConfigError, JobsightError
from jobsight.transport.client import tls_context

#: Groups of one user that are read.
_MAX_GROUPS: Final = 1000


class LdapError(JobsightError):
    """The directory cannot be queried."""


class LdapUser(NamedTuple):
    """A user whose password the directory has accepted."""

    dn: str
    groups: tuple[str, ...]


class Directory:
    """The directory of the settings."""

    def __init__(self, settings: LdapSettings) -> None:
        with warnings.catch_warnings():
            # ldap3 uses names of pyasn1 that are deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            import ldap3  # noqa: F401
        self._settings = settings
        self._password = ""
        if settings.bind_password_file is not None:
            file = Path(settings.bind_password_file).expanduser()
            try:
                self._password = file.read_text().strip()
            except OSError as error:
                raise ConfigError(
                    f"access.ldap.bind_password_file: {file} cannot be read: {error.strerror}"
                ) from None
            if not self._password:
                raise ConfigError(f"access.ldap.bind_password_file: {file} is empty")
        if settings.ca is not None and not Path(settings.ca).is_file():
            raise ConfigError(f"access.ldap.ca: there is no file {settings.ca}")

    def authenticate(self, name: str, password: str) -> LdapUser | None:
        """The user with this name and password; None if the directory refuses them."""
        from ldap3.core.exceptions import LDAPException

        if not name or not password or "\0" in name:
            return None
        try:
            dn = self._find(name)
            if dn is None:
                return None
            with self._connection(dn, password) as connection:
                if connection is None:
                    return None
                groups = self._groups(connection, name, dn) if not self._settings.bind_dn else ()
            if self._settings.bind_dn:
                with self._service() as connection:
                    groups = self._groups(connection, name, dn)
            return LdapUser(dn, groups)
        except (LDAPException, OSError, ssl.SSLError) as error:
            raise LdapError(
                f"the directory {self._settings.url} failed: {_reason(error)}"
            ) from None

    def _find(self, name: str) -> str | None:
        from ldap3 import SUBTREE
        from ldap3.utils.conv import escape_filter_chars
        from ldap3.utils.dn import escape_rdn

        settings = self._settings
        if settings.bind_template is not None:
            return settings.bind_template.replace("{user}", escape_rdn(name))
        with self._service() as connection:
            connection.search(
                settings.search_base,
                settings.search_filter.replace("{user}", escape_filter_chars(name)),
                search_scope=SUBTREE,
                attributes=[],
                size_limit=2,
                time_limit=max(1, int(settings.timeout)),
            )
            entries = _entries(connection)
        # Two entries with one name: nobody can say which of them signs in.
        return entries[0]["dn"] if len(entries) == 1 else None

    def _groups(self, connection: Any, name: str, dn: str) -> tuple[str, ...]:
        from ldap3 import SUBTREE
        from ldap3.utils.conv import escape_filter_chars

        settings = self._settings
        if settings.group_base is None:
            return ()
        wanted = settings.group_filter.replace("{user}", escape_filter_chars(name))
        connection.search(
            settings.group_base,
            wanted.replace("{dn}", escape_filter_chars(dn)),
            search_scope=SUBTREE,
            attributes=[settings.group_attribute],
            size_limit=_MAX_GROUPS,
            time_limit=max(1, int(settings.timeout)),
        )
        return tuple(
            str(value)
            for entry in _entries(connection)
            for value in entry["attributes"].get(settings.group_attribute, ())
        )

    @contextmanager
    def _service(self) -> Iterator[Any]:
        with self._connection(self._settings.bind_dn, self._password) as connection:
            if connection is None:
                raise LdapError(
                    f"the directory {self._settings.url} refuses access.ldap.bind_dn with its "
                    "password"
                )
            yield connection

    @contextmanager
    def _connection(self, dn: str | None, password: str) -> Iterator[Any]:
        """A bound connection; None if the directory refuses the DN or the password."""
        from ldap3 import ANONYMOUS, NONE, SIMPLE, Connection, Server, Tls
        from ldap3.core.exceptions import LDAPException

        settings = self._settings

        class VerifiedTls(Tls):  # type: ignore[misc]
            """TLS in which OpenSSL verifies the host name; ldap3 does it by itself, as in 2015."""

            def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
                connection.socket = tls_context(settings.ca).wrap_socket(
                    connection.socket, server_hostname=connection.server.host
                )

        tls = VerifiedTls(validate=ssl.CERT_REQUIRED)
        url = settings.url or ""
        server = Server(
            url, use_ssl=url.startswith("ldaps://"), tls=tls, get_info=NONE,
            connect_timeout=settings.timeout,
        )  # fmt: skip
        connection = Connection(
            server,
            user=dn,
            password=password or None,
            authentication=SIMPLE if dn is not None else ANONYMOUS,
            auto_referrals=False,
            raise_exceptions=False,
            # ldap3 accepts whole seconds only.
            receive_timeout=max(1, math.ceil(settings.timeout)),
            read_only=True,
        )
        try:
            connection.open()
            if settings.starttls and not url.startswith("ldaps://") and not connection.start_tls():
                raise LdapError(f"the directory {url} does not begin TLS")
            yield connection if connection.bind() else None
        finally:
            # ldap3 leaves the socket open if it could not connect.
            opened = connection.socket
            with suppress(LDAPException, OSError):
                connection.unbind()
            if opened is not None:
                opened.close()


def _entries(connection: Any) -> list[dict[str, Any]]:
    return [entry for entry in connection.response or () if entry["type"] == "searchResEntry"]


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
