"""The jobs of a user from Slurm's accounting database, by the restricted view.

The store has the jobs that were scraped or measured; the view has all that Slurm remembers. What it
answers is kept for a minute, and an answer is not waited for by more than one request at a time. A
database that does not answer costs the jobs that only it knows, and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jobsight.config.settings import SlurmDatabaseSettings
from jobsight.errors import JobsightError
from jobsight.store.slurm_database import (
    Address,
    DatabaseJob,
    Restricted,
    jobs_of_user,
    read_password,
)
from jobsight.util.log_once import LogOnce

logger = logging.getLogger(__name__)

#: Jobs of one answer, users whose answers are kept, and seconds for which they are.
MAX_JOBS: Final = 10_000
_MAX_USERS: Final = 1_000
_KEPT: Final = 60.0
#: Seconds without a query after one that failed.
_PAUSE: Final = 30.0


class UserJobs:
    """Reads the view, and keeps its answers for a minute."""

    def __init__(
        self, settings: SlurmDatabaseSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = Address.parse(settings.address or "")
        self._restricted = Restricted(
            database=settings.database,
            cluster=settings.cluster,
            view=settings.view,
            user=settings.user,
            host="localhost",
        )
        self._settings = settings
        self._clock = clock
        self._known: OrderedDict[int, tuple[float, list[int]]] = OrderedDict()
        self._failed_until = float("-inf")
        self._mutex = threading.Lock()
        self._errors = LogOnce(logger)

    def of(self, uid: int) -> list[int]:
        """The ids of the newest jobs of a user, the newest first."""
        with self._mutex:
            now = self._clock()
            known = self._known.get(uid)
            if known is not None and now - known[0] < _KEPT:
                return known[1]
            if now < self._failed_until:
                return known[1] if known is not None else []
            try:
                jobs = [job.job_id for job in self._read(uid)]
            except JobsightError as error:
                self._failed_until = now + _PAUSE
                self._errors.report("view", f"jobs of users are those of the store alone: {error}")
                return known[1] if known is not None else []
            self._errors.resolve("view", "Slurm's database answers again")
            self._known[uid] = (now, jobs)
            self._known.move_to_end(uid)
            while len(self._known) > _MAX_USERS:
                self._known.popitem(last=False)
            return jobs

    def _read(self, uid: int) -> list[DatabaseJob]:
        settings = self._settings
        password = read_password(Path(settings.password_file or "").expanduser())
        authority = None if settings.tls_ca is None else Path(settings.tls_ca).expanduser()
        return jobs_of_user(
            self._address, self._restricted, password, uid, limit=MAX_JOBS, tls_ca=authority
        )
