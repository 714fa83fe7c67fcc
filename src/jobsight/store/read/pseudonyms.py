"""Pseudonyms: what a viewer sees in place of names and texts of users.

While :func:`shown_as_pseudonyms` is active, what is read from the store has pseudonyms for users,
accounts, names and commands of jobs, and paths outside of the system's directories. This is done
where records leave the store, so that every page, reply and file has them. A pseudonym is stable: a
keyed digest of the text, from which the text cannot be found without the key. A filter by such a
text finds nothing, since it would tell whose pseudonym it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar, cast

import msgspec

from jobsight.model import JobInfo

#: Below these, paths are those of the site's software and not of users.
_SYSTEM: Final = re.compile(
    rb"/(?:usr|bin|sbin|lib|lib64|opt|etc|cvmfs|nix|sw|apps|software|modules)(?:/|$)"
)
_PATH: Final = re.compile(r"/[^\s'\"<>|;,]+")
#: Fields of records with names, by the kind of the pseudonym; of texts, which are left out.
_NAMES: Final = {"user": "user", "account": "account", "users": "user", "accounts": "account"}
_TEXTS: Final = frozenset(
    {
        *("comment", "submit_line", "working_directory", "standard_output", "standard_error"),
        *("standard_input", "wckey", "group", "cancelled_by", "dependency", "container"),
    }
)

_key: ContextVar[bytes | None] = ContextVar("pseudonyms", default=None)
_Record = TypeVar("_Record", bound=msgspec.Struct)


@contextmanager
def shown_as_pseudonyms(key: bytes) -> Iterator[None]:
    """Show pseudonyms in this context: this request and the threads that it uses."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


def is_active() -> bool:
    return _key.get() is not None


def pseudonym(kind: str, text: str | None) -> str | None:
    """The text, or its pseudonym while pseudonyms are shown."""
    key = _key.get()
    if key is None or not text:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key, digest_size=4)
    return f"{kind}-{digest.hexdigest()}"


def info(shown: JobInfo) -> JobInfo:
    """A record of a job."""
    if _key.get() is None:
        return shown
    return msgspec.structs.replace(
        shown,
        user=pseudonym("user", shown.user),
        uid=None,
        account=pseudonym("account", shown.account),
        name=pseudonym("job", shown.name),
        command=pseudonym("command", shown.command),
    )


def path(shown: bytes) -> bytes:
    """The path of a program."""
    if _key.get() is None or _SYSTEM.match(shown):
        return shown
    text = shown.decode("utf-8", "surrogateescape")
    return (pseudonym("program", text) or "").encode()


def text(shown: str) -> str:
    """A text of our own in which paths may stand."""
    if _key.get() is None:
        return shown
    return _PATH.sub(
        lambda match: (
            match[0]
            if _SYSTEM.match(match[0].encode("utf-8", "surrogatepass"))
            else pseudonym("program", match[0]) or ""
        ),
        shown,
    )


def document(shown: Any) -> Any:
    """A document of plain values."""
    if isinstance(shown, str):
        return text(shown)
    if isinstance(shown, list):
        return [document(each) for each in shown]
    if isinstance(shown, dict):
        return {key: document(value) for key, value in shown.items()}
    return shown


def record(shown: _Record) -> _Record:
    """A record of the scheduler: a job, an association, a reservation."""
    if _key.get() is None:
        return shown
    if isinstance(shown, JobInfo):
        return cast(_Record, info(shown))
    changes: dict[str, Any] = {}
    for name in shown.__struct_fields__:
        value = getattr(shown, name)
        if isinstance(value, msgspec.Struct):
            changes[name] = record(value)
        elif name in _NAMES and isinstance(value, str):
            changes[name] = pseudonym(_NAMES[name], value)
        elif name in _NAMES and isinstance(value, tuple):
            changes[name] = tuple(pseudonym(_NAMES[name], each) for each in value)
        elif name in _TEXTS and value:
            changes[name] = None
    return msgspec.structs.replace(shown, **changes) if changes else shown
