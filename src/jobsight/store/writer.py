"""A batch into the store, whole or not at all, and once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

from jobsight.model import Batch, Series
from jobsight.store import statements
from jobsight.store.bookings import Bookings
from jobsight.store.checks import check
from jobsight.store.database import Transaction
from jobsight.store.group import Group
from jobsight.store.parts import PackedSeries, Parts
from jobsight.store.spools import take


def write(
    group: Group, batch: Batch, received: int | None = None, *, checked: bool = False
) -> bool:
    """Store a batch; False where it had been stored before."""
    return group.run(_work(batch, received, checked))


def write_all(group: Group, batches: Sequence[Batch]) -> list[bool | Exception]:
    """Store several, each whole or not at all; gives what :func:`write` gives or raises."""
    outcomes: list[bool | Exception] = [False] * len(batches)
    works: dict[int, Callable[[Transaction], bool]] = {}
    for place, batch in enumerate(batches):
        try:
            works[place] = _work(batch)
        except Exception as error:
            outcomes[place] = error
    for place, outcome in zip(works, group.run_all(list(works.values())), strict=True):
        outcomes[place] = outcome
    return outcomes


def _work(
    batch: Batch, received: int | None = None, checked: bool = False
) -> Callable[[Transaction], bool]:
    """What is to be done in a transaction; the costly work is done before."""
    if not checked:
        check(batch)
    now = time.time_ns() if received is None else received
    packed = _pack([part.series for part in batch.parts])
    return lambda transaction: _store(transaction, batch, packed, now)


def _store(
    transaction: Transaction, batch: Batch, packed: list[PackedSeries | None], received: int
) -> bool:
    if not take(transaction, batch, received):
        return False
    # Locks in one order everywhere: agent, jobs, paths. So writers cannot wait in a circle.
    jobs = {record.job_id for record in batch.jobs}
    jobs |= {part.sighting.job_id for part in batch.parts}
    transaction.lock("job", (f"{batch.cluster} {job_id}" for job_id in jobs))
    bookings = Bookings(transaction, received)
    bookings.record_all(batch.jobs)
    paths = _paths(transaction, batch)
    Parts(transaction, bookings, batch, received).store(packed, paths)
    return True


def _pack(curves: list[Series | None]) -> list[PackedSeries | None]:
    if not any(curves):
        return [None] * len(curves)
    # Imported with the first curve: records that have none should not wait for numpy.
    from jobsight.store.chunks import encode_series
    from jobsight.store.compaction import ARRIVED

    def packed(series: Series) -> PackedSeries:
        first, last = int(min(series.times)), int(max(series.times))
        return PackedSeries(first, last, len(series), ARRIVED, encode_series(series))

    return [packed(series) if series else None for series in curves]


def _paths(transaction: Transaction, batch: Batch) -> dict[bytes, int]:
    """The id of every path in the batch; new ones are added in sorted order."""
    named = {use.path for part in batch.parts for use in part.executables}
    paths = {hashlib.blake2b(path, digest_size=16).digest(): path for path in named}
    found = _path_ids(transaction, sorted(paths))
    if len(found) < len(paths):
        # In one order for all writers, so that none waits for one that waits for it.
        missing = sorted(paths.keys() - found.keys())
        rows = [(digest, paths[digest]) for digest in missing]
        transaction.execute_rows(statements.INSERT_PATH, rows)
        found |= _path_ids(transaction, missing)
    return {path: found[digest] for digest, path in paths.items()}


def _path_ids(transaction: Transaction, digests: list[bytes]) -> dict[bytes, int]:
    rows = transaction.look_up(statements.FIND_PATHS, [(digest,) for digest in digests])
    return {bytes(digest): id for digest, id in rows}
