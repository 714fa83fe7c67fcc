"""Whose a job was, from ``sacct``, where a record does not say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jobsight.model import SECOND, JobInfo
from jobsight.sams.record import RecordError, SamsRecord, SlurmInfo
from jobsight.sams.settings import LoaderSettings

if TYPE_CHECKING:
    from jobsight.scheduler.sources.commands import StreamRunner

#: Prologs and clocks: how far a node's first process may lie outside of what Slurm booked.
_SLACK = 60 * SECOND


class Fallback:
    """Asks for many jobs at once; SAMS starts a command for each."""

    def __init__(self, ask: Callable[[Sequence[int]], Iterable[JobInfo]]) -> None:
        self._ask = ask

    @classmethod
    def by_sacct(cls, settings: LoaderSettings, cluster: str) -> Fallback:
        """The real command, by fixed columns, under the path and environment of the settings."""
        # Only where it is asked: what reads Slurm is large.
        from jobsight.scheduler.sources.text import TextSource

        assert settings.sacct is not None
        source = TextSource(
            cluster,
            timeout=settings.timeout,
            run=_runner(settings.sacct, settings.environment),
        )
        return cls(lambda ids: [record.info for record in source.accounting_of(ids).records])

    def infos(self, records: Sequence[SamsRecord]) -> list[JobInfo | RecordError]:
        """For each record its run, or why there is none."""
        wanted = sorted({record.job_id for record in records})
        runs: dict[int, list[JobInfo]] = {}
        for info in self._ask(wanted) if wanted else ():
            runs.setdefault(info.job_id, []).append(info)
        return [_choose(record, runs.get(record.job_id, [])) for record in records]


def _runner(sacct: str, environment: dict[str, str]) -> StreamRunner:
    from jobsight.scheduler.sources.commands import stream_command

    def run(command: Sequence[str], timeout: float, *, given: bytes = b"") -> Iterable[bytes]:
        variables = {**os.environ, **environment}
        return stream_command([sacct, *command[1:]], timeout, variables, given)

    return run


def _choose(record: SamsRecord, runs: list[JobInfo]) -> JobInfo | RecordError:
    """The run within which the node saw the job; a requeued job has several."""
    started = [run for run in runs if run.start is not None]
    if not started:
        return RecordError(
            f"the record of job {record.job_id} on {record.node} does not say whose it is, and "
            "sacct knows no run of that job"
        )
    if record.first is None or len(started) == 1:
        return max(started, key=lambda run: run.start or 0)
    first = record.first
    fitting = [run for run in started if _contains(run, first)]
    # A requeued job runs again within seconds: of those that had begun by then, the last one.
    begun = [run for run in fitting if (run.start or 0) <= first + SECOND]
    if begun:
        return max(begun, key=lambda run: run.start or 0)
    return min(fitting or started, key=lambda run: abs((run.start or 0) - first))


def _contains(run: JobInfo, time: int) -> bool:
    assert run.start is not None
    return run.start - _SLACK <= time and (run.end is None or time <= run.end + _SLACK)


def slurm_info(info: JobInfo) -> SlurmInfo:
    """The part of a run's record that a SAMS record carries."""
    return SlurmInfo(
        user=info.user,
        uid=info.uid,
        account=info.account,
        partition=info.partition,
        name=info.name,
        cpus=info.cpus,
        start=info.start,
    )


def completed_document(data: bytes, info: JobInfo) -> bytes:
    """The record with what sacct said, as SAMS keeps it in its archive."""
    document = json.loads(data)
    values = {
        "account": info.account,
        "username": info.user,
        "uid": info.uid,
        "nodes": None if info.nodes is None else len(info.nodes),
        "cpus": info.cpus,
        "partition": info.partition,
    }
    said: dict[str, object] = {
        key: str(value) for key, value in values.items() if value is not None
    }
    if info.start is not None:
        moment = datetime.fromtimestamp(info.start / SECOND, UTC).astimezone()
        said["starttime"] = moment.strftime("%Y-%m-%dT%H:%M:%S")
        said["starttimestamp"] = info.start / SECOND
    document["sams.sampler.SlurmInfo"] = said
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
