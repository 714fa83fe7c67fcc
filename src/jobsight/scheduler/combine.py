"""One record of a run from what the controller and the accounting say of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec

from jobsight.model import SECOND, JobInfo
from jobsight.scheduler.records import JobRecord
from jobsight.scheduler.states import ENDED

Key = tuple[int, int]

#: The accounting's database takes these for characters that it does not store.
_REPLACED = ("`", "?")


def key_of(info: JobInfo) -> Key:
    """A run within its cluster; schedulers book whole seconds."""
    assert info.start is not None
    return info.job_id, info.start // SECOND


class Queue:
    """The controller's jobs of one round."""

    def __init__(self, records: Iterable[JobRecord] = ()) -> None:
        #: Those that run, or have run; of two with one key the later wins.
        self.runs: dict[Key, JobRecord] = {}
        #: Those that wait, by the id that Slurm shows: "12", "12_3".
        self.waiting: dict[str, JobRecord] = {}
        for record in records:
            if record.ran:
                self.runs[key_of(record.info)] = record
            elif record.info.state == "PENDING":
                self.waiting[_shown(record)] = record

    def records(self) -> Iterable[JobRecord]:
        return itertools.chain(self.runs.values(), self.waiting.values())

    def active(self) -> set[int]:
        """The ids of those that run now."""
        return {job_id for (job_id, _), record in self.runs.items() if record.info.end is None}


def _shown(record: JobRecord) -> str:
    info = record.info
    return str(info.job_id) if not record.array_tasks else f"{info.job_id}_[{record.array_tasks}]"


def is_whole(info: JobInfo) -> bool:
    """Of a job that has just ended the accounting may first show a stub: root as its user and no
    partition. Nobody's job must become root's for that."""
    return info.partition is not None


def has_doubtful_name(info: JobInfo) -> bool:
    """Whether the accounting may have changed the name: a double quote and what is not in its
    character set are replaced there."""
    return info.name is not None and any(mark in info.name for mark in _REPLACED)


def combine(accounting: JobRecord, controller: JobRecord) -> JobRecord:
    """The accounting's record, completed by the controller's of the same run."""
    values = {
        name: getattr(controller, name)
        for name in JobRecord.__struct_fields__
        if getattr(accounting, name) in (None, (), {}, [])
    }
    values["info"] = combine_infos(accounting.info, controller.info)
    return msgspec.structs.replace(accounting, **values)


def combine_infos(accounting: JobInfo, controller: JobInfo) -> JobInfo:
    """The same for what the store keeps in its own columns.

    The controller has the name as the user wrote it, the restart count and the exit code of
    failed jobs, which the accounting's JSON of some releases lacks; and it is ahead in time.
    """
    values = {
        name: getattr(controller, name)
        for name in JobInfo.__struct_fields__
        if getattr(accounting, name) is None
    }
    if controller.name is not None:
        values["name"] = controller.name
    if controller.state in ENDED and accounting.end is None:
        for name in ("state", "end", "exit_code", "exit_signal"):
            values[name] = getattr(controller, name)
    elif accounting.exit_code is not None or accounting.exit_signal is not None:
        # Code and signal are one statement: of a job at its time limit the two sides make
        # different ones.
        values.pop("exit_code", None)
        values.pop("exit_signal", None)
    return msgspec.structs.replace(accounting, **values)
