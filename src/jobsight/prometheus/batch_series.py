"""A batch as series for remote write: the samples of its curves with their own times."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from jobsight.model import MISSING, Batch, Column, JobInfo, JobPart, Sighting
from jobsight.prometheus import names
from jobsight.prometheus.names import Family
from jobsight.prometheus.remote_write import Frame, frames, label, sample, series, stale
from jobsight.text import readable_text

_MILLISECOND: Final = 1_000_000
#: Jobs that are remembered for their names and for the end of their series; the oldest go first.
_MOST_JOBS: Final = 100_000

_SEED: Final = {family.metric: family for family in names.SEED.values() if family.metric}


class Encoded(NamedTuple):
    """The message of a batch before it is packed, and how many samples it holds."""

    message: bytes
    samples: int


class _Job:
    """What is known of one job on one node from earlier batches."""

    def __init__(self, sighting: Sighting) -> None:
        job = str(sighting.job_id)
        self.own = (
            label("cluster", sighting.cluster),
            label("node", sighting.node) + label("slurm_job", job),
        )
        self.seed = (b"", label("instance", sighting.node) + label("slurm_job", job))
        #: Labels of every series that was sent, and has not ended yet.
        self.open: dict[bytes, None] = {}


class BatchSeries:
    """Turns batches into messages, one after the other; it remembers who the jobs are."""

    def __init__(self, *, seed_names: bool = False) -> None:
        self._seed_names = seed_names
        self._jobs: dict[Sighting, _Job] = {}
        self._infos: dict[tuple[str, int], JobInfo] = {}
        self._names: dict[str, list[tuple[Family, bytes, bytes]]] = {}

    def encode(self, batch: Batch) -> Encoded:
        """The series of a batch; the same batch may come again as long as it is not settled."""
        for info in batch.jobs:
            _keep(self._infos, (info.cluster, info.job_id), info)
        found: list[bytes] = []
        count = 0
        for part in batch.parts:
            job = self._jobs.get(part.sighting)
            if job is None:
                job = _Job(part.sighting)
                _keep(self._jobs, part.sighting, job)
            made = self._part(part, job)
            found += [series(labels, samples) for labels, samples in made.items()]
            count += sum(map(len, made.values()))
        return Encoded(b"".join(found), count)

    def settle(self, batch: Batch) -> None:
        """The batch has arrived: what ended with it is forgotten."""
        for part in batch.parts:
            if part.final:
                self._jobs.pop(part.sighting, None)

    def _part(self, part: JobPart, job: _Job) -> dict[bytes, list[bytes]]:
        made: dict[bytes, list[bytes]] = {}
        last = 0
        if part.series is not None and len(part.series):
            times = [int(time) // _MILLISECOND for time in part.series.times]
            around = frames(times)
            last = times[-1]
            for metric, column in part.series.columns.items():
                self._curve(made, job, metric, column, around)
            self._describe(made, part.sighting, job, around[-1])
        if part.final:
            self._end(made, part, job, last)
        job.open.update(dict.fromkeys(made))
        return made

    def _curve(
        self,
        made: dict[bytes, list[bytes]],
        job: _Job,
        metric: str,
        column: Column,
        around: list[Frame],
    ) -> None:
        for family, name, thing in self._families(metric):
            before, behind = job.own if family.name in names.OWN else job.seed
            divisor = family.divisor
            samples = [
                sample(value / divisor, frame)
                for value, frame in zip(column, around, strict=True)
                if value != MISSING and not math.isnan(value)
            ]
            if samples:
                # In the order of the labels' names: cluster, the thing, node or instance.
                made[name + before + thing + behind] = samples

    def _families(self, metric: str) -> list[tuple[Family, bytes, bytes]]:
        found = self._names.get(metric)
        if found is None:
            found = self._names[metric] = []
            if len(self._names) > _MOST_JOBS:
                self._names.clear()
            own = names.family_of(metric)
            if own is not None:
                family, thing = own
                also = _SEED.get(family.metric or "") if self._seed_names else None
                for one in (family, *([also] if also is not None else [])):
                    text = label(one.labels[0], thing) if thing is not None else b""
                    found.append((one, label("__name__", one.name), text))
        return found

    def _describe(
        self, made: dict[bytes, list[bytes]], sighting: Sighting, job: _Job, frame: Frame
    ) -> None:
        info = self._infos.get((sighting.cluster, sighting.job_id))
        if info is None:
            return
        words = {
            "account": info.account,
            "cluster": sighting.cluster,
            "name": info.name,
            "node": sighting.node,
            "partition": info.partition,
            "slurm_job": str(sighting.job_id),
            "user": info.user,
        }
        labels = b"".join(
            label(name, readable_text(value)[:200]) for name, value in words.items() if value
        )
        made[label("__name__", names.INFO.name) + labels] = [sample(1.0, frame)]
        asked = ((names.REQUESTED_CPUS, info.cpus), (names.REQUESTED_MEMORY, info.memory))
        for family, value in asked:
            if value is not None:
                made[label("__name__", family.name) + b"".join(job.own)] = [sample(value, frame)]

    def _end(self, made: dict[bytes, list[bytes]], part: JobPart, job: _Job, last: int) -> None:
        """The last counters, where they are newer than the last sample, and the end of all."""
        if part.totals is not None:
            time = part.totals.time // _MILLISECOND
            (frame,) = frames([time])
            totals = {
                "cpu.time": part.totals.cpu_time,
                "cpu.user": part.totals.cpu_user,
                "cpu.system": part.totals.cpu_system,
            }
            for metric, value in totals.items():
                if value is None or time <= last:
                    continue
                for family, name, _ in self._families(metric):
                    before, behind = job.own if family.name in names.OWN else job.seed
                    made.setdefault(name + before + behind, []).append(
                        sample(value / family.divisor, frame)
                    )
            last = max(last, time)
        if last:
            (frame,) = frames([last + 1])
            for labels in {**job.open, **made}:
                made.setdefault(labels, []).append(stale(frame))


def _keep(table: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
    table[key] = value
    if len(table) > _MOST_JOBS:
        del table[next(iter(table))]
