"""Time series that are kept in VictoriaMetrics: a server sends them there by remote write, and its
pages and its API have the same values from there as from the store."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobsight.metrics import METRICS
from jobsight.model import (
    MISSING,
    SECOND,
    Batch,
    Coverage,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
)
from jobsight.transport.wire import encode
from tests.prometheus.servers import VictoriaMetrics, with_flush
from tests.server.processes import ServerProcess, Spawner
from tests.waiting import wait_until

pytestmark = pytest.mark.server

NODES = ("n1", "n2")
RUNNING, ENDED = 41, 42
#: Of a node in a batch; the agent measures more often in the first minute.
ROWS = 12
#: Every metric of the table; those of devices for one device.
NAMES = [name.replace("*", "0") for name in METRICS]


def batch_of(job: int, node: str, number: int, start: int) -> Batch:
    """Some minutes of a job; the second batch of a job that ended is its last."""
    final = job == ENDED and number == 2
    places = range((number - 1) * ROWS, number * ROWS)
    times = [start + _seconds(place) * SECOND + 250_000_000 for place in places]
    columns = {}
    for index, name in enumerate(NAMES):
        values = [_value(name, index, place, node) for place in places]
        # A reading that failed, at another time for each metric.
        values[index % ROWS] = MISSING
        columns[name] = array("q", values)
    end = times[-1]
    info = JobInfo(cluster="c", job_id=job, source="prolog", user="ann", cpus=8, start=start)
    if final:
        info = JobInfo(cluster="c", job_id=job, source="epilog", user="ann", cpus=8, start=start,
                       end=end + SECOND, state="COMPLETED")  # fmt: skip
    totals = JobTotals(time=end, cpu_source="cgroup v2", cpu_time=_seconds(places[-1]) * SECOND)
    part = JobPart(
        sighting=Sighting("c", job, node, "boot", start),
        epoch="e",
        series=Series(array("q", times), columns),
        totals=totals,
        coverage={"cpu": Coverage(quality="exact")},
        final=final,
    )
    return Batch(cluster="c", node=node, spool=f"{job:032x}", sequence=number, written=end,
                 monotonic=number, agent="test", jobs=[info], parts=[part])  # fmt: skip


def _seconds(place: int) -> int:
    """A second apart in the first ten seconds, then ten seconds."""
    return place + 1 if place < 10 else 10 * (place - 8)


def _value(name: str, index: int, place: int, node: str) -> int:
    grown = place if METRICS[NAMES_OF[name]].kind == "counter" else place % 5
    # More digits than a sample of a few seconds has in any unit.
    return (1_234_567_891 + 97 * index) * (grown + 1) + NODES.index(node)


NAMES_OF = dict(zip(NAMES, METRICS, strict=True))


class Seen(NamedTuple):
    """What a server answers about a job."""

    series: Any
    samples: Any
    report: Any
    #: The values of the page for a browser without JavaScript.
    table: str


def get(server: ServerProcess, path: str) -> bytes:
    headers = {"Authorization": f"Bearer {server.token}"}
    request = urllib.request.Request(server.url + path, headers=headers)
    with urllib.request.urlopen(request, timeout=90) as reply:
        return bytes(reply.read())


def see(server: ServerProcess, job: int) -> Seen:
    page = get(server, f"/jobs/{job}").decode()
    report = json.loads(get(server, f"/api/v1/jobs/{job}"))
    return Seen(
        json.loads(get(server, f"/api/v1/jobs/{job}/series?points=2000")),
        _in_order(json.loads(get(server, f"/api/v1/jobs/{job}/samples?points=2000"))),
        {name: report[name] for name in ("cpu", "memory", "io", "coverage", "node_rows")},
        page[page.index("<noscript>") :].partition("</noscript>")[0],
    )


def _in_order(samples: Any) -> list[Any]:
    return sorted(samples["rows"], key=lambda row: (row["node"], row["metric"], row["time"]))


@pytest.fixture(scope="module")
def victoria(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VictoriaMetrics]:
    server = VictoriaMetrics(tmp_path_factory.mktemp("victoria"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


def test_pages_and_api_are_those_of_the_store(
    victoria: VictoriaMetrics, spawner: Spawner, tmp_path: Path
) -> None:
    location = str(tmp_path / "store.db")
    reading = ServerProcess(
        spawner,
        tmp_path / "reading",
        location,
        series="promql",
        promql__url=victoria.url,
        remote_write__url=f"{victoria.url}/api/v1/write",
    )
    start = time.time_ns() // SECOND * SECOND - 600 * SECOND
    batches = [
        batch_of(job, node, number, start)
        for number in (1, 2)
        for job in (RUNNING, ENDED)
        for node in NODES
    ]
    with reading:
        target = reading.target()
        for each in batches:
            answer = target.send(encode(each))
            assert answer.stored, answer
        sent = len(NAMES) * ROWS - len(NAMES)
        counted = 'sum(count_over_time({slurm_job="%s",__name__=~"jobsight_job_.*",__name__!~'
        counted += '"jobsight_job_(info|requested.*)"}[1h]))'

        def arrived() -> bool:
            with_flush(victoria)
            found = [victoria.value(counted % job) or 0 for job in (RUNNING, ENDED)]
            return min(found) >= sent * len(NODES) * 2

        wait_until(arrived)
        assert b"PromQL" not in get(reading, f"/jobs/{ENDED}")
        from_victoria = {job: see(reading, job) for job in (RUNNING, ENDED)}
        victoria.stop(signal.SIGTERM)
        # The page has everything but the time series, and says why.
        page = get(reading, f"/jobs/{ENDED}").decode()
        assert "The time series cannot be read: " in page
        assert f"{victoria.url} does not answer" in page
        assert "No time series was recorded" not in page
        assert "Memory, peak used" in page
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            get(reading, f"/api/v1/jobs/{ENDED}/series")
        assert "does not answer" in json.loads(refused.value.read())["detail"]
        refused.value.close()
        victoria.start()
        # Nothing needs a restart.
        assert see(reading, ENDED).series == from_victoria[ENDED].series
    with ServerProcess(spawner, tmp_path / "storing", location) as storing:
        for job, found in from_victoria.items():
            stored = see(storing, job)
            names = {name for node in stored.series["nodes"] for name in node["metrics"]}
            assert names == set(NAMES)
            assert [node["node"] for node in stored.series["nodes"]] == list(NODES)
            assert found.series == stored.series
            assert found.samples == stored.samples
            assert found.report == stored.report
            assert found.table == stored.table
