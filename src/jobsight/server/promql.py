"""Time series of runs from a PromQL API: Prometheus, VictoriaMetrics, Mimir."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

import msgspec
import numpy as np

from jobsight.config.settings import PromqlSettings, ServerSettings
from jobsight.metrics import find_metric
from jobsight.model import MISSING, SECOND, Coverage, JobTotals, Sighting
from jobsight.prometheus.exposition import escape_label
from jobsight.prometheus.names import OF_METRIC, OLD_PETRICORE, Family
from jobsight.store.read.external import RunSpan, SeriesError
from jobsight.store.read.queries import StoredNode, StoredSeries
from jobsight.store.series.packing import Values
from jobsight.store.store import Store
from jobsight.transport.http import Web
from jobsight.util.decoding import decode_json_as

#: Maximum points per time series. A job of more steps is queried at the points of a larger step, a
#: shorter one for its samples.
_MAX_POINTS: Final = 2000
_MILLISECOND: Final = 1_000_000
_MAX_REPLY: Final = 512 * 2**20
_REASON: Final = "from samples of an external time series database"

#: Seconds after the end of a run in which its last values are still returned.
_AFTER_END: Final = 30

#: The totals of a node, and the time series whose maxima they are.
_TOTALS: Final = {
    "cpu_time": "cpu.time",
    "cpu_user": "cpu.user",
    "cpu_system": "cpu.system",
    "memory_used_peak": "memory.used",
    "memory_peak": "memory.peak",
    "read_characters": "io.read_characters",
    "written_characters": "io.written_characters",
    "read_bytes": "io.read_bytes",
    "written_bytes": "io.written_bytes",
    "read_calls": "io.read_calls",
    "write_calls": "io.write_calls",
}


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _Data(msgspec.Struct):
    result: list[_Series]


class _Reply(msgspec.Struct):
    data: _Data


#: Node -> metric -> time in milliseconds -> value.
_Points = dict[str, dict[str, dict[int, int]]]


class PromqlSeries:
    """Time series under jobsight's or petricore's names; one query reads all metrics."""

    def __init__(self, settings: PromqlSettings, clock: Callable[[], int] = time.time_ns) -> None:
        self._web = Web("server.promql", settings)
        self._step = settings.step
        self._clock = clock
        old = settings.names == "petricore"
        self._families: Mapping[str, Family] = OLD_PETRICORE if old else OF_METRIC
        self._node_label = "instance" if old else "node"
        self._with_cluster = not old

    def series(
        self,
        run: RunSpan,
        metrics: Sequence[str] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[StoredSeries]:
        """The time series of a run by node, in the units of the table of metrics."""
        families = self._families_of(metrics)
        if not families:
            return []
        first = max(run.start, since or 0)
        # An agent measures a last time when it sees the end.
        end = self._clock() if run.end is None else run.end + _AFTER_END * SECOND
        last = min(end, until or 2**63 - 1)
        points = self._points(run, families, first, last) if last >= first else {}
        return [
            _stored(node, columns, metrics) for node, columns in sorted(points.items()) if columns
        ]

    def nodes(self, run: RunSpan) -> list[StoredNode]:
        """The maximum of each time series; for a counter that is its last value."""
        end = run.end or self._clock()
        length = math.ceil((end - run.start) / SECOND) + _AFTER_END
        totals: dict[str, dict[str, int]] = {}
        for figure, metric in _TOTALS.items():
            family = self._families.get(metric)
            if family is None:
                continue
            selected = f"{family.name}{{{self._selector(run)}}}[{length}s]"
            parameters = {
                "query": f"max_over_time({selected})",
                "time": f"{end / SECOND + _AFTER_END:.3f}",
            }
            for series in self._query("query", parameters):
                node = series.metric.get(self._node_label)
                if node is not None and series.value is not None:
                    value = round(float(series.value[1]) * family.divisor)
                    totals.setdefault(node, {})[figure] = value
        return [_node(run, end, node, figures) for node, figures in sorted(totals.items())]

    def _selector(self, run: RunSpan) -> str:
        selector = f'slurm_job="{run.job_id}"'
        if self._with_cluster:
            selector += f',cluster="{escape_label(run.cluster)}"'
        return selector

    def _families_of(self, metrics: Sequence[str] | None) -> list[Family]:
        if metrics is None:
            return list(self._families.values())
        rows = [find_metric(metric) for metric in metrics]
        names = dict.fromkeys(row.name for row in rows if row is not None)
        return [self._families[name] for name in names if name in self._families]

    def _points(self, run: RunSpan, wanted: Iterable[Family], first: int, last: int) -> _Points:
        families = {family.name: family for family in wanted}
        selector = f'{{__name__=~"{"|".join(families)}",{self._selector(run)}}}'
        seconds = (last - first) / SECOND
        if seconds <= self._step * _MAX_POINTS:
            found = self._samples(selector, first, last)
        else:
            found = self._steps(selector, first, seconds)
        points: _Points = {}
        for series in found:
            family = families.get(series.metric.get("__name__", ""))
            node = series.metric.get(self._node_label)
            if family is None or node is None or family.metric is None:
                continue
            label = series.metric.get(family.labels[0], "") if family.labels else ""
            values = points.setdefault(node, {}).setdefault(family.metric.replace("*", label), {})
            for at, text in series.values:
                value = float(text)
                if math.isfinite(value):
                    values[round(at * 1000)] = round(value * family.divisor)
        return points

    def _samples(self, selector: str, first: int, last: int) -> list[_Series]:
        """The samples themselves, with the times at which they were measured."""
        # The interval of a range selector is open on the left in some versions.
        earliest, latest = first // _MILLISECOND, -(-last // _MILLISECOND)
        length = math.ceil((latest - earliest) / 1000) + 1
        parameters = {"query": f"{selector}[{length}s]", "time": f"{latest / 1000:.3f}"}
        found = self._query("query", parameters)
        for series in found:
            series.values = [each for each in series.values if round(each[0] * 1000) >= earliest]
        return found

    def _steps(self, selector: str, first: int, seconds: float) -> list[_Series]:
        """The values at so many points."""
        step = max(self._step, math.ceil(seconds / _MAX_POINTS))
        # Up to the first step at or after the end, which still returns the last values.
        start, steps = first / SECOND, math.ceil(seconds / step)
        parameters = {
            "query": selector,
            "start": f"{start:.3f}",
            "end": f"{start + steps * step:.3f}",
            "step": f"{step:g}",
        }
        return self._query("query_range", parameters)

    def _query(self, kind: str, parameters: Mapping[str, str]) -> list[_Series]:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            reply = self._web.send(
                "POST",
                f"/api/v1/{kind}",
                urlencode(parameters).encode(),
                headers,
                largest=_MAX_REPLY,
            )
        except OSError as error:
            raise SeriesError(f"{self._web.name} does not answer: {error}") from None
        if reply.status != 200:
            text = reply.body.decode(errors="replace").strip()[:300]
            raise SeriesError(f"{self._web.name} answered {reply.status}: {text}")
        try:
            return decode_json_as(_Reply, reply.body).data.result
        except msgspec.MsgspecError as error:
            raise SeriesError(
                f"{self._web.name} did not answer with a PromQL result: {error}"
            ) from None


def _stored(
    node: str, columns: dict[str, dict[int, int]], metrics: Sequence[str] | None
) -> StoredSeries:
    """Columns over all times at which any of them has a value."""
    times = sorted({time for column in columns.values() for time in column})
    values: dict[str, Values] = {
        metric: np.array([column.get(time, MISSING) for time in times], np.int64)
        for metric, column in sorted(columns.items())
        if metrics is None or metric in metrics
    }
    return StoredSeries(node, np.array(times, np.int64) * _MILLISECOND, values)


def _node(run: RunSpan, end: int, node: str, figures: dict[str, int]) -> StoredNode:
    sampled = Coverage(quality="estimate", reason=_REASON)
    return StoredNode(
        id=0,
        sighting=Sighting(run.cluster, run.job_id, node, "", run.start),
        epoch="",
        totals=JobTotals(time=end, cpu_source="PromQL", **figures),
        coverage={
            "cpu": sampled,
            "memory": sampled,
            "io": sampled,
            "executables": Coverage(quality="missing", reason="no agent has reported the run"),
        },
        first_sample=run.start,
        last_sample=end,
        final=run.end is not None,
        clock_skew=None,
    )


def attach_promql(store: Store, settings: ServerSettings) -> None:
    """Make a store read its time series from PromQL, if configured."""
    if settings.series == "promql":
        store.external_series = PromqlSeries(settings.promql)
