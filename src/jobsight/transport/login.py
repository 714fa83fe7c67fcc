"""The server that a user has logged in to on this machine, and requests to its API.

``jobsight login`` writes the address and the user's token to a file with mode 0600. Commands on a
login node, where the store's file cannot be read, then ask the server.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from jobsight.config import paths
from jobsight.errors import ConfigError, JobsightError, StoreError
from jobsight.transport.http import Peer, request
from jobsight.util.decoding import decode_json_as
from jobsight.util.durable import write_atomically
from jobsight.util.outer import decode_outer

#: Seconds for one request, and bytes of the largest reply.
_TIMEOUT: Final = 10.0
_MAX_REPLY: Final = 256 * 2**20

_Reply = TypeVar("_Reply")


class Login(msgspec.Struct, kw_only=True):
    """A server, and the token of a user."""

    url: str
    token: str
    #: Certificate authorities (PEM file); None for those of the system.
    ca: str | None = None

    def get(self, path: str, kind: type[_Reply]) -> _Reply:
        """One reply of the API."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        wrap = None
        if parts.scheme == "https":
            from jobsight.transport.tls import ClientTls

            wrap = ClientTls(self.ca).wrapping(host)
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            peer = Peer(host, parts.port or (80 if wrap is None else 443), wrap)
            target = parts.path.rstrip("/") + path
            reply = request(peer, "GET", target, headers, b"", timeout=_TIMEOUT, largest=_MAX_REPLY)
            if reply.status == 200:
                return decode_outer(reply.body, kind)
        except (OSError, msgspec.MsgspecError) as error:
            raise JobsightError(f"the server at {self.url} cannot be queried: {error}") from None
        try:
            sentence = str(decode_json_as(dict[str, Any], reply.body)["detail"])
        except (msgspec.MsgspecError, KeyError):
            sentence = f"the server at {self.url} answered {reply.status}"
        if reply.status == 401:
            sentence += f"; log in again with `jobsight login {self.url}`"
        raise StoreError(sentence)


def login_file() -> Path:
    return paths.config_directories()[-1] / "login.json"


def check_url(url: str) -> str:
    """The address of a server; a token is sent in clear text to this machine only."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.username or parts.query:
        raise ConfigError(f"URL {url[:200]!r}: expected https://HOST or https://HOST:PORT")
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ConfigError(f"URL {url[:200]!r}: expected https://; the token would be sent in clear")
    return url.rstrip("/")


def write_login(login: Login) -> Path:
    """Store the login of this user."""
    file = login_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.encode(login) + b"\n", mode=0o600)
    return file


def read_login() -> Login | None:
    """The login of this user; None if there is none."""
    file = login_file()
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(opened.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ConfigError(
                f"{file} can be used by others; revoke the token on the settings page, and log in "
                "again with `jobsight login URL`"
            )
        try:
            return decode_json_as(Login, opened.read())
        except msgspec.DecodeError:
            raise ConfigError(f"{file} is damaged; log in again with `jobsight login`") from None
