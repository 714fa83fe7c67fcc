"""A site that has years in Prometheus or VictoriaMetrics gets pages and reports from there."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsight.config.settings import PromqlSettings, Settings, WebSettings
from jobsight.errors import ConfigError
from jobsight.model import MISSING, SECOND, JobInfo
from jobsight.prometheus.remote_write import frames, label, sample, series, snappy_literals
from jobsight.server.promql import PromqlSeries
from jobsight.server.serve import BackgroundServer
from jobsight.store.read.external import RunSpan, SeriesError
from jobsight.store.store import Store
from jobsight.transport.http import Web
from tests.prometheus.batches import NOW, batch, deliver
from tests.prometheus.servers import Prometheus, VictoriaMetrics, with_flush

RUN = RunSpan("c", 42, NOW, NOW + 12 * SECOND)


def start(kind: str, folder: Path) -> Prometheus | VictoriaMetrics:
    if kind == "prometheus":
        return Prometheus(folder, "global: {}\n")
    return VictoriaMetrics(folder)


@pytest.fixture(params=["prometheus", "victoria"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Prometheus | VictoriaMetrics]:
    """A system with a job under our names, and another under petricore's."""
    server = start(request.param, tmp_path / "server")
    try:
        url = f"{server.url}/api/v1/write"
        delivery = deliver(tmp_path, url, [batch(1), batch(2), batch(3, final=True)])
        assert delivery.deliver(), delivery.reason
        delivery.spool.close()
        write_petricore(url)
        if isinstance(server, VictoriaMetrics):
            with_flush(server)
        yield server
    finally:
        server.stop()


def write_petricore(url: str) -> None:
    """As its exporter on two nodes would have left it: seconds, MiB, and ticks of the clock."""
    around = frames(NOW // 10**6 + 1000 * second for second in range(10))
    message = b""
    for node, factor in (("n1", 1), ("n2", 2)):
        behind = label("instance", node) + label("job", "jobs_exporter") + label("slurm_job", "7")
        for name, each in (
            ("jobs_cpu_time_total", 1.5),
            ("jobs_user_time", 100.0),
            ("jobs_rss", 10.0),
        ):
            samples = [sample(factor * each * n, frame) for n, frame in enumerate(around)]
            message += series(label("__name__", name) + behind, samples)
        core = label("__name__", "jobs_cpu_time_core") + label("core", "3") + behind
        message += series(core, [sample(float(n), frame) for n, frame in enumerate(around)])
    web = Web("test", WebSettings(url=url))
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    reply = web.send("POST", "", snappy_literals(message), headers)
    assert 200 <= reply.status < 300, reply


def test_curves_come_back_in_our_units(kept: Prometheus | VictoriaMetrics) -> None:
    curves = PromqlSeries(PromqlSettings(url=kept.url, step=1.0))
    (found,) = curves.series(RUN)
    assert found.node == "n1"
    assert found.times.tolist()[0] == NOW + 3 * SECOND
    cpu = dict(zip(found.times.tolist(), found.columns["cpu.time"].tolist(), strict=True))
    assert [cpu[NOW + place * SECOND] for place in range(3, 9)] == [
        place * SECOND for place in range(3, 9)
    ]
    assert set(found.columns["memory.used"].tolist()) - {MISSING} == {2**20}
    assert found.columns["gpu.1.power"].tolist()[0] == 250_000_000
    # Only what was requested, and only of this run.
    (some,) = curves.series(RUN, ["gpu.1.power", "site.own"], until=NOW + 5 * SECOND)
    assert list(some.columns) == ["gpu.1.power"]
    assert curves.series(RUN, ["site.own"]) == []
    assert curves.series(RUN._replace(job_id=43)) == []
    assert curves.series(RUN._replace(cluster="other")) == []


def test_totals_are_those_of_the_last_sample(kept: Prometheus | VictoriaMetrics) -> None:
    (node,) = PromqlSeries(PromqlSettings(url=kept.url)).nodes(RUN)
    assert node.totals is not None
    # Between two steps, and yet not missed.
    assert node.totals.cpu_time == 99 * SECOND
    assert node.totals.memory_used_peak == 2**20
    assert node.totals.read_bytes is None
    assert (node.node, node.final) == ("n1", True)


def test_petricore_s_own_names(kept: Prometheus | VictoriaMetrics) -> None:
    curves = PromqlSeries(PromqlSettings(url=kept.url, names="petricore", step=1.0))
    run = RUN._replace(job_id=7, cluster="whatever")
    first, second = curves.series(run)
    assert (first.node, second.node) == ("n1", "n2")
    place = first.times.tolist().index(NOW + 9 * SECOND)
    assert first.columns["cpu.time"].tolist()[place] == 13.5 * SECOND
    assert first.columns["cpu.user"].tolist()[place] == 9 * SECOND
    assert second.columns["memory.used"].tolist()[place] == 180 * 2**20
    assert first.columns["cores.3.time"].tolist()[place] == 9 * SECOND
    one, other = curves.nodes(run)
    assert one.totals is not None
    assert other.totals is not None
    assert (one.totals.cpu_time, other.totals.cpu_time) == (13.5 * SECOND, 27 * SECOND)


def test_pages_reports_and_the_api_show_them(
    kept: Prometheus | VictoriaMetrics, tmp_path: Path
) -> None:
    settings = Settings()
    settings.store.location = str(tmp_path / "store" / "store.db")
    settings.server.port = 0
    settings.server.series = "promql"
    settings.server.promql = PromqlSettings(url=kept.url, step=1.0)
    with BackgroundServer(settings) as server:
        with Store.open(settings.store.location) as store:
            store.record_jobs(
                [
                    JobInfo(
                        cluster="c", job_id=42, source="prolog", user="ann", cpus=10,
                        start=RUN.start, end=RUN.end, state="COMPLETED", nodes=("n1",),
                    )
                ]
            )  # fmt: skip

        def get(path: str) -> bytes:
            headers = {"Authorization": f"Bearer {server.token}"}
            request = urllib.request.Request(server.url + path, headers=headers)
            with urllib.request.urlopen(request, timeout=60) as reply:
                return bytes(reply.read())

        report: dict[str, Any] = json.loads(get("/api/v1/jobs/42"))
        assert report["cpu"]["cpu_seconds"] == 99
        assert report["memory"]["used_peak_bytes"] == 2**20
        assert report["coverage"]["cpu"]["quality"] == "estimate"
        answer = json.loads(get("/api/v1/jobs/42/series?metrics=cpu.time,gpu.1.power"))
        (curve,) = answer["nodes"]
        means = [value for value in curve["metrics"]["cpu.time"]["mean"] if value]
        # One core, second by second.
        assert means[:5] == [1.0] * 5
        page = get("/jobs/42").decode()
        assert "PromQL" in page
        config = tmp_path / "site.toml"
        config.write_text(
            f'[store]\nlocation = "{settings.store.location}"\n[server]\nseries = "promql"\n'
            f'[server.promql]\nurl = "{kept.url}"\n'
        )
        done = subprocess.run(
            [sys.executable, "-m", "jobsight.cli.main", "report", "42", "--json",
             "--config", str(config)],
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        assert json.loads(done.stdout)["cpu"]["cpu_seconds"] == 99
        kept.stop()
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            get("/api/v1/jobs/42/series")
        assert b"does not answer" in refused.value.read()
        refused.value.close()


def test_a_system_that_is_not_one_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"server\.promql\.url"):
        PromqlSeries(PromqlSettings())
    curves = PromqlSeries(PromqlSettings(url="http://127.0.0.1:9"))
    with pytest.raises(SeriesError, match="does not answer"):
        curves.series(RUN)
