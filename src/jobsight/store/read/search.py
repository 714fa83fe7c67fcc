"""The text search in runs: what a text means, and its conditions in SQL.

A text is found in the name, user, account, partition and command, and at the beginning of the job
id. A text of two characters is found at the beginning of a column, a single one as the whole
column: an index of trigrams has nothing shorter. ``62_3`` and ``88+1`` are an array task and a
component of a heterogeneous job.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from jobsight.store.schema.search_index import TABLE, searched_text
from jobsight.store.transaction import Transaction

#: An array task or a component of a heterogeneous job as Slurm shows it.
_SHOWN_ID: Final = re.compile(r"(\d{1,18})([_+])(\d{1,9})", re.ASCII)
_ID_COLUMNS: Final = {"_": ("array_job_id", "array_task_id"), "+": ("het_job_id", "het_offset")}
_ID: Final = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)
#: Digits of the largest job id that can be stored.
_MAX_DIGITS: Final = 18
#: Trigrams of a text that are looked up; the text itself is compared with what they find.
_MAX_TERMS: Final = 40
#: Trigrams of each run that the integrity check looks up.
_CHECKED_TERMS: Final = 12


class Search(NamedTuple):
    """A text to search for, as conditions on ``runs``."""

    #: What the searched text of a run must contain.
    needle: str
    #: Job ids that begin with the text: the first and the last of each interval.
    ids: tuple[tuple[int, int], ...]
    #: A displayed id: the names of its two columns, and their values.
    shown: tuple[str, int, str, int] | None

    @property
    def parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = {"needle": self.needle}
        for number, (first, last) in enumerate(self.ids):
            parameters |= {f"first_{number}": first, f"last_{number}": last}
        if self.shown is not None:
            parameters |= {"shown_job": self.shown[1], "shown_part": self.shown[3]}
        return parameters

    def terms(self, postgresql: bool) -> Any:
        """The trigrams as the parameter ``terms`` of :meth:`candidates`."""
        if postgresql:
            return _covering_trigrams(self.needle)[:_MAX_TERMS]
        # SQLite has no text to compare what it finds with: more terms, fewer runs to read.
        return _all_of(_trigrams(self.needle)[:_MAX_TERMS])

    def condition(self, postgresql: bool) -> str:
        """The condition on a row of ``runs``."""
        text = searched_text("", postgresql)
        position = f"strpos({text}, :needle)" if postgresql else f"instr({text}, :needle)"
        return f"({' OR '.join((f'{position} > 0', *self._by_id()))})"

    def candidates(self, postgresql: bool) -> str:
        """A query of the ids of all runs that can match, by index."""
        if postgresql:
            found = (
                f"SELECT run_id AS id FROM {TABLE} "
                f"WHERE {TABLE}_terms(text) @> :terms AND strpos(text, :needle) > 0"
            )
        else:
            found = f"SELECT rowid AS id FROM {TABLE} WHERE {TABLE} MATCH :terms"
        # One query for each interval: an index serves it whatever a planner estimates.
        by_id = [f"SELECT id FROM runs WHERE {condition}" for condition in self._by_id()]
        return " UNION ".join((found, *by_id))

    def _by_id(self) -> list[str]:
        conditions = [
            f"job_id BETWEEN :first_{number} AND :last_{number}" for number in range(len(self.ids))
        ]
        if self.shown is not None:
            job, _, part, _ = self.shown
            conditions.append(f"({job} = :shown_job AND {part} = :shown_part)")
        return conditions


def parse_search(text: str) -> Search | None:
    """The search for the first line of a text; None for one of spaces only."""
    # Columns are separated by line breaks.
    text = text.strip().partition("\n")[0].rstrip()
    if not text:
        return None
    needle = "".join(char.lower() if char.isascii() else char for char in _storable(text))
    # Texts of one or two characters: a whole column, or its beginning.
    needle = {1: f"\n{needle}\n", 2: f"\n{needle}"}.get(len(needle), needle)
    shown = _SHOWN_ID.fullmatch(text)
    columns = None
    if shown:
        job, part = _ID_COLUMNS[shown[2]]
        columns = (job, int(shown[1]), part, int(shown[3]))
    return Search(needle, tuple(_intervals(text)), columns)


def count_unfindable(transaction: Transaction, first: int, last: int) -> int:
    """How many of the runs with these ids the index does not find by their own text."""
    postgresql = transaction.postgresql
    values: dict[str, Any] = {"first": first, "last": last}
    text = searched_text("runs.", postgresql)
    if postgresql:
        row = transaction.execute(
            f"SELECT count(*) FROM runs LEFT JOIN {TABLE} ON run_id = id "
            f"WHERE id BETWEEN :first AND :last AND text IS DISTINCT FROM {text}",
            values,
        ).fetchone()
        return int(row[0])
    # The index has no text to compare with: some trigrams of each run are looked up.
    rows = transaction.execute(
        f"SELECT id, {text} FROM runs WHERE id BETWEEN :first AND :last", values
    ).fetchall()
    missing = 0
    for id, found in rows:
        terms = _trigrams(found)
        chosen = terms[:: -(-len(terms) // _CHECKED_TERMS)]
        query = f"SELECT 1 FROM {TABLE} WHERE {TABLE} MATCH :terms AND rowid = :id"
        row = transaction.execute(query, {"terms": _all_of(chosen), "id": id}).fetchone()
        missing += row is None
    return missing


def _trigrams(text: str) -> list[str]:
    return list(dict.fromkeys(text[place : place + 3] for place in range(len(text) - 2)))


def _covering_trigrams(text: str) -> list[str]:
    """Trigrams that together contain each character of a text.

    They are a third of all and find hardly more. Each term costs the scan of a posting list, which
    is long if almost every run has the term, such as those of ``/home/``.
    """
    last = len(text) - 3
    return list(dict.fromkeys(text[min(place, last) :][:3] for place in range(0, last + 3, 3)))


def _all_of(terms: list[str]) -> str:
    """The query of SQLite's full-text search for all of some terms."""
    return " ".join('"' + term.replace('"', '""') + '"' for term in terms)


def _intervals(text: str) -> list[tuple[int, int]]:
    """The intervals of the job ids that begin with these digits."""
    if not _ID.fullmatch(text):
        return []
    first = int(text)
    widths = [10**zeros for zeros in range(_MAX_DIGITS - len(text) + 1 if first else 1)]
    return [(first * width, first * width + width - 1) for width in widths]


def _storable(text: str) -> str:
    """The text as the store holds it, without NUL and lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
