"""The series of one job, prepared as text with each sample: a scrape only puts them together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from jobsight.agent.probe import Row
from jobsight.agent.samplers.nvml import GpuReading
from jobsight.agent.samplers.petricore import petricore_figures
from jobsight.agent.view import JobView, Sampler
from jobsight.model import MISSING, SECOND
from jobsight.prometheus import names
from jobsight.prometheus.exposition import labels_text
from jobsight.text import readable_text

#: Name of a curve's family, the label of its thing, and what the value is divided by.
_Plan = tuple[str, str, int]
#: Of the curves of all jobs, which have the same names: one dictionary and not one for each.
_plans: Final[dict[str, _Plan | None]] = {}
#: Names of curves and programs that are kept; what is in use is back with the next sample.
_MOST_KEPT: Final = 10_000
#: A job's name and its like; Prometheus refuses nothing, but a label is kept for years.
_LONGEST: Final = 200


class JobSeries:
    """What is offered of one job now. Rendered by the loop, read by the scrapes' threads: each
    rendering is a new dictionary, so that no reader sees half of one."""

    def __init__(self, view: JobView, *, seed_names: bool) -> None:
        sighting = view.sighting
        self.key = (sighting.node, sighting.job_id)
        #: Text of the samples by the name of their family.
        self.lines: dict[str, str] = {}
        #: What its GPUs said last, where that is offered, too.
        self.gpus: dict[str, GpuReading] = {}
        self.count = 0
        self.left_out = 0
        #: When it goes, on the monotonic clock; None while the job runs.
        self.gone_at: float | None = None
        self._seed_names = seed_names
        job = str(sighting.job_id)
        own = dict(zip(names.JOB_LABELS, (sighting.cluster, sighting.node, job), strict=True))
        self._own = "{" + labels_text(own)
        self._seed = "{" + labels_text(
            dict(zip(names.PETRICORE_LABELS, (sighting.node, job), strict=True))
        )
        self._info: tuple[object, ...] = ()
        self._fixed: list[tuple[str, str]] = []

    def render(self, view: JobView, row: Row, samplers: Iterable[Sampler], room: int) -> None:
        """Write the samples anew, so many at most; what no label tells apart comes first."""
        self._describe(view)
        samples = list(self._fixed)
        add, own = samples.append, self._own
        for metric, value in row.items():
            if value == MISSING:
                continue
            try:
                plan = _plans[metric]
            except KeyError:
                plan = _keep(_plans, metric, _plan(metric))
            if plan is not None:
                name, label, divisor = plan
                number = value if divisor == 1 else value / divisor
                add((name, f"{name}{own}{label}}} {number!r}\n"))
        figures = petricore_figures(view, samplers)
        if self._seed_names:
            self._add_seed(samples, figures)
        self._add_programs(samples, figures)
        self.left_out = max(0, len(samples) - room)
        del samples[room:]
        self.count = len(samples)
        gathered: dict[str, list[str]] = {}
        for name, text in samples:
            gathered.setdefault(name, []).append(text)
        self.lines = {name: "".join(texts) for name, texts in gathered.items()}

    def _describe(self, view: JobView) -> None:
        """Who the job is; made anew only when somebody has said more."""
        info = view.info
        known = (info.user, info.account, info.partition, info.name, info.cpus, info.memory)
        if known == self._info:
            return
        self._info = known
        labels = {
            label: readable_text(str(value or ""))[:_LONGEST]
            for label, value in zip(names.INFO.labels, known[:4], strict=True)
        }
        self._fixed = [
            (names.INFO.name, f"{names.INFO.name}{self._own},{labels_text(labels)}}} 1\n"),
            self._one(names.START, view.sighting.birth / SECOND),
        ]
        if info.cpus is not None:
            self._fixed.append(self._one(names.REQUESTED_CPUS, info.cpus))
        if info.memory is not None:
            self._fixed.append(self._one(names.REQUESTED_MEMORY, info.memory))

    def _one(self, family: names.Family, value: int | float) -> tuple[str, str]:
        return family.name, f"{family.name}{self._own}}} {value!r}\n"

    def _add_seed(self, samples: list[tuple[str, str]], figures: dict[str, Any]) -> None:
        seed = self._seed
        labelled = []
        for name, value in figures.items():
            if isinstance(value, dict):
                labelled.append((name, value))
            else:
                samples.append((name, f"{name}{seed}}} {value!r}\n"))
        for name, values in labelled:
            (label,) = names.PETRICORE[name].labels
            for thing, value in values.items():
                samples.append((name, f"{name}{seed},{_label(label, thing)}}} {value!r}\n"))

    def _add_programs(self, samples: list[tuple[str, str]], figures: dict[str, Any]) -> None:
        name = names.PROGRAM_THREADS.name
        for program, threads in figures.get("jobs_thread_count", {}).items():
            label = _label("program", program)
            samples.append((name, f"{name}{self._own},{label}}} {threads}\n"))


def _plan(metric: str) -> _Plan | None:
    found = names.family_of(metric)
    if found is None:
        # A sampler of the site's own, which the table does not know.
        return None
    family, thing = found
    label = "," + _label(family.labels[0], thing) if thing is not None else ""
    return family.name, label, family.divisor


_labels: Final[dict[tuple[str, str], str]] = {}


def _label(name: str, value: str) -> str:
    try:
        return _labels[name, value]
    except KeyError:
        return _keep(_labels, (name, value), labels_text({name: value}))


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _keep(table: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    if len(table) >= _MOST_KEPT:
        table.clear()
    table[key] = value
    return value
