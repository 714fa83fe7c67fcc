"""Who the jobs are: what was said of jobs that have not come yet, and what the node sees itself."""

from __future__ import annotations

import pwd
from typing import Final

from jobsight.agent.finder import JobPlace
from jobsight.model import JobInfo

#: A prolog may tell of jobs whose folders never come.
_LIMIT: Final = 1_000


class Told:
    """What prologs said before the job's folders came; the oldest is forgotten first."""

    def __init__(self) -> None:
        self._infos: dict[int, JobInfo] = {}
        self._gpus: dict[int, tuple[str, ...]] = {}

    def keep_info(self, info: JobInfo) -> None:
        self._infos[info.job_id] = info
        if len(self._infos) > _LIMIT:
            del self._infos[next(iter(self._infos))]

    def keep_gpus(self, job_id: int, gpus: tuple[str, ...]) -> None:
        self._gpus[job_id] = gpus
        if len(self._gpus) > _LIMIT:
            del self._gpus[next(iter(self._gpus))]

    def take_info(self, job_id: int) -> JobInfo | None:
        return self._infos.pop(job_id, None)

    def take_gpus(self, job_id: int) -> tuple[str, ...] | None:
        return self._gpus.pop(job_id, None)


def seen_from_here(cluster: str, job_id: int, place: JobPlace) -> JobInfo:
    """What the node itself knows of a job."""
    user = None
    if place.uid is not None:
        try:
            user = pwd.getpwuid(place.uid).pw_name
        except KeyError:
            user = str(place.uid)
    return JobInfo(
        cluster=cluster,
        job_id=job_id,
        source="cgroup",
        sluid=place.sluid,
        user=user,
        uid=place.uid,
    )


def fill(known: JobInfo, said: JobInfo) -> None:
    """Take over what was not known; nothing is forgotten."""
    for name in said.__struct_fields__:
        value = getattr(said, name)
        if value is not None:
            setattr(known, name, value)
