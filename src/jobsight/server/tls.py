"""The server's own TLS: its certificate, renewed while it runs, and those it asks agents for."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from jobsight.config.settings import ServerSettings
from jobsight.errors import ConfigError

logger = logging.getLogger("jobsight.server")


class ServerTls:
    """The context of the server's connections. A renewed certificate is taken up as it is found."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self.certificate = certificate
        self.key = key
        self._client_ca = client_ca
        self._seen = self._state()
        self.context = self._load()

    @classmethod
    def of(cls, settings: ServerSettings) -> ServerTls | None:
        """As the settings say; None where the server speaks plain HTTP."""
        named = {
            name: Path(value).expanduser()
            for name in ("tls_certificate", "tls_key", "tls_client_ca")
            if (value := getattr(settings, name)) is not None
        }
        if not named:
            return None
        for name in ("tls_certificate", "tls_key"):
            if name not in named:
                raise ConfigError(f"server.{name}: is needed beside server.{min(named)}")
        for name, file in named.items():
            try:
                file.open("rb").close()
            except OSError as error:
                raise ConfigError(
                    f"server.{name}: {file} cannot be read: {error.strerror}"
                ) from None
        return cls(named["tls_certificate"], named["tls_key"], named.get("tls_client_ca"))

    def renew(self) -> None:
        """Take up a certificate and key that have changed; wrong ones change nothing."""
        try:
            state = self._state()
            if state == self._seen:
                return
            # Tried elsewhere first: a pair that does not fit would spoil the context in use.
            self._load()
            self.context.load_cert_chain(self.certificate, self.key, _no_passphrase)
        except (OSError, ConfigError) as error:
            logger.warning("the renewed certificate is not taken up yet: %s", error)
            return
        self._seen = state
        logger.info("the certificate %s was renewed", self.certificate)

    def _state(self) -> list[tuple[int, int]]:
        found = [os.stat(file) for file in (self.certificate, self.key)]
        return [(status.st_mtime_ns, status.st_ino) for status in found]

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, _no_passphrase)
        except OSError as error:
            raise ConfigError(
                f"server.tls_certificate {self.certificate} and server.tls_key {self.key} cannot "
                f"be used together: {_said(error)}; right are PEM files of one another"
            ) from None
        if self._client_ca is not None:
            # Asked of everybody and needed for batches alone: browsers have none.
            context.verify_mode = ssl.CERT_OPTIONAL
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                raise ConfigError(
                    f"server.tls_client_ca: {self._client_ca} holds no certificate (PEM): "
                    f"{_said(error)}"
                ) from None
        return context


def _no_passphrase() -> bytes:
    raise ConfigError("server.tls_key: is protected by a passphrase; a server has nobody to ask")


def _said(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
