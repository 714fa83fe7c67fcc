"""The profile plugin loaded by a real slurmd: its samples arrive, and no job ever feels it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.bed import BedUnavailableError, Cluster
from tests.plugin.gateways import gateway, hanging
from tests.ports import free_port
from tests.prometheus.servers import Prometheus, Pushgateway, wait_for
from tests.slurm.jobs import ALICE, burn
from tests.slurm.profiled import (
    KEEP,
    REPOSITORY,
    Host,
    compare,
    profiled,
    slurm_samples,
    slurmd_log,
    step_daemons,
    submit,
)


class Plugged(NamedTuple):
    cluster: Cluster
    nodes: dict[str, str]
    gateway: Pushgateway
    prometheus: Prometheus


@pytest.fixture(scope="module")
def plugged(slurm_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    folder = tmp_path_factory.mktemp("plugin")
    folder.chmod(0o755)
    metrics = free_port()
    with ExitStack() as stack:
        pushgateway = Pushgateway(folder / "gateway")
        stack.callback(pushgateway.stop)
        prometheus = Prometheus(
            folder / "prometheus",
            "global: {scrape_interval: 250ms}\nscrape_configs:\n"
            "- job_name: gateway\n  honor_labels: true\n"
            f"  static_configs: [{{targets: ['127.0.0.1:{pushgateway.port}']}}]\n"
            "- job_name: agent\n"
            f"  static_configs: [{{targets: ['127.0.0.1:{metrics}']}}]\n",
        )
        stack.callback(prometheus.stop)
        hosts = {
            "gateway": Host(pushgateway.url),
            "default": Host(pushgateway.url, "task"),
            "agent": Host(f"unix:{folder}/run/profile.sock"),
            "without": Host(None),
            "stopped": Host(f"http://127.0.0.1:{free_port()}"),
            "hanging": Host(stack.enter_context(hanging())),
            "fails": Host(stack.enter_context(gateway(500)).url),
            "unresolvable": Host("http://gateway.invalid:9091"),
            "no agent": Host(f"unix:{folder}/nobody.sock"),
        }
        try:
            cluster, nodes = stack.enter_context(profiled(hosts))
        except BedUnavailableError as error:
            pytest.skip(f"the plugin cannot be tried here: {error}")
        stack.callback(start_agent(cluster, nodes["agent"], folder, metrics))
        yield Plugged(cluster, nodes, pushgateway, prometheus)


def start_agent(cluster: Cluster, node: str, folder: Path, port: int) -> Callable[[], object]:
    """The real agent; gives what ends it."""
    config = folder / "agent.toml"
    config.write_text(
        f'cluster = "{cluster.settings.name}"\n[agent]\nnode = "{node}"\n'
        f'spool = "{folder}/spool"\nrun_directory = "{folder}/run"\nonly_this_node = true\n'
        f'[agent.metrics]\nlisten = "127.0.0.1:{port}"\nkeep_ended = {KEEP}.0\n'
    )
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "jobsight.cli.main", "agent", "--config", str(config)],
            cwd=REPOSITORY,
            env=cluster.environment(),
            stdout=log,
            stderr=log,
        )
    wait_for((folder / "run" / "profile.sock").exists, 90, (folder / "agent.log").read_text)

    def end() -> None:
        agent.terminate()
        agent.wait(60)

    return end


WORK = f"step -n2 sh -c {shlex.quote(burn(0.6) + '; sleep 1.5')}"


def check_nothing_was_lost(plugged: Plugged, kind: str, job: int, here: str, ended: float) -> None:
    """The sums in Prometheus are those of all samples that Slurm took, the last among them."""
    for step, tasks in (("0", 2), ("1", 2), ("batch", 1)):
        taken = slurm_samples(plugged.cluster, plugged.nodes[kind], job, step)
        name = "jobsight_profile_cpu_seconds_total"
        sums = plugged.prometheus.query(
            f'max_over_time({name}{{{here},step="{step}"}}[10m])', ended + KEEP
        )
        assert len(sums) == tasks
        cpu = sum(float(one["value"][1]) for one in sums)
        assert cpu == pytest.approx(sum(one["CPUTime"] for one in taken), abs=0.001)
        assert cpu > 0.5 or step == "batch"
    dropped = f"max_over_time(jobsight_profile_dropped_samples_total{{{here}}}[10m])"
    found = plugged.prometheus.query(dropped, ended + KEEP)
    assert len(found) == 3
    # To a gateway the last sample of a task can overtake the one before it on a busy machine.
    most = {"agent": 0, "gateway": 2}[kind]
    assert max(int(one["value"][1]) for one in found) <= most


@pytest.mark.long
def test_samples_of_tasks_and_steps_arrive_in_prometheus_and_go(plugged: Plugged) -> None:
    cluster, nodes, prometheus = plugged.cluster, plugged.nodes, plugged.prometheus
    # The last samples of a step stay for as long as it ran.
    pushed = submit(cluster, nodes["gateway"], "all", WORK, WORK, "sleep 5")
    told = submit(cluster, nodes["agent"], "task", WORK, WORK)
    # By the default of the node: one that does not want it, and one that is cancelled.
    silent = submit(cluster, nodes["default"], "none", "step -n1 sleep 1")
    usual = submit(cluster, nodes["default"], None, "step -n1 sleep 100")
    at_gateway = f'job="{pushed}",instance="{nodes["gateway"]}"'
    at_agent = f'slurm_job="{told}",node="{nodes["agent"]}",cluster="{cluster.settings.name}"'
    # Each task has its own series, and the network another group.
    for expression, count in {
        f'RSS{{{at_gateway},step="0",group="task",task=~".+"}}': 2,
        f'InMB{{{at_gateway},step="0",group="network"}}': 1,
        f'jobsight_profile_resident_bytes{{{at_agent},step="0",task=~".+"}}': 2,
    }.items():
        found = f"max_over_time({expression}[10m]) > 0"
        wait_for(lambda e=found, c=count: len(prometheus.query(e)) == c, 60)
    wait_for(lambda: {part.state for part in cluster.queue(pushed)} == {"COMPLETED"}, 60)
    # The job is over for Slurm and its cgroups are gone while the last samples of its script stay.
    cgroups = f"*/slurm_{nodes['gateway']}/uid_*/job_{pushed}"
    wait_for(lambda: not list(Path("/sys/fs/cgroup").glob(cgroups)), 60)
    groups = {(group["job"], group["step"]) for group in plugged.gateway.groups()}
    assert (str(pushed), "batch") in groups
    (daemon,) = step_daemons(pushed, "batch")
    opened = [os.readlink(file) for file in (daemon / "fd").iterdir()]
    assert not [path for path in opened if str(cluster.work_folder(ALICE)) in path]
    assert os.readlink(daemon / "cwd") == "/"
    cluster.wait(pushed, "COMPLETED")
    cluster.wait(told, "COMPLETED")
    ended = time.time()
    by_default = f'RSS{{job="{usual}",step=~"0|batch",group="task",task="0"}}'
    wait_for(lambda: len(prometheus.query(by_default)) == 2, 60)
    cluster.cancel(usual)
    wait_for(lambda: not plugged.gateway.groups(), 90)
    gone = f"RSS{{{at_gateway}}} or jobsight_profile_resident_bytes{{{at_agent}}}"
    wait_for(lambda: not prometheus.query(gone), 90)
    assert not prometheus.query(f'max_over_time(RSS{{job="{silent}"}}[10m])')
    assert not prometheus.query("max_over_time(RSS{step='extern'}[10m])")
    check_nothing_was_lost(plugged, "gateway", pushed, at_gateway, ended)
    check_nothing_was_lost(plugged, "agent", told, at_agent, ended)


def test_no_fault_at_the_other_end_reaches_a_job(plugged: Plugged) -> None:
    cluster, nodes = plugged.cluster, plugged.nodes
    outcomes = compare(cluster, nodes, 4)
    without = outcomes["without"]
    assert without.code == 7
    for kind, outcome in outcomes.items():
        assert outcome.code == 7, kind
        # What it costs in time is a figure of bench/bench_plugin.py; that no hook waits for the
        # other end is in tests/plugin.
        assert outcome.memory < without.memory + 1024, kind
        assert outcome.descriptors == without.descriptors, kind
    for kind, reason in {
        "stopped": "Connection refused",
        "hanging": "no answer in time",
        "fails": "the gateway answers 500",
        "unresolvable": "its name cannot be resolved",
        "no agent": "No such file or directory",
    }.items():
        # Once for the script and once for its step in the node's log, never in the user's output.
        assert slurmd_log(cluster, nodes[kind]).count(f"samples cannot be sent: {reason}") == 2
    outputs = cluster.work_folder(ALICE).glob("slurm-*.out")
    assert not [path for path in outputs if "prometheus" in path.read_text()]
