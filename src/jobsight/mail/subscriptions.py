"""What a recipient gets: kinds of mails, pauses, and the signed link to unsubscribe.

A link names the recipient and a kind, and has the HMAC of both. The key is in a file that the
server creates; with another key, links in older mails no longer work. The same key signs the header
by which a mail that comes back is recognised.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final, get_args
from urllib.parse import urlencode

from jobsight.config.settings import MailSettings
from jobsight.errors import ConfigError
from jobsight.mail.message import Links, pages_url
from jobsight.mail.request import MailKind
from jobsight.store.mail import REFUSED
from jobsight.util.durable import write_atomically

KINDS: Final[tuple[str, ...]] = get_args(MailKind)
#: In place of a kind.
ALL: Final = "all"
#: What each kind is called in a sentence.
KIND_NAMES: Final = {
    "jobs": "mails about jobs",
    "digest": "digests of your jobs",
    "account-digest": "digests of accounts",
    ALL: "mails of jobsight",
}
#: The path of the page, and the file with the key in the directory of the queue.
PATH: Final = "/unsubscribe"
_KEY_FILE: Final = "unsubscribe.key"
_KEY_SIZE: Final = 32


class Subscriptions:
    """Signs links to unsubscribe, and checks them."""

    def __init__(self, settings: MailSettings, key: bytes) -> None:
        self._url = pages_url(settings)
        self._key = key

    @classmethod
    def of(cls, settings: MailSettings) -> Subscriptions:
        """With the key of the settings, which is created if there is none."""
        return cls(settings, read_key(settings))

    def links(self, recipient: str, kind: MailKind) -> Links | None:
        """The links for a recipient; None if the address of the pages is not known."""
        if self._url is None:
            return None
        return Links(self._link(recipient, kind), self._link(recipient, ALL))

    def _link(self, recipient: str, kind: str) -> str:
        query = {"a": recipient, "k": kind, "s": self.sign(recipient, kind)}
        return f"{self._url}{PATH}?{urlencode(query)}"

    def sign(self, recipient: str, kind: str) -> str:
        return self._sign(f"unsubscribe\n{kind}\n{recipient}")

    def is_signed(self, recipient: str, kind: str, signature: str) -> bool:
        if kind not in (*KINDS, ALL) or len(recipient) > 320:
            return False
        return _is_same(self.sign(recipient, kind), signature)

    def sign_bounce(self, recipient: str) -> str:
        """What a mail that comes back must have in its headers."""
        return self._sign(f"bounce\n{recipient.lower()}")

    def is_signed_bounce(self, recipient: str, signature: str) -> bool:
        return _is_same(self.sign_bounce(recipient), signature)

    def _sign(self, text: str) -> str:
        digest = hmac.new(self._key, text.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _is_same(expected: str, signature: str) -> bool:
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))


def read_key(settings: MailSettings) -> bytes:
    """The key that signs links; it is created if the file does not exist."""
    file = Path(settings.key_file or Path(settings.queue) / _KEY_FILE).expanduser()
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o770)
            write_atomically(file, secrets.token_hex(_KEY_SIZE).encode() + b"\n", mode=0o600)
        with file.open("rb") as opened:
            key = opened.read(4096).strip()
    except OSError as error:
        raise ConfigError(f"mail.key_file {file}: {os.strerror(error.errno or 0)}") from None
    if len(key) < _KEY_SIZE:
        raise ConfigError(
            f"mail.key_file {file}: expected at least {_KEY_SIZE} characters; remove the file to "
            "have another one created"
        )
    return key


def is_paused(causes: frozenset[str], kind: MailKind) -> bool:
    """Whether a recipient with these paused causes gets no mails of a kind."""
    return kind in causes or ALL in causes or REFUSED in causes
