"""One HTTP server of the settings: where it is, and what it wants to see of us."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from jobsight import __version__
from jobsight.agent.plain_http import LARGEST_REPLY, Reply, request
from jobsight.errors import ConfigError

if TYPE_CHECKING:
    from jobsight.agent.client_tls import ClientTls
    from jobsight.config.settings import WebSettings


class Web:
    """Sends requests below an address, each on a connection of its own and in bounded time."""

    def __init__(self, where: str, settings: WebSettings) -> None:
        url = settings.url or ""
        try:
            parts = urlsplit(url)
            right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            right = False
        if not right:
            raise ConfigError(f"{where}.url: {url!r} is no address; right: http://HOST:PORT/PATH")
        self.host = parts.hostname or ""
        self.path = parts.path.rstrip("/")
        #: Without user and password, for messages and files.
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self.path}"
        self._query = f"?{parts.query}" if parts.query else ""
        self.timeout = settings.timeout
        self._tls: ClientTls | None = None
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        if parts.scheme == "https":
            # Imported only where it is needed: TLS is a fifth of the agent's memory.
            from jobsight.agent.client_tls import ClientTls

            self._tls = ClientTls(settings.ca)
        self._user, self._password = parts.username, unquote(parts.password or "")
        if settings.user is not None:
            self._user = settings.user
        self._password_file, self._token_file = settings.password_file, settings.token_file
        self._headers = dict(settings.headers)
        self._authorization(where)

    def _authorization(self, where: str = "") -> dict[str, str]:
        """Read anew for each request: what is renewed in its file needs no restart."""
        try:
            if self._token_file is not None:
                token = Path(self._token_file).expanduser().read_text().strip()
                return {"Authorization": f"Bearer {token}"}
            if self._user is None:
                return {}
            password = self._password
            if self._password_file is not None:
                password = Path(self._password_file).expanduser().read_text().strip()
        except OSError as error:
            if where:
                raise ConfigError(
                    f"{where}: {error.filename} cannot be read: {error.strerror}"
                ) from None
            raise
        pair = base64.b64encode(f"{unquote(self._user)}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}

    def send(
        self,
        method: str,
        path: str = "",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        largest: int = LARGEST_REPLY,
    ) -> Reply:
        """One request; raises OSError where no answer came."""
        sent = {
            "User-Agent": f"jobsight/{__version__}",
            **(headers or {}),
            **self._headers,
            **self._authorization(),
        }
        wrap = self._tls.wrapping(self.host) if self._tls is not None else None
        target = f"{self.path}{path}{self._query}" or "/"
        return request(
            method,
            self.host,
            self._port,
            target,
            sent,
            body,
            self.timeout,
            wrap,
            largest,
        )
