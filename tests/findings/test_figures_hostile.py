"""Figures of random records: they are computed without an error, and every value is finite."""

from __future__ import annotations

import math
from array import array
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from jobsight.findings.data import RunData, _join_programs
from jobsight.findings.figures import compute_figures
from jobsight.findings.packed import decode_figures, encode_figures
from jobsight.findings.timeline import METRICS, Timeline
from jobsight.findings.vocabulary import FIGURES
from jobsight.model import (
    MISSING,
    SECOND,
    Coverage,
    ExecutableUse,
    GpuUse,
    JobInfo,
    JobTotals,
    Sighting,
    StepUse,
)
from jobsight.scheduler.records import JobDetails, StepInfo
from jobsight.store.read.queries import StoredNode, StoredRun, StoredSeries, summarize_nodes
from jobsight.store.read.state import decide_state

START = 1_790_000_000 * SECOND
TIMES = st.one_of(st.just(0), st.integers(START - 10**13, START + 10**14))
COUNTS = st.one_of(st.just(0), st.integers(0, 2**60))
MAYBE = st.one_of(st.none(), COUNTS)
QUALITIES = st.sampled_from(("exact", "estimate", "failed", "missing"))
SHARES = st.one_of(st.none(), st.floats(0, 1))
COVERAGES = st.builds(Coverage, quality=QUALITIES, time_share=SHARES, cpu_share=SHARES)
GROUPS = st.dictionaries(
    st.sampled_from(("cpu", "memory", "io", "executables", "gpu", "pressure")), COVERAGES
)
PROGRAMS = st.builds(
    ExecutableUse, path=st.binary(max_size=30), executions=COUNTS, processes=COUNTS,
    cpu_time=COUNTS, failures=COUNTS, first_seen=TIMES, last_seen=TIMES, read_bytes=COUNTS,
    peak_memory=COUNTS, path_known=st.booleans(),
)  # fmt: skip
GPUS = st.builds(
    GpuUse, key=st.sampled_from(("0", "1", "0:1")), held_time=COUNTS, active_time=MAYBE,
    multiprocessor_time=MAYBE, used=st.sampled_from((None, True, False)), energy=MAYBE,
    memory_peak=MAYBE, memory_total=MAYBE, coverage=st.dictionaries(st.just("activity"), COVERAGES),
    throttled_time=st.one_of(st.none(), st.dictionaries(st.text(max_size=5), COUNTS, max_size=3)),
)  # fmt: skip
STEPS = st.builds(
    StepUse, step=st.sampled_from(("0", "1", "2", "batch", "extern")), cpu_time=MAYBE,
    memory_peak=MAYBE, first_seen=TIMES, last_seen=TIMES,
)  # fmt: skip
STEP_INFOS = st.builds(
    StepInfo, step=st.sampled_from(("0", "3", "batch")), start=st.one_of(st.none(), TIMES),
    end=st.one_of(st.none(), TIMES), cpu_time=MAYBE, name=st.one_of(st.none(), st.text(max_size=5)),
)  # fmt: skip
VALUES = st.lists(
    st.one_of(st.just(MISSING), st.integers(0, 2**62), st.integers(-100, 200)), max_size=20
)
NAMES = st.sampled_from((*METRICS, "gpu.0.utilization", "gpu.0:1.multiprocessor_time",
                         "gpu.0.energy", "network.a.received_bytes", "unknown"))  # fmt: skip


@st.composite
def series(draw: Any) -> StoredSeries:
    moments = sorted(draw(st.sets(st.integers(START - 10**12, START + 10**14), max_size=20)))
    columns = {}
    for name in draw(st.lists(NAMES, max_size=8, unique=True)):
        values = draw(VALUES)
        values = (values + [MISSING] * len(moments))[: len(moments)]
        columns[name] = np.frombuffer(array("q", values), np.int64)
    return StoredSeries("n1", np.array(moments, np.int64), columns)


@st.composite
def runs(draw: Any) -> RunData:
    info = JobInfo(
        cluster="c1", job_id=1, source="slurm",
        start=draw(st.one_of(st.none(), st.just(START))),
        end=draw(st.one_of(st.none(), TIMES)),
        state=draw(st.sampled_from((None, "RUNNING", "COMPLETED", "OUT_OF_MEMORY"))),
        cpus=draw(MAYBE), memory=draw(MAYBE), gpus=draw(st.one_of(st.none(), st.integers(0, 9))),
        time_limit=draw(MAYBE), submit=draw(MAYBE), exit_code=draw(MAYBE), exit_signal=draw(MAYBE),
    )  # fmt: skip
    stored = StoredRun(
        id=1, info=info, provisional=False, cpu_time=draw(MAYBE), memory_used_peak=None,
        memory_peak=None, node_count=draw(st.integers(0, 3)), first_seen=None, last_seen=None,
        start=START,
    )  # fmt: skip
    nodes = [
        StoredNode(
            id=number,
            sighting=Sighting("c1", 1, f"n{number}", "boot", START),
            epoch="one",
            totals=draw(
                st.one_of(
                    st.none(),
                    st.builds(
                        JobTotals,
                        time=TIMES,
                        cpu_source=st.just("cgroup v1"),
                        cpu_time=MAYBE,
                        cpu_user=MAYBE,
                        cpu_system=MAYBE,
                        memory_peak=MAYBE,
                        memory_used_peak=MAYBE,
                        memory_limit=MAYBE,
                        read_calls=MAYBE,
                        read_characters=MAYBE,
                    ),
                )
            ),
            coverage=draw(GROUPS),
            first_sample=None,
            last_sample=None,
            final=draw(st.booleans()),
            clock_skew=None,
        )
        for number in range(1, draw(st.integers(1, 4)))
    ]
    summary = summarize_nodes([(node.final, node.totals) for node in nodes])
    now = START + 10**13
    state = decide_state(info, START, ended_on_nodes=summary.ended, as_of=summary.counted, now=now)
    data = RunData(stored, nodes, state, summary, now)
    data.details = draw(
        st.one_of(
            st.none(),
            st.builds(JobDetails, steps=st.lists(STEP_INFOS, max_size=4),
                      submit_line=st.one_of(st.none(), st.text(max_size=20))),
        )
    )  # fmt: skip
    uses = draw(st.lists(PROGRAMS, max_size=6))
    _join_programs(data, [SimpleNamespace(node="n1", use=use) for use in uses])  # type: ignore[misc]
    data.steps = [SimpleNamespace(node="n1", use=use) for use in draw(st.lists(STEPS, max_size=5))]  # type: ignore[misc]
    data.gpus = [SimpleNamespace(node="n1", use=use) for use in draw(st.lists(GPUS, max_size=3))]  # type: ignore[misc]
    if data.span > 0 and draw(st.booleans()):
        timeline = Timeline(data.start, data.span, len(nodes))
        for node in nodes:
            found = draw(series())
            timeline.add(StoredSeries(node.node, found.times, found.columns), [node], {"0"})
        if timeline.nodes:
            data.timeline = timeline
    return data


@given(runs())
def test_random_records_give_figures(data: RunData) -> None:
    figures = compute_figures(data)
    for name, value in figures.values.items():
        assert name in FIGURES
        if isinstance(value, float):
            assert math.isfinite(value), name
    assert all(0 <= share <= 1 for share in figures.coverage.values())
    again = decode_figures(encode_figures(figures))
    assert (again.values, again.unknown, again.coverage) == (
        *(figures.values, figures.unknown, figures.coverage),
    )
