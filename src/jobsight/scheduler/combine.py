"""One record of a run from what the controller and the accounting say of it."""

from __future__ import annotations

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


def runs_by_key(records: Iterable[JobRecord]) -> dict[Key, JobInfo]:
    """Those records that are runs; of two with one key the later wins."""
    return {key_of(record.info): record.info for record in records if record.ran}


def is_whole(info: JobInfo) -> bool:
    """Of a job that has just ended the accounting may first show a stub: root as its user and no
    partition. Nobody's job must become root's for that."""
    return info.partition is not None


def has_doubtful_name(info: JobInfo) -> bool:
    """Whether the accounting may have changed the name: a double quote and what is not in its
    character set are replaced there."""
    return info.name is not None and any(mark in info.name for mark in _REPLACED)


def combine(accounting: JobInfo, controller: JobInfo) -> JobInfo:
    """The accounting's record, completed by the controller's of the same run.

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
