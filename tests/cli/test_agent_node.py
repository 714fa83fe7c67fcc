"""A real agent on a node without jobs: its own time series reach the store."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobsight.server.receiver import Receiver
from jobsight.store.read.node_days import series_of_node
from jobsight.store.store import Store
from tests.waiting import wait_until

pytestmark = pytest.mark.root


def _run(tmp_path: Path, interval: str, until_spooled: bool) -> list[bytes]:
    spool = tmp_path / f"spool {interval}"
    file = tmp_path / "site.toml"
    file.write_text(
        f'cluster = "alpha"\n[agent]\nnode = "n9"\nspool = "{spool}"\n'
        f'run_directory = "{tmp_path / "run"}"\nnode_interval = {interval}\nquery_slurm = false\n'
        # Jobs of other tests may run on this machine; they are none of this node.
        f'cgroup_roots = ["none"]\ncgroup_scopes = ["none"]\n'
        f'samplers = []\n[agent.metrics]\nlisten = ""\n[store]\nlocation = "{tmp_path / "no.db"}"\n'
    )
    log = tmp_path / "log"
    with open(log, "wb") as written:
        agent = subprocess.Popen(
            [sys.executable, "-m", "jobsight.cli.main", "agent", "--config", str(file)],
            stdout=written, stderr=written,
        )  # fmt: skip
    try:
        wait_until(lambda: b"started" in log.read_bytes() or agent.poll() is not None, 60)
        if until_spooled:
            wait_until(lambda: any(spool.glob("*.batch")) or agent.poll() is not None, 60)
        assert agent.poll() is None, log.read_text()
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)
    return [batch.read_bytes() for batch in sorted(spool.glob("*.batch"))]


def test_an_agent_without_jobs_sends_the_node(tmp_path: Path) -> None:
    sent = _run(tmp_path, "1", until_spooled=True)
    with Store.open(tmp_path / "store.db") as store:
        receiver = Receiver(store)
        for data in sent:
            assert receiver.accept(data).left_out == 0
        metrics = ("node.memory.total", "node.cpu.user", "node.load.1m")
        series = series_of_node(store.database, "alpha", "n9", metrics, 0, 2**62)
        assert series is not None
        assert series.columns.keys() == set(metrics)
        # The first sample, those of whole batches, and the last ones when it was stopped.
        assert len(series.times) >= 1
        text = Path("/proc/meminfo").read_text().split()
        assert set(series.columns["node.memory.total"].tolist()) == {int(text[1]) * 1024}
        assert store.count_runs() == 0


def test_an_agent_that_is_told_not_to_sends_nothing(tmp_path: Path) -> None:
    assert _run(tmp_path, "false", until_spooled=False) == []
