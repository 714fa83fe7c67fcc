"""Reads a run's curves back from whatever answers PromQL: Prometheus, VictoriaMetrics, Mimir."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

import msgspec
import numpy as np

from jobsight.config.settings import PromqlSettings, ServerSettings
from jobsight.errors import StoreError
from jobsight.metrics import find_metric
from jobsight.model import MISSING, SECOND, Coverage, JobTotals, Sighting
from jobsight.prometheus.exposition import escape_label
from jobsight.prometheus.names import OF_METRIC, OLD_PETRICORE, Family
from jobsight.store.read.external import RunSpan
from jobsight.store.read.queries import StoredNode, StoredSeries
from jobsight.store.series.packing import Values
from jobsight.store.store import Store
from jobsight.transport.http import Web

#: Points of one curve at most: a job of a month is asked for in larger steps.
_MOST_POINTS: Final = 2000
_LARGEST_REPLY: Final = 512 * 2**20
_REASON: Final = "from the samples that another system has kept"

#: Seconds behind the end of a run for which its last values still stand.
_AFTERWARDS: Final = 30

#: The totals of a node, and the curves whose highest values they are.
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


class SeriesError(StoreError):
    """The curves cannot be had; the text says why."""


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _Data(msgspec.Struct):
    result: list[_Series]


class _Reply(msgspec.Struct):
    data: _Data


#: Node -> metric -> moment in milliseconds -> value.
_Points = dict[str, dict[str, dict[int, int]]]


class PromqlSeries:
    """Curves under our names or petricore's, asked for with one question for all names."""

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
        """The curves of a run by node, in the units of the table of metrics."""
        wanted = self._wanted(metrics)
        if not wanted:
            return []
        first = max(run.start, since or 0)
        last = min(run.end or self._clock(), until or 2**63 - 1)
        found = self._ask(run, wanted, first, last) if last >= first else {}
        return [
            _stored(node, columns, metrics) for node, columns in sorted(found.items()) if columns
        ]

    def nodes(self, run: RunSpan) -> list[StoredNode]:
        """The highest value of each curve: of a counter that is its last, and no step misses it."""
        end = run.end or self._clock()
        length = math.ceil((end - run.start) / SECOND) + _AFTERWARDS
        found: dict[str, dict[str, int]] = {}
        for figure, metric in _TOTALS.items():
            family = self._families.get(metric)
            if family is None:
                continue
            curve = f"{family.name}{{{self._selector(run)}}}[{length}s]"
            asked = {
                "query": f"max_over_time({curve})",
                "time": f"{end / SECOND + _AFTERWARDS:.3f}",
            }
            for one in self._query("query", asked):
                node = one.metric.get(self._node_label)
                if node is not None and one.value is not None:
                    value = round(float(one.value[1]) * family.divisor)
                    found.setdefault(node, {})[figure] = value
        return [_node(run, end, node, figures) for node, figures in sorted(found.items())]

    def _selector(self, run: RunSpan) -> str:
        selector = f'slurm_job="{run.job_id}"'
        if self._with_cluster:
            selector += f',cluster="{escape_label(run.cluster)}"'
        return selector

    def _wanted(self, metrics: Sequence[str] | None) -> list[Family]:
        if metrics is None:
            return list(self._families.values())
        rows = [find_metric(metric) for metric in metrics]
        names = dict.fromkeys(row.name for row in rows if row is not None)
        return [self._families[name] for name in names if name in self._families]

    def _ask(self, run: RunSpan, wanted: Iterable[Family], first: int, last: int) -> _Points:
        families = {family.name: family for family in wanted}
        selector = f'__name__=~"{"|".join(families)}",{self._selector(run)}'
        step = max(self._step, math.ceil((last - first) / SECOND / _MOST_POINTS))
        # Up to the first step at or behind the end, where the last values still stand.
        steps = math.ceil((last - first) / SECOND / step)
        start = first / SECOND
        asked = {
            "query": f"{{{selector}}}",
            "start": f"{start:.3f}",
            "end": f"{start + steps * step:.3f}",
            "step": f"{step:g}",
        }
        found: _Points = {}
        for one in self._query("query_range", asked):
            family = families.get(one.metric.get("__name__", ""))
            node = one.metric.get(self._node_label)
            if family is None or node is None or family.metric is None:
                continue
            thing = one.metric.get(family.labels[0], "") if family.labels else ""
            curve = found.setdefault(node, {}).setdefault(family.metric.replace("*", thing), {})
            for moment, text in one.values:
                value = float(text)
                if math.isfinite(value):
                    curve[round(moment * 1000)] = round(value * family.divisor)
        return found

    def _query(self, kind: str, asked: Mapping[str, str]) -> list[_Series]:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            reply = self._web.send(
                "POST",
                f"/api/v1/{kind}",
                urlencode(asked).encode(),
                headers,
                largest=_LARGEST_REPLY,
            )
        except OSError as error:
            raise SeriesError(f"{self._web.name} does not answer: {error}") from None
        if reply.status != 200:
            said = reply.body.decode(errors="replace").strip()[:300]
            raise SeriesError(f"{self._web.name} answered {reply.status}: {said}")
        try:
            return msgspec.json.decode(reply.body, type=_Reply).data.result
        except msgspec.MsgspecError as error:
            raise SeriesError(f"{self._web.name} answered what is not PromQL's: {error}") from None


def _stored(
    node: str, columns: dict[str, dict[int, int]], metrics: Sequence[str] | None
) -> StoredSeries:
    """Columns over all moments at which any of them has a value."""
    moments = sorted({moment for curve in columns.values() for moment in curve})
    made: dict[str, Values] = {
        metric: np.array([curve.get(moment, MISSING) for moment in moments], np.int64)
        for metric, curve in sorted(columns.items())
        if metrics is None or metric in metrics
    }
    return StoredSeries(node, np.array(moments, np.int64) * 1_000_000, made)


def _node(run: RunSpan, end: int, node: str, figures: dict[str, int]) -> StoredNode:
    kept = Coverage(quality="estimate", reason=_REASON)
    return StoredNode(
        id=0,
        sighting=Sighting(run.cluster, run.job_id, node, "", run.start),
        epoch="",
        totals=JobTotals(time=end, cpu_source="PromQL", **figures),
        coverage={
            "cpu": kept,
            "memory": kept,
            "io": kept,
            "executables": Coverage(quality="missing", reason="no agent has reported the run"),
        },
        first_sample=run.start,
        last_sample=end,
        final=run.end is not None,
        clock_skew=None,
    )


def attach_promql(store: Store, settings: ServerSettings) -> None:
    """Let a store take its curves from elsewhere, where the settings say so."""
    if settings.series == "promql":
        store.curves = PromqlSeries(settings.promql)
