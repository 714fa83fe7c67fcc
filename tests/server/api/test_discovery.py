"""Prometheus finds the agents by asking the server, with the configuration that we ship."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from jobsight.agent.exporter.exporter import Exporter, Lines
from jobsight.agent.exporter.http import Endpoint
from jobsight.config.settings import MetricsSettings, Settings
from jobsight.model import SECOND
from jobsight.prometheus.names import AGENT
from jobsight.server.api.health import target_groups
from jobsight.server.serve import BackgroundServer
from jobsight.store.store import Store
from jobsight.transport import wire
from tests.prometheus.batches import batch
from tests.prometheus.servers import Prometheus, wait_for

DEPLOY = Path(__file__).parents[3] / "deploy" / "prometheus"


def test_agents_by_cluster_and_silence(location: str) -> None:
    with Store.open(location) as store:
        for number, (cluster, node) in enumerate((("b", "n2"), ("a", "fe80::1"), ("a", "n1"))):
            sent = msgspec.structs.replace(
                batch(1), cluster=cluster, node=node, spool=f"{number:032d}", parts=[], jobs=[]
            )
            assert store.write(sent, (number + 1) * SECOND)

        def targets(cluster: str | None = None, since: int = 0) -> list[str]:
            found = target_groups(store, cluster=cluster, port=9306, since=since)
            return [one for group in found for one in group.targets]

        assert targets() == ["[fe80::1]:9306", "n1:9306", "n2:9306"]
        assert targets("b") == ["n2:9306"]
        assert targets(since=3 * SECOND) == ["n1:9306"]


@pytest.mark.server
def test_a_real_prometheus_finds_a_real_agent(tmp_path: Path) -> None:
    exporter = Exporter()
    jobs = AGENT["jobsight_agent_jobs"]
    exporter.sources.append(lambda: [Lines(jobs, f'{jobs.name}{{cluster="c",node="x"}} 3\n')])
    endpoint = Endpoint(exporter, MetricsSettings(listen="127.0.0.1:0"))
    endpoint.open()
    endpoint.start()
    settings = Settings()
    settings.store.location = str(tmp_path / "store" / "store.db")
    settings.server.port = 0
    sent = msgspec.structs.replace(batch(1), node="127.0.0.1", parts=[], written=time.time_ns())
    with BackgroundServer(settings) as server:
        url = f"{server.url}/api/v1/batches"
        allowed = {"Authorization": f"Bearer {server.token}"}
        request = urllib.request.Request(url, wire.encode(sent), allowed)
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert reply.status == 200
        discovery = f"{server.url}/api/v1/discovery"
        with urllib.request.urlopen(
            urllib.request.Request(discovery, headers=allowed), timeout=60
        ) as reply:
            assert reply.headers["Content-Type"] == "application/json"
            (group,) = json.load(reply)
        assert group["targets"] == ["127.0.0.1:9306"]
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(discovery, timeout=60)
        refused.value.close()

        shipped = (DEPLOY / "prometheus.yml").read_text()
        for old, new in (
            ("http://127.0.0.1:8080/api/v1/discovery", f"{discovery}?port={endpoint.port}"),
            ("/etc/prometheus/jobsight-token", str(server.token_file)),
            ("- jobsight-rules.yml", f"- {DEPLOY / 'jobsight-rules.yml'}"),
            ("scrape_interval: 15s", "scrape_interval: 500ms"),
            ("refresh_interval: 1m", "refresh_interval: 1s"),
        ):
            assert old in shipped
            shipped = shipped.replace(old, new)
        prometheus = Prometheus(tmp_path / "prometheus", shipped)
        try:
            wait_for(lambda: prometheus.value('up{job="jobsight"}') == 1, 60)
            (found,) = prometheus.query(jobs.name)
            assert found["value"][1] == "3"
            labels = found["metric"]
            assert (labels["instance"], labels["node"]) == ("127.0.0.1", "x")
        finally:
            prometheus.stop()
            endpoint.close()
