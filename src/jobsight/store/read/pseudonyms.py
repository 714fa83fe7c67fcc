"""Pseudonyms: what a viewer sees in place of names and texts of users.

While :func:`shown_as_pseudonyms` is active, what is read from the store has pseudonyms for users,
accounts, names and commands of jobs, and paths outside of the system's directories; other texts of
users are left out. This is done where records leave the store and nowhere else, so that every page,
reply, file and stream has them. A pseudonym is stable: a keyed digest of the text, from which the
text cannot be found without the key. A filter by such a text finds nothing and an order by it is
that of the start, since both would tell whose pseudonym it is.
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
from jobsight.store.read import viewed

#: Below these, paths are those of the site's software and not of users ...
_SYSTEM: Final = re.compile(
    rb"/(?:usr|bin|sbin|lib|lib64|opt|etc|cvmfs|nix|sw|apps|software|modules)(?:/|$)"
)
#: ... unless they lead through a place of users.
_OF_USERS: Final = re.compile(
    rb"/(?:\.[^/]*|homes?\d*|users?|people|projects?\d*|proj|scratch\d*|work\d*)/"
)
#: Fields of records with names, by the kind of the pseudonym; of texts, which are left out.
_NAMES: Final = {
    "user": "user",
    "users": "user",
    "reason_user": "user",
    "owner": "user",
    "account": "account",
    "accounts": "account",
    "accounts_allowed": "account",
    "accounts_denied": "account",
    "parent": "account",
    "groups_allowed": "group",
}
_TEXTS: Final = frozenset(
    {
        *("comment", "submit_line", "working_directory", "standard_output", "standard_error"),
        *("standard_input", "wckey", "group", "gid", "cancelled_by", "dependency", "container"),
        "extra",
    }
)
#: What stands for all software that users have installed for themselves: its names are parts of
#: their paths.
OF_USERS: Final = "software of users"

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
    shown = f"{kind}-{digest.hexdigest()}"
    if kind == "user":
        viewed.note_pseudonym(shown, text)
    return shown


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


def path(shown: bytes, *, own_namespace: bool = False) -> bytes:
    """The path of a program. In a mount namespace of its own, no directory is the system's."""
    if _key.get() is None or (not own_namespace and _is_systems(shown)):
        return shown
    text = shown.decode("utf-8", "surrogateescape")
    return (pseudonym("program", text) or "").encode()


def is_hidden(shown: bytes) -> bool:
    """Whether a path has a pseudonym now: who requests it by its name must not find it."""
    return _key.get() is not None and not _is_systems(shown)


def _is_systems(path: bytes) -> bool:
    return _SYSTEM.match(path) is not None and _OF_USERS.search(path) is None


def software(
    name: str | None, version: str | None, local_version: str | None, user_provided: bool | None
) -> tuple[str | None, str | None, str | None]:
    """The names of software. Those of what a user has installed are parts of a path, and the local
    version is one of any path."""
    if _key.get() is None or name is None:
        return name, version, local_version
    return (OF_USERS, "", "") if user_provided else (name, version, "")


def finding(shown: dict[str, Any]) -> dict[str, Any]:
    """The document of a finding. Its title is the rule's; its text, its line to change and its
    figures have names that users chose."""
    if _key.get() is None:
        return shown
    evidence = shown.get("evidence") or {}
    programs = [pseudonym("program", each) for each in evidence.get("programs") or ()]
    return {
        **shown,
        "text": "",
        "change": "",
        "figures": {},
        "evidence": {**evidence, "programs": programs},
    }


def record(shown: _Record) -> _Record:
    """A record of the scheduler: a job, a node, an association, a reservation."""
    if _key.get() is None:
        return shown
    if isinstance(shown, JobInfo):
        return cast(_Record, info(shown))
    changes: dict[str, Any] = {}
    for name in shown.__struct_fields__:
        value = getattr(shown, name)
        if isinstance(value, msgspec.Struct):
            changes[name] = record(value)
        elif name == "steps":
            # The name of a step is that of its program.
            changes[name] = [
                msgspec.structs.replace(step, name=pseudonym("step", step.name)) for step in value
            ]
        elif name == "raw":
            changes[name] = {}
        elif name in _NAMES and isinstance(value, str):
            changes[name] = pseudonym(_NAMES[name], value)
        elif name in _NAMES and isinstance(value, tuple):
            changes[name] = tuple(pseudonym(_NAMES[name], each) for each in value)
        elif name in _TEXTS and value:
            changes[name] = None
    return msgspec.structs.replace(shown, **changes) if changes else shown
