"""The server's own families: what is counted, and what is silent."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from jobsight.model import SECOND
from jobsight.scheduler.records import NodeInfo
from jobsight.server.own_metrics import SILENT_AFTER, count_agents
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store
from jobsight.transport.tls import certificate_end
from tests.server.batches import batch


def test_a_node_with_jobs_and_without_batches_is_silent(store: Store) -> None:
    sent = batch(12)
    assert store.write(sent)
    cluster, node = sent.cluster, sent.node
    now = time.time_ns()
    assert count_agents(store, now)["agents_silent"] == []
    nodes = [
        NodeInfo(cluster=cluster, name=node, state="MIXED"),
        NodeInfo(cluster=cluster, name="never-heard", state="ALLOCATED"),
        NodeInfo(cluster=cluster, name="without-jobs", state="IDLE"),
        NodeInfo(cluster=cluster, name="down", state="DOWN"),
    ]
    Snapshot(store.database, cluster).replace("node", [(each.name, each) for each in nodes])
    counted = count_agents(store, now)
    assert counted["agents"] == [({"cluster": cluster}, 1)]
    assert counted["agents_silent"] == [({"cluster": cluster}, 1)]
    later = count_agents(store, now + SILENT_AFTER + 60 * SECOND)
    assert later["agents_silent"] == [({"cluster": cluster}, 2)]


def test_the_end_of_a_certificate(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "10", "-subj", "/CN=x"]
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    end = certificate_end(certificate)
    assert end is not None
    assert 9 * 86400 < end - time.time() < 11 * 86400
    assert certificate_end(tmp_path / "nothing.pem") is None
    certificate.write_text("no certificate")
    assert certificate_end(certificate) is None
