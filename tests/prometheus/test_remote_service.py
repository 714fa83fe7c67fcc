"""Remote write from a real agent and a real server, with receivers that come late."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from jobsight.agent.exporter.service import ExporterService
from jobsight.config.settings import AgentSettings, MetricsSettings, RemoteWriteSettings, Settings
from jobsight.model import MISSING, SECOND
from jobsight.prometheus.remote_write import RemoteWriter
from jobsight.server.serve import BackgroundServer
from jobsight.transport import wire
from jobsight.transport.spool import Spool
from jobsight.util.workers import worker_states
from tests.agent.slurm_trees import SlurmNode, available, following
from tests.prometheus.batches import NOW, batch
from tests.prometheus.readers import fetch, one, samples
from tests.prometheus.servers import Prometheus, VictoriaMetrics, with_flush
from tests.waiting import wait_until

pytestmark = pytest.mark.server


@pytest.mark.root
@pytest.mark.skipif(not available(), reason="needs the hierarchies of cgroup v1")
def test_an_agent_s_samples_wait_for_the_receiver_and_keep_their_times(tmp_path: Path) -> None:
    receiver = VictoriaMetrics(tmp_path / "victoria")
    receiver.stop()
    node, spool = SlurmNode(), Spool(tmp_path / "spool")
    remote = RemoteWriteSettings(url=f"{receiver.url}/api/v1/write", petricore_names=True)
    settings = AgentSettings(
        spool=str(spool.directory), metrics=MetricsSettings(listen=""), remote_write=remote
    )
    exporting = ExporterService(settings)
    assert exporting.remote_writer is not None
    try:
        with following(node.finder(), spool=spool) as running:
            exporting.start(running.agent)
            job = node.job(9)
            job.step("sleep", "60", tasks=2)
            wait_until(lambda: len(spool) > 4)
            job.end()
            wait_until(lambda: not running.agent.jobs)
        assert exporting.remote_writer.target.samples == 0
        assert len(exporting.remote_writer.spool) == len(spool)
        receiver.start()
        wait_until(lambda: len(exporting.remote_writer.spool) == 0)
        exporting.close()
        with_flush(receiver)
        taken = [wire.decode(data) for _, data in spool.pending()]
        wanted = []
        for sent in taken:
            for part in sent.parts:
                if part.series is not None:
                    column = part.series.columns["memory.used"]
                    wanted += [
                        (time // 10**6 / 1000, float(value))
                        for time, value in zip(part.series.times, column, strict=True)
                        if value != MISSING
                    ]
        for name, divisor in (("jobsight_job_memory_used_bytes", 1), ("jobs_rss", 2**20)):
            (found,) = receiver.query(f'{name}{{slurm_job="9"}}[5m]', wanted[-1][0] + 60)
            values = [(at, float(value)) for at, value in found["values"] if value != "NaN"]
            assert values == [(at, value / divisor) for at, value in wanted]
    finally:
        receiver.stop()
        node.close()
        spool.close()


def _reasons() -> dict[str, str]:
    return {each.name: each.reason for each in worker_states()}


def test_a_server_passes_on_what_is_new(tmp_path: Path) -> None:
    receiver = Prometheus(tmp_path / "prometheus", "global: {}\n")
    settings = Settings()
    settings.store.location = str(tmp_path / "store" / "store.db")
    settings.server.port = 0
    settings.server.remote_write.url = f"{receiver.url}/api/v1/write"
    sent = wire.encode(batch(1))
    try:
        with BackgroundServer(settings) as server:
            for _ in range(2):
                request = urllib.request.Request(
                    f"{server.url}/api/v1/batches",
                    sent,
                    {"Authorization": f"Bearer {server.token}"},
                )
                with urllib.request.urlopen(request, timeout=60) as reply:
                    assert reply.status == 200
            told = {"Authorization": f"Bearer {server.token}"}

            def taken() -> float:
                found = samples(fetch(f"{server.url}/metrics", told))
                return one(found, "jobsight_server_remote_write_samples_total")

            wait_until(lambda: taken() == 10)
        question = 'jobsight_job_cpu_seconds_total{slurm_job="42"}[5m]'
        (found,) = receiver.query(question, NOW / SECOND + 60)
        assert [float(value) for _, value in found["values"]] == [3.0, 4.0, 5.0]
        assert (tmp_path / "store" / "remote-write" / "spool.json").exists()
        assert not list((tmp_path / "store" / "remote-write").glob("*.batch"))
    finally:
        receiver.stop()


def test_what_waits_is_sent_by_the_next_life(tmp_path: Path) -> None:
    receiver = Prometheus(tmp_path / "prometheus", "global: {}\n")
    receiver.stop()
    settings = RemoteWriteSettings(url=f"{receiver.url}/api/v1/write")
    first = RemoteWriter("agent.remote_write", settings, tmp_path / "queue")
    first.start()
    for number in (1, 2):
        first.put(wire.encode(batch(number)))
    # Fault 10: it was not in the health.
    wait_until(lambda: _reasons()["agent.remote_write"] != "")
    first.close()
    assert "agent.remote_write" not in _reasons()
    receiver.start()
    second = RemoteWriter("agent.remote_write", settings, tmp_path / "queue")
    second.start()
    try:
        wait_until(lambda: second.target.samples == 20)
    finally:
        second.close()
        receiver.stop()
