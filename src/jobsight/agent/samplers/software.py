"""sams.sampler.Software: CPU time by executable, from the books that process events keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from jobsight.agent.samplers.base import JobSampler, averaged
from jobsight.agent.samplers.node import Node
from jobsight.agent.view import Document, JobView
from jobsight.errors import ConfigError
from jobsight.model import SECOND, ExecutableUse
from jobsight.text import readable_path

#: Path -> the name of the software; None where no rule knows it or it is to be left out.
Mapper = Callable[[str], str | None]

_AVERAGES: Final = ("system", "user")


class _Moment(NamedTuple):
    time: int
    user: int
    system: int


class Software(JobSampler):
    """The CPU time of the job in all, and of each executable."""

    name = "sams.sampler.Software"

    def __init__(
        self,
        *,
        software_mapper: Mapper | str | None = None,
        metrics_to_average: Sequence[str] = _AVERAGES,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        self._averages = averaged(self.name, metrics_to_average, _AVERAGES)
        self._mapper: Mapper | None = None
        if callable(software_mapper):
            self._mapper = software_mapper
        elif isinstance(software_mapper, str):
            # Names are given on the server from the paths; the record loses nothing without.
            self.errors.note(
                "software_mapper", f"{software_mapper} is not loaded on the node; no names"
            )
        elif software_mapper is not None:
            raise ConfigError(f"{self.name}: software_mapper {software_mapper!r} is no mapper")
        self._first: _Moment | None = None
        self._previous: _Moment | None = None

    def document(self, view: JobView) -> Document | None:
        rows = view.probe.executables()
        now = self._moment(view, rows)
        first = self._first = self._first or now
        current: Document = {
            "total_user": now.user / SECOND,
            "total_system": now.system / SECOND,
            "elapsed_time": (now.time - first.time) / SECOND,
        }
        self._add_rates(current, now, first)
        if self._mapper is not None:
            current["software"] = self._software(rows, self._mapper)
        self._previous = now
        return {"current": current}

    def _moment(self, view: JobView, rows: list[ExecutableUse]) -> _Moment:
        """The counter where there is one: it also knows what no executable could be given."""
        totals = view.probe.totals()
        user, system = totals.cpu_user, totals.cpu_system
        if user is None or system is None:
            user = sum(row.cpu_user for row in rows)
            system = sum(row.cpu_system for row in rows)
        return _Moment(self.node.clock(), user, system)

    def _add_rates(self, current: Document, now: _Moment, first: _Moment) -> None:
        """Cores in use since the last document, and since the first.

        The average by time of a rate is the growth over the whole time, without the error of
        joining rates by lines.
        """
        previous = self._previous
        if previous is None or now.time <= previous.time:
            return
        for name in _AVERAGES:
            value = getattr(now, name)
            current[name] = (value - getattr(previous, name)) / (now.time - previous.time)
            if name in self._averages:
                mean = (value - getattr(first, name)) / (now.time - first.time)
                current[f"{name}_average"] = mean

    def _software(self, rows: list[ExecutableUse], mapper: Mapper) -> Document:
        found: Document = {}
        for row in rows:
            try:
                software = mapper(readable_path(row.path)) if row.path_known else None
            except Exception as error:
                # A mapper is a site's own code; its fault must not cost the CPU time.
                self.errors.note("software_mapper", error)
                continue
            if software is not None:
                _add(found, software, row)
        return found

    def final(self, view: JobView) -> Document:
        rows = view.probe.executables()
        execs: Document = {}
        for row in rows:
            _add(execs, readable_path(row.path), row)
        birth = view.sighting.birth
        start = min((row.first_seen for row in rows if row.first_seen), default=birth)
        end = max((row.last_seen for row in rows), default=start)
        if view.usage.members:
            # Something still runs, so the reading is of now.
            end = max(end, self.node.wall())
        now = self._moment(view, rows)
        return {
            "execs": execs,
            "start_time": start // SECOND,
            "end_time": max(start, end) // SECOND,
            # The counter beside the split shows how much no executable could be given.
            "current": {"total_user": now.user / SECOND, "total_system": now.system / SECOND},
        }


def _add(found: dict[str, Any], name: str, row: ExecutableUse) -> None:
    entry = found.setdefault(name, {"user": 0.0, "system": 0.0})
    entry["user"] += row.cpu_user / SECOND
    entry["system"] += row.cpu_system / SECOND
