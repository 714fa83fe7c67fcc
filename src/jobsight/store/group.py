"""Group commit: writers that come while another commits share the next transaction.

SQLite has one writer, and each commit waits for the disk; with one commit for all that wait, many
small batches cost one wait. Nobody is answered before the commit that holds his work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jobsight.store.database import Database, Transaction

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
