"""Prometheus finds the agents by asking the server, with the configuration that we ship."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from jobsight.agent.exporter.exporter import Exporter, Lines
from jobsight.agent.exporter.http import Endpoint
from jobsight.config.settings import MetricsSettings, Settings
from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.prometheus.names import AGENT
from jobsight.scheduler.records import NodeInfo
from jobsight.server.api.health import listed_nodes, target_groups
from jobsight.server.serve import BackgroundServer
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store
from jobsight.transport import wire
from tests.prometheus.batches import batch
from tests.prometheus.servers import Prometheus, wait_for

DEPLOY = Path(__file__).parents[3] / "deploy" / "prometheus"


def test_agents_by_cluster_and_silence(location: str) -> None:
    with Store.open(location) as store:
        for number, (cluster, node) in enumerate((("b", "n2"), ("a", "n0"), ("a", "n1"))):
            sent = msgspec.structs.replace(
                batch(1), cluster=cluster, node=node, spool=f"{number:032d}", parts=[], jobs=[]
            )
            assert store.write(sent, (number + 1) * SECOND)

        def targets(cluster: str | None = None, since: int = 0) -> list[str]:
            found = target_groups(store, cluster=cluster, port=9306, since=since)
            return [one for group in found for one in group.targets]

        assert targets() == ["n0:9306", "n1:9306", "n2:9306"]
        assert targets("b") == ["n2:9306"]
        assert targets(since=3 * SECOND) == ["n1:9306"]


FORGED = (
    *("169.254.169.254", "evil.example.org", "fe80::1", "n1:80/x", "user@n1", "-n1", "n1-", "n_1"),
    *("n" * 64, "12", "a..b", ".n1", "n1."),
)


def register(store: Store, cluster: str, nodes: Iterable[str]) -> None:
    for node in nodes:
        sent = msgspec.structs.replace(
            batch(1), cluster=cluster, node=node, spool=uuid.uuid4().hex, parts=[], jobs=[]
        )
        store.write(sent, SECOND)


def targets_of(store: Store, *listed: str) -> list[str]:
    names = listed_nodes(listed)
    groups = target_groups(store, cluster=None, port=1, since=0, listed=names)
    return [target.removesuffix(":1") for group in groups for target in group.targets]


def test_names_that_lead_prometheus_elsewhere_are_not_offered(location: str) -> None:
    with Store.open(location) as store:
        register(store, "a", (*FORGED, "n1"))
        # Nobody knows the nodes: a name that is resolved within the site.
        assert targets_of(store) == ["n1"]
        assert targets_of(store, "n[1-4].cluster.example.org") == []
        register(store, "a", ["n2.cluster.example.org"])
        assert targets_of(store, "n[1-4].cluster.example.org") == ["n2.cluster.example.org"]
        # An address is no name, even if it is listed.
        assert targets_of(store, "169.254.169.254,n1") == ["n1"]


def test_with_a_scheduler_only_its_nodes_are_offered(location: str) -> None:
    with Store.open(location) as store:
        register(store, "a", ["n1", "ldap", "n2", "n3.example.org"])
        register(store, "b", ["n7"])
        known = [NodeInfo(cluster="a", name=name) for name in ("n1", "n3.example.org")]
        Snapshot(store.database, "a").replace("node", [(node.name, node) for node in known])
        assert targets_of(store) == ["n1", "n3.example.org", "n7"]
        assert targets_of(store, "ldap") == ["ldap", "n1", "n3.example.org"]


def test_an_invalid_list_of_nodes_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"server\.discovery_nodes"):
        listed_nodes(["n[1-"])


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
    sent = msgspec.structs.replace(batch(1), node="localhost", parts=[], written=time.time_ns())
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
        assert group["targets"] == ["localhost:9306"]
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
            assert (labels["instance"], labels["node"]) == ("localhost", "x")
        finally:
            prometheus.stop()
            endpoint.close()
