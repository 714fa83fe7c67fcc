"""Whose data a request reads, for the log of views.

While :func:`noting_owners` is active, each record of a user that leaves the store is noted by its
owner; a query that reads more than is shown is within :func:`not_shown`. What is noted has limits,
so that a list of any length costs a request the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

#: Owners that are noted in one request; the others are only known to exist.
MAX_OWNERS: Final = 1000
#: Subjects of one owner that are noted in one request.
MAX_SUBJECTS: Final = 8


class ViewedOwners:
    """The owners of what one request has read."""

    def __init__(self) -> None:
        self._subjects: dict[str, set[str]] = {}
        self._names: dict[str, str] = {}
        #: There are more owners than are noted.
        self.are_more = False

    def note(self, owner: str, subject: str) -> None:
        """Note an owner; ``subject`` is empty of an entry of a list."""
        known = self._subjects.get(owner)
        if known is None:
            if len(self._subjects) >= MAX_OWNERS:
                self.are_more = True
                return
            known = self._subjects[owner] = set()
        # One more than are told apart says that there are more.
        if subject and len(known) <= MAX_SUBJECTS:
            known.add(subject)

    def note_pseudonym(self, pseudonym: str, name: str) -> None:
        """Remember whose pseudonym it is: the log is for the users themselves."""
        self._names[pseudonym] = name

    def subjects(self) -> dict[str, set[str]]:
        """What was read of each owner, by their names: nothing of entries of lists, and of many
        subjects."""
        found: dict[str, set[str]] = {}
        for owner, subjects in self._subjects.items():
            found.setdefault(self._names.get(owner, owner), set()).update(subjects)
        return {
            name: subjects if len(subjects) <= MAX_SUBJECTS else set()
            for name, subjects in found.items()
        }


_owners: ContextVar[ViewedOwners | None] = ContextVar("viewed_owners", default=None)


@contextmanager
def noting_owners() -> Iterator[ViewedOwners]:
    """Note owners in this context: this request and the threads that it uses."""
    owners = ViewedOwners()
    token = _owners.set(owners)
    try:
        yield owners
    finally:
        _owners.reset(token)


@contextmanager
def not_shown() -> Iterator[None]:
    """Note nothing in this context: what is read is compared or counted and not shown."""
    token = _owners.set(None)
    try:
        yield
    finally:
        _owners.reset(token)


def note(owner: str | None, subject: str = "") -> None:
    """Note that a record of a user is shown; ``subject`` names it outside of lists."""
    owners = _owners.get()
    if owners is not None and owner:
        owners.note(owner, subject)


def note_pseudonym(pseudonym: str, name: str) -> None:
    """Note whose pseudonym it is."""
    owners = _owners.get()
    if owners is not None:
        owners.note_pseudonym(pseudonym, name)
