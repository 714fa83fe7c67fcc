"""Which runs the store knows already, and until when: what Slurm booked is not overwritten."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sqlalchemy import select

from jobsight.model import SECOND
from jobsight.store import Store
from jobsight.store.tables import runs

#: Values in one question; databases have a highest number of them.
_AT_ONCE: Final = 500


class KnownEnd(NamedTuple):
    """The end of a stored run and who said so."""

    end: int | None
    source: str


#: By job id and start in whole seconds, which is what Slurm books.
Known = dict[tuple[int, int], KnownEnd]


def known_ends(store: Store, cluster: str, job_ids: Iterable[int]) -> Known:
    """The stored runs of these jobs, in few questions however many jobs there are."""
    found: Known = {}
    columns = (runs.c.job_id, runs.c.start, runs.c.end, runs.c.source)
    with store.database.read() as connection:
        wanted = sorted(set(job_ids))
        for place in range(0, len(wanted), _AT_ONCE):
            some = wanted[place : place + _AT_ONCE]
            question = select(*columns).where(runs.c.cluster == cluster, runs.c.job_id.in_(some))
            for job_id, start, end, source in connection.execute(question):
                found[job_id, start // SECOND] = KnownEnd(end, source)
    return found
