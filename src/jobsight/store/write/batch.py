"""A batch into the store, whole or not at all, and once.

Group commit: writers that come while another commits share the next transaction.

SQLite has one writer, and each commit waits for the disk; with one commit for all that wait, many
small batches cost one wait. Nobody is answered before the commit that holds his work.

Every batch once: which sequence numbers of a spool have come, and what the clocks say.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jobsight.model import SECOND, Batch, Series
from jobsight.store.database import Database, Transaction
from jobsight.store.schema import statements
from jobsight.store.write.parts import PackedSeries, Parts
from jobsight.store.write.runs import RunWriter
from jobsight.store.write.validation import check


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
    if not record_sequence(transaction, batch, received):
        return False
    # Locks in one order everywhere: agent, jobs, paths. So writers cannot wait in a circle.
    jobs = {record.job_id for record in batch.jobs}
    jobs |= {part.sighting.job_id for part in batch.parts}
    transaction.lock("job", (f"{batch.cluster} {job_id}" for job_id in jobs))
    bookings = RunWriter(transaction, received)
    bookings.record_all(batch.jobs)
    paths = _paths(transaction, batch)
    Parts(transaction, bookings, batch, received).store(packed, paths)
    return True


def _pack(curves: list[Series | None]) -> list[PackedSeries | None]:
    if not any(curves):
        return [None] * len(curves)
    # Imported with the first curve: records that have none should not wait for numpy.
    from jobsight.store.series.codec import encode_series
    from jobsight.store.series.curves import ARRIVED

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


#: Others wait for a transaction no longer than so many batches take.
AT_ONCE = 32

_Result = TypeVar("_Result")


class _Request:
    def __init__(self, work: Callable[[Transaction], Any]) -> None:
        self.work = work
        #: Set when the work is done, or when it is this one's turn to do that of all who wait.
        self.woken = threading.Event()
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class Group:
    """Runs pieces of work in transactions, several in one where they come together."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._waiting: list[_Request] = []
        self._busy = False

    def run(self, work: Callable[[Transaction], _Result]) -> _Result:
        """Do the work in a transaction and return once it is committed.

        It may be called again when the transaction fails by the fault of another.
        """
        (result,) = self.run_all([work])
        if isinstance(result, Exception):
            raise result
        return result

    def run_all(
        self, works: Sequence[Callable[[Transaction], _Result]]
    ) -> list[_Result | Exception]:
        """Do several pieces of work, together where they can be; gives what each gave or raised."""
        if self._database.postgresql:
            # Many writers work side by side there, each in a transaction of its own.
            return [self._run_alone(work) for work in works]
        requests = [_Request(work) for work in works]
        with self._lock:
            self._waiting += requests
            if requests and not self._busy:
                self._busy = True
                requests[0].woken.set()
        try:
            for request in requests:
                request.woken.wait()
                if not request.done:
                    self._lead()
        except BaseException:
            self._leave(requests)
            raise
        return [self._outcome(request) for request in requests]

    def _run_alone(self, work: Callable[[Transaction], _Result]) -> _Result | Exception:
        try:
            with self._database.write() as transaction:
                return work(transaction)
        except Exception as error:
            return error

    @staticmethod
    def _outcome(request: _Request) -> Any:
        if request.error is None:
            return request.result
        if not isinstance(request.error, Exception):
            raise request.error
        return request.error

    def _lead(self) -> None:
        """Do the work of those who wait by now, the first of whom is the caller."""
        with self._lock:
            group = self._waiting[:AT_ONCE]
            del self._waiting[:AT_ONCE]
        self._commit(group)
        with self._lock:
            self._hand_on()
        for request in group:
            request.woken.set()

    def _hand_on(self) -> None:
        if self._waiting:
            self._waiting[0].woken.set()
        else:
            self._busy = False

    def _leave(self, requests: Sequence[_Request]) -> None:
        """Take back requests whose thread was interrupted while it waited."""
        with self._lock:
            leads = False
            for request in requests:
                if request in self._waiting:
                    self._waiting.remove(request)
                    leads |= request.woken.is_set()
            if leads:
                self._hand_on()

    def _commit(self, group: list[_Request]) -> None:
        try:
            with self._database.write() as transaction:
                for request in group:
                    request.result = request.work(transaction)
        except BaseException as error:
            if len(group) > 1 and isinstance(error, Exception):
                # Nothing is stored: each alone, so that only the one at fault fails.
                for request in group:
                    self._commit([request])
                return
            for request in group:
                request.error = error
        for request in group:
            request.done = True


#: A skew older than this is found anew.
_SKEW_LASTS = 3600 * SECOND


def record_sequence(transaction: Transaction, batch: Batch, received: int) -> bool:
    """Note a batch as received; False where it was already."""
    transaction.lock("agent", [f"{batch.cluster} {batch.node}"])
    agent_id = _agent(transaction, batch, received)
    spool = {"agent_id": agent_id, "name": batch.spool}
    found = transaction.execute(statements.FIND_SPOOL, spool).fetchone()
    if found is None:
        transaction.execute(statements.INSERT_SPOOL, spool)
        found = transaction.execute(statements.FIND_SPOOL, spool).fetchone()
    return _note(transaction, found[0], batch.sequence)


def _note(transaction: Transaction, spool_id: int, sequence: int) -> bool:
    place = {"spool_id": spool_id, "sequence": sequence}
    before = transaction.execute(statements.STRETCH_BEFORE, place).fetchone()
    if before is not None and sequence <= before[1]:
        return False
    after = transaction.execute(statements.STRETCH_AFTER, place).fetchone()
    last = sequence if after is None else after[0]
    if after is not None:
        follower = {"spool_id": spool_id, "first": sequence + 1}
        transaction.execute(statements.DELETE_STRETCH, follower)
    continues = before is not None and before[1] == sequence - 1
    first = before[0] if continues else sequence
    statement = statements.EXTEND_STRETCH if continues else statements.INSERT_STRETCH
    transaction.execute(statement, {"spool_id": spool_id, "first": first, "last": last})
    return True


def _agent(transaction: Transaction, batch: Batch, received: int) -> int:
    ahead = batch.written - received
    values = {
        "cluster": batch.cluster,
        "node": batch.node,
        "version": batch.agent,
        "written": batch.written,
        "received": received,
        "clock_skew": ahead,
        "skew_found": received,
    }
    found = transaction.execute(statements.FIND_AGENT, values).fetchone()
    if found is None:
        transaction.execute(statements.INSERT_AGENT, values)
        return int(transaction.execute(statements.FIND_AGENT, values).fetchone()[0])
    id, skew, skew_found = found
    # Waiting in the spool makes a clock look late, never early: the highest of the last hour is
    # nearest to the truth.
    if ahead < skew and abs(received - skew_found) < _SKEW_LASTS:
        values["clock_skew"], values["skew_found"] = skew, skew_found
    transaction.execute(statements.UPDATE_AGENT, values | {"id": id})
    return int(id)
