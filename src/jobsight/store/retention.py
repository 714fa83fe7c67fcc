"""What may go by its age: the classes of what runs leave, and which runs have come so far.

Ages count from the end of a run. A run whose end is not known is never touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import text

from jobsight.config.settings import KeepSettings
from jobsight.model import SECOND
from jobsight.store.database import Database

DAY = 86400 * SECOND

#: The bits of ``runs.pruned``: its curves were thinned, removed; its executables were removed.
THINNED, SERIES, EXECUTABLES = 1, 2, 4
_ALL = range(8)

#: Runs that are read at once.
AT_ONCE = 200

#: Before any run.
_FAR = -(2**62)


class Due(NamedTuple):
    """A run from which something is to go."""

    id: int
    cluster: str
    job_id: int
    end: int

    @property
    def lock(self) -> str:
        """The name under which writers lock its job."""
        return f"{self.cluster} {self.job_id}"


class Class(NamedTuple):
    """One class of data, and the runs from which it goes: ended from ``since`` on and before
    ``until``."""

    name: str
    since: int
    until: int
    #: The values of ``runs.pruned`` that say it is still there; empty where that does not matter.
    states: tuple[int, ...]
    #: What must hold besides, as SQL.
    condition: str
    #: Set in ``runs.pruned`` once it is gone.
    bit: int = 0

    def pages(self, database: Database) -> Iterator[list[Due]]:
        """The runs, some at once, each once; every page is read in a transaction of its own."""
        for query in self.queries():
            values = {"end": self.since, "id": -1, "until": self.until}
            while True:
                with database.read() as connection:
                    found = [Due(*row) for row in connection.execute(text(query), values)]
                if found:
                    yield found
                if len(found) < AT_ONCE:
                    break
                values |= {"end": found[-1].end, "id": found[-1].id}

    def queries(self) -> list[str]:
        """What reads a page, for each state; an index leads to the first run that is due."""
        states = [f"pruned = {state}" for state in self.states] or ["true"]
        return [
            f'SELECT id, cluster, job_id, "end" FROM runs WHERE {state} '
            'AND "end" >= :end AND "end" < :until AND ("end" > :end OR id > :id) '
            f'{self.condition} ORDER BY "end", id LIMIT {AT_ONCE}'
            for state in states
        ]

    def where(self) -> str:
        """The condition on ``runs`` that holds for all of them."""
        states = f"pruned IN ({', '.join(map(str, self.states))})" if self.states else "true"
        return f'{states} AND "end" >= {self.since} AND "end" < {self.until} {self.condition}'


def classes(keep: KeepSettings, now: int) -> list[Class]:
    """What goes, in the order in which it should: nothing is thinned that is removed then."""
    runs, series = _cutoff(keep.runs, now), _cutoff(keep.thinned, now)
    # As it is now: what changed since is archived again first.
    archived = "AND archived_updated = updated" if keep.only_archived else ""
    # What is not yet in the sums by day would be missing there for ever.
    summed = f"{archived} AND NOT stale"
    found = [
        Class("runs", _FAR, runs, (), summed),
        Class("series", runs, series, _without(SERIES), archived, SERIES),
        Class(
            "executables",
            runs,
            _cutoff(keep.executables, now),
            _without(EXECUTABLES),
            summed,
            EXECUTABLES,
        ),
        Class(
            "thinned",
            max(runs, series),
            _cutoff(keep.series, now),
            _without(SERIES | THINNED),
            archived,
            THINNED,
        ),
    ]
    return [one for one in found if one.since < one.until]


def _without(bits: int) -> tuple[int, ...]:
    return tuple(state for state in _ALL if not state & bits)


def _cutoff(days: float, now: int) -> int:
    return now - round(days * DAY) if days else _FAR
