"""The jobs that a job may only start after, as Slurm names them.

Slurm names them while a job waits: ``afterok:62(unfulfilled),afterany:63_*(unfulfilled)``. The
accounting has no such field, but the command that submitted the job:
``sbatch --dependency=afterok:62:63 run.sh``. One that waits for others of its name (``singleton``)
names none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from jobsight.model import MAX_JOB_ID, JobInfo
from jobsight.scheduler.records import JobDetails
from jobsight.store.chains import Dependency, chain_key

#: More are not read; a job that gathers the results of others depends on many.
MAX_AFTER: Final = 100
#: Characters that are read, which users choose.
_MAX_LENGTH: Final = 10_000
_JOB: Final = r":(\d{1,18})(?!\d)(?:_(?:\d{1,10}|\*))?(?:\+\d{1,10})?(?:\([a-z]{1,30}\))?"
_AFTER: Final = re.compile(rf"\bafter[a-z]{{0,20}}(?:{_JOB})+", re.ASCII)
_ID: Final = re.compile(_JOB, re.ASCII)
_OPTION: Final = re.compile(
    r"(?:^|\s)(?:--dependency[= ]|-d[= ]?)['\"]?(after\S{1,5000})", re.ASCII
)


def dependencies_of(records: Iterable[tuple[JobInfo, JobDetails]]) -> Iterator[Dependency]:
    """The dependencies that some records name."""
    for info, details in records:
        dependency, submit_line = details.dependency or "", details.submit_line or ""
        if info.user is None or not (dependency or submit_line):
            continue
        after = parse_dependency(dependency) or parse_submit_line(submit_line)
        if after:
            submit = info.submit or info.start or 0
            yield Dependency(info.cluster, chain_key(info), info.user, submit, after)


def parse_dependency(text: str) -> tuple[int, ...]:
    """The ids of the jobs that a dependency names."""
    ids = (
        int(job[1])
        for named in _AFTER.finditer(text[:_MAX_LENGTH])
        for job in _ID.finditer(named[0])
    )
    found = dict.fromkeys(id for id in ids if 0 < id <= MAX_JOB_ID)
    return tuple(found)[:MAX_AFTER]


def parse_submit_line(line: str) -> tuple[int, ...]:
    """The ids of the jobs that the options of a command name."""
    found = (parse_dependency(option[1]) for option in _OPTION.finditer(line[:_MAX_LENGTH]))
    return next((ids for ids in found if ids), ())
