"""TLS client: trusted authorities, and the node's certificate where the server requires one."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jobsight.errors import ConfigError

_END: Final = "-----END CERTIFICATE-----"


def certificate_end(file: Path) -> float | None:
    """When the first certificate of a PEM file ends, in seconds since 1970; None if it cannot be
    read."""
    # The only parser of certificates in the standard library. It has no public name, but every
    # release since 2.6 has it; a node has no other package for this.
    decode = getattr(ssl._ssl, "_test_decode_cert", None)  # type: ignore[attr-defined]
    try:
        end = decode(str(file))["notAfter"] if decode is not None else None
    except (OSError, ValueError, KeyError):
        return None
    return None if end is None else float(ssl.cert_time_to_seconds(end))


class ClientTls:
    """Wraps connections. Changed files are reloaded, so that a renewal needs no restart."""

    def __init__(
        self,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        *,
        pinned: bool = False,
        settings: tuple[str, str] = ("agent.tls_certificate", "agent.tls_key"),
    ) -> None:
        """With ``pinned`` the first file is the server's own certificate, to be met exactly."""
        self._ca = ca
        self._certificate = certificate
        self._key = key
        self._pinned = pinned
        #: The names of certificate and key in error messages.
        self._settings = settings
        self._seen = self._state()
        self.context = self._load()

    def wrapping(self, host: str) -> Callable[[socket.socket], socket.socket]:
        """How to wrap a connection to a host; errors of TLS come out as OSError."""
        self._renew()
        context = self.context

        def wrap(connection: socket.socket) -> socket.socket:
            return context.wrap_socket(connection, server_hostname=host, session=context.kept)

        return wrap

    def _renew(self) -> None:
        try:
            state = self._state()
            if state != self._seen:
                self.context, self._seen = self._load(), state
        except ConfigError:
            # In the middle of a renewal; what was read before does for now.
            pass

    def _state(self) -> list[tuple[int, int]]:
        names = [name for name in (self._ca, self._certificate, self._key) if name is not None]
        try:
            found = [os.stat(name) for name in names]
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from None
        return [(status.st_mtime_ns, status.st_ino) for status in found]

    def _load(self) -> _Context:
        context = _Context(ssl.PROTOCOL_TLS_CLIENT)
        try:
            self._load_trust(context)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._ca} holds no certificate (PEM): {_reason(error)}") from None
        if self._certificate is None:
            if self._key is not None:
                raise ConfigError("{1} requires {0}".format(*self._settings))
            return context
        try:
            context.load_cert_chain(self._certificate, self._key, self._no_passphrase)
        except OSError as error:
            raise ConfigError(
                f"{self._settings[0]} {self._certificate} and {self._settings[1]} "
                f"{self._key or 'in the same file'} cannot be used together: {_reason(error)}"
            ) from None
        return context

    def _no_passphrase(self) -> bytes:
        raise ConfigError(
            f"{self._settings[1]}: is protected by a passphrase; expected a key without one"
        )

    def _load_trust(self, context: ssl.SSLContext) -> None:
        if self._ca is None:
            context.load_default_certs()
        elif self._pinned:
            # The first in the file is the server's own. What follows has signed others, too.
            with open(self._ca) as file:
                text = file.read()
            context.load_verify_locations(cadata=text[: text.index(_END) + len(_END)])
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        else:
            context.load_verify_locations(self._ca)


class _Context(ssl.SSLContext):
    """Keeps what the server gave to resume with: it saves both sides the costly part."""

    kept: ssl.SSLSession | None = None


class _Socket(ssl.SSLSocket):
    def close(self) -> None:
        # The ticket comes with the reply, so it is there at the end only.
        if self.session is not None and isinstance(self.context, _Context):
            self.context.kept = self.session
        super().close()


_Context.sslsocket_class = _Socket


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
