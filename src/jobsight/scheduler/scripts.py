"""Stores the batch scripts of new jobs, a bounded number in each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from jobsight.scheduler.records import JobRecord, SourceError
from jobsight.store.database import Database
from jobsight.store.history import jobs_without_script, store_script
from jobsight.util.log_once import LogOnce
from jobsight.util.script_key import script_key

#: Commands in one scrape: each takes some milliseconds of the controller.
_MAX_SCRIPTS: Final = 100


class ScriptKeeper:
    """Reads and stores the scripts of the jobs that the controller lists."""

    def __init__(self, database: Database, cluster: str, log: LogOnce) -> None:
        self._database = database
        self._cluster = cluster
        self._log = log
        #: Jobs of the controller whose script is stored, or that have none.
        self._done: set[int] = set()

    def read_new(self, read: Callable[[int], str | None], records: Iterable[JobRecord]) -> int:
        """Store the scripts of jobs that are new; returns how many were read.

        The tasks of an array have one script, which is read once.
        """
        tasks: dict[int, list[int]] = {}
        listed: set[int] = set()
        for record in records:
            info = record.info
            listed.add(info.job_id)
            if info.job_id not in self._done:
                array = info.array_job_id or info.het_job_id or info.job_id
                tasks.setdefault(array, []).append(info.job_id)
        self._done &= listed
        wanted = [job_id for ids in tasks.values() for job_id in ids]
        missing = jobs_without_script(self._database, self._cluster, wanted)
        self._done.update(set(wanted) - missing)
        count = 0
        for ids in tasks.values():
            new = [job_id for job_id in ids if job_id in missing]
            if not new:
                continue
            if count == _MAX_SCRIPTS:
                break
            count += 1
            try:
                text = read(new[0])
            except SourceError as error:
                self._log.report("scripts", f"batch scripts are not stored: {error}")
                # The others would fail for the same reason.
                self._done.update(new)
                continue
            self._log.resolve("scripts")
            if text is not None:
                store_script(self._database, self._cluster, new, script_key(text), text)
            self._done.update(new)
        return count
