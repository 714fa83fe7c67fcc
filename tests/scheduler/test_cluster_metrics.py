"""The cluster's gauges: right sums, bounded, and to promtool's liking."""

import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from jobsight.config.settings import Settings, StoreSettings
from jobsight.model import SECOND
from jobsight.scheduler.cluster_metrics import (
    count_cluster,
    count_findings,
    count_health,
    exposition,
)
from jobsight.scheduler.sinks.feeder import set_sink_checkpoint
from jobsight.scheduler.state import ScrapeState, write_state
from jobsight.server.app import create_app
from jobsight.server.serve import BackgroundServer
from jobsight.store.findings.read import totals_by_kind
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store
from tests.prometheus.servers import Prometheus, wait_for
from tests.scheduler.sinks.site import START, node, record
from tests.store.findings.sample import add_findings, finding
from tests.store.sample import find
from tests.store.sample import info as sample_info

NODES = [
    node("n1"),
    node("n2", state="IDLE", cpus_allocated=0, gres_used={}, reservation="course"),
    node("n3", state_flags=("DRAIN",), gres={"gpu:a100": 4, "gpu:1g.5gb": 7}, gres_used={}),
    node('n"4', state="DOWN", cpus_allocated=None, gres={}, gres_used={}),
]
JOBS = [
    record(1, end=None, state="RUNNING"),
    record(2, end=None, state="RUNNING", partition="gpu"),
    record(3),
    record(4, None, array_tasks="1-9:2,20%4"),
    record(5, None, array_tasks="1-1000,..."),
]


def values(text: str) -> dict[str, dict[str, float]]:
    """Family -> label values, joined -> value."""
    return {
        family.name: {
            "/".join(
                label for name, label in sample.labels.items() if name != "cluster"
            ): sample.value
            for sample in family.samples
        }
        for family in text_string_to_metric_families(text)
    }


def test_cpus_and_gpus_by_state_and_reservation() -> None:
    found = values(exposition([count_cluster("c1", NODES, JOBS)]))
    assert found["slurm_cpus_alloc"] == {"None": 6, "course": 0}
    assert found["slurm_cpus_idle"] == {"None": 5, "course": 8}
    # What runs on a draining node is allocated, the rest of it is lost.
    assert found["slurm_cpus_drain"] == {"None": 5 + 8, "course": 0}
    assert found["slurm_cpus_total"] == {"None": 24, "course": 8}
    assert found["slurm_gpus_alloc"] == {"a100/None": 1, "a100/course": 0, "1g.5gb/None": 0}
    assert found["slurm_gpus_idle"] == {"a100/None": 3, "a100/course": 4, "1g.5gb/None": 0}
    assert found["slurm_gpus_drain"] == {"a100/None": 4, "a100/course": 0, "1g.5gb/None": 7}
    assert found["slurm_node_states"]['n"4/down'] == 1
    assert len(found["slurm_node_states"]) == len(NODES)
    assert found["jobsight_cluster_nodes"] == {"mixed": 1, "idle": 1, "drain": 1, "down": 1}
    # Waiting tasks of an array are one record and several jobs.
    assert found["slurm_job_states"] == {"running": 2, "pending": 6 + 1000}
    assert found["slurm_partitions"] == {"main": 1 + 1006, "gpu": 1}


def test_the_server_gives_them_and_the_health(tmp_path: Path) -> None:
    location = tmp_path / "store.db"
    with Store.open(location) as store:
        for cluster in ("c1", "c2"):
            counted = count_cluster(cluster, NODES, JOBS)
            Snapshot(store.database, cluster).replace("cluster_metrics", [("all", counted)])
        write_state(store.database, ScrapeState(cluster="c1", attempted=1, succeeded=1))
        write_state(store.database, ScrapeState(cluster="c2", attempted=1, reason="squeue failed"))
        client = TestClient(create_app(store, "t" * 20), base_url="http://localhost")
        assert client.get("/metrics").status_code == 401
        client.headers["Authorization"] = f"Bearer {'t' * 20}"
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(answer.text))
        assert len({family.name for family in families}) == len(families)
        success = {
            sample.labels["cluster"]: sample.value
            for family in families
            if family.name == "jobsight_scrape_success"
            for sample in family.samples
        }
        assert success == {"c1": 1, "c2": 0}
        set_sink_checkpoint(store, "mongodb", 0, "MongoDB does not take the jobs: away")
        health = client.get("/api/v1/health").json()
        assert not health["healthy"]
        assert [(each["cluster"], each["reason"]) for each in health["clusters"]] == [
            ("c1", ""), ("c2", "squeue failed"),
        ]  # fmt: skip
        assert health["sinks"][0]["reason"].endswith("away")


@pytest.mark.server
def test_a_real_prometheus_scrapes_the_server(tmp_path: Path) -> None:
    settings = Settings(cluster="c1", store=StoreSettings(location=str(tmp_path / "store.db")))
    settings.server.port = 0
    with BackgroundServer(settings) as server:
        with Store.open(settings.store.location) as store:
            counted = count_cluster("c1", NODES, JOBS)
            Snapshot(store.database, "c1").replace("cluster_metrics", [("all", counted)])
        text = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text()
        shipped = text.partition("```yaml\n")[2].partition("```")[0]
        for old, new in (
            ("/etc/prometheus/jobsight-token", str(server.token_file)),
            ("127.0.0.1:8080", server.url.removeprefix("http://")),
        ):
            assert old in shipped
            shipped = shipped.replace(old, new)
        often = f"global: {{scrape_interval: 1s}}\n{shipped}"
        prometheus = Prometheus(tmp_path / "prometheus", often)
        try:
            wait_for(lambda: prometheus.value('up{job="jobsight-server"}') == 1, 60)
            idle = 'sum(slurm_cpus_idle{cluster="c1"})'
            wait_for(lambda: prometheus.value(idle) == 13, 60)
            assert prometheus.value('slurm_gpus_alloc{type="a100",reservation="None"}') == 1
            assert prometheus.value('slurm_job_states{name="pending"}') == 1006
        finally:
            prometheus.stop()


def test_promtool_likes_them() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool (Debian's package prometheus) is not here")
    state = ScrapeState(cluster="c1", attempted=START * SECOND, succeeded=START * SECOND)
    text = exposition([count_cluster("c1", NODES, JOBS), count_health(state, (START + 5) * SECOND)])
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    complaints = checked.stderr.splitlines()
    # petricore's own names may be disliked; ours may not.
    assert [line for line in complaints if line.startswith("jobsight")] == []
    assert "error while linting" not in checked.stderr


def test_findings_are_counted_by_kind(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        store.record_jobs([sample_info(1, end=START * SECOND, state="COMPLETED", user="anna")])
        run = find(store, "1")
        add_findings(store, run, finding("idle", gpu_time=7_200_000_000), finding("[x]"))
        text = exposition(count_findings(totals_by_kind(store.database)))
    found = values(text)
    assert found["jobsight_findings"] == {"[x]": 1, "idle": 1}
    assert found["jobsight_findings_gpu_hours"] == {"idle": 2}
    assert "anna" not in text
