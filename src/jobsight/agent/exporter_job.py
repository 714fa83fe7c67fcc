"""The series of one job, prepared as text with each sample: a scrape only puts them together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from jobsight.agent.probe import Row
from jobsight.agent.samplers.petricore import petricore_figures
from jobsight.agent.view import JobView, Sampler
from jobsight.model import MISSING, SECOND
from jobsight.prometheus import names
from jobsight.prometheus.exposition import labels_text
from jobsight.text import readable_text

#: Text before the value, and what the value is divided by.
_Plan = tuple[str, str, int]
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
        self.count = 0
        self.left_out = 0
        #: When it goes, on the monotonic clock; None while the job runs.
        self.gone_at: float | None = None
        self._seed_names = seed_names
        job = str(sighting.job_id)
        own = dict(zip(names.JOB_LABELS, (sighting.cluster, sighting.node, job), strict=True))
        self._own = labels_text(own)
        self._seed = labels_text(dict(zip(names.SEED_LABELS, (sighting.node, job), strict=True)))
        self._plans: dict[str, _Plan | None] = {}
        self._seed_prefixes: dict[tuple[str, str], str] = {}
        self._info: tuple[object, ...] = ()
        self._fixed: list[tuple[str, str]] = []

    def render(self, view: JobView, row: Row, samplers: Iterable[Sampler], room: int) -> None:
        """Write the samples anew, so many at most; what no label tells apart comes first."""
        self._describe(view)
        samples = list(self._fixed)
        add, plans = samples.append, self._plans
        for metric, value in row.items():
            if value == MISSING:
                continue
            try:
                plan = plans[metric]
            except KeyError:
                plan = plans[metric] = self._plan(metric)
            if plan is not None:
                name, prefix, divisor = plan
                add((name, f"{prefix}{value if divisor == 1 else value / divisor!r}\n"))
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

    def _plan(self, metric: str) -> _Plan | None:
        found = names.family_of(metric)
        if found is None:
            # A sampler of the site's own, which the table does not know.
            return None
        family, thing = found
        label = "," + labels_text({family.labels[0]: thing}) if thing is not None else ""
        return family.name, f"{family.name}{{{self._own}{label}}} ", family.divisor

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
            (names.INFO.name, f"{names.INFO.name}{{{self._own},{labels_text(labels)}}} 1\n"),
            self._one(names.START, view.sighting.birth / SECOND),
        ]
        if info.cpus is not None:
            self._fixed.append(self._one(names.REQUESTED_CPUS, info.cpus))
        if info.memory is not None:
            self._fixed.append(self._one(names.REQUESTED_MEMORY, info.memory))

    def _one(self, family: names.Family, value: int | float) -> tuple[str, str]:
        return family.name, f"{family.name}{{{self._own}}} {value!r}\n"

    def _add_seed(self, samples: list[tuple[str, str]], figures: dict[str, Any]) -> None:
        labelled = []
        for name, value in figures.items():
            if isinstance(value, dict):
                labelled.append((name, value))
            else:
                samples.append((name, f"{self._seed_prefix(name, '')}{value!r}\n"))
        for name, values in labelled:
            for thing, value in values.items():
                samples.append((name, f"{self._seed_prefix(name, thing)}{value!r}\n"))

    def _seed_prefix(self, name: str, thing: str) -> str:
        found = self._seed_prefixes.get((name, thing))
        if found is None:
            label = names.SEED[name].labels
            more = "," + labels_text({label[0]: thing}) if label else ""
            found = f"{name}{{{self._seed}{more}}} "
            if len(self._seed_prefixes) >= 1000:
                # Programs come and go; what is in use is back with the next sample.
                self._seed_prefixes.clear()
            self._seed_prefixes[name, thing] = found
        return found

    def _add_programs(self, samples: list[tuple[str, str]], figures: dict[str, Any]) -> None:
        name = names.PROGRAM_THREADS.name
        for program, threads in figures.get("jobs_thread_count", {}).items():
            label = labels_text({"program": program})
            samples.append((name, f"{name}{{{self._own},{label}}} {threads}\n"))
