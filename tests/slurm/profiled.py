"""A cluster whose nodes all load the profile plugin, each with another thing at the other end."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bed import BedUnavailableError, Cluster
from tests.bed.daemon import Daemon
from tests.slurm.jobs import ALICE

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = REPOSITORY / "slurm-plugin" / "acct_gather_profile_prometheus.so"
TYPE = "AcctGatherProfileType=acct_gather_profile/prometheus"
#: Seconds for which the last samples stay in a gateway.
KEEP = 3
#: What the script says of a step: nanoseconds, exit code.
STEP = r"""
step() {
    begin=$(date +%s%N); srun --mem=50 "$@"; code=$?; end=$(date +%s%N)
    echo "step $((end - begin)) $code"
}
"""


def build() -> Path:
    """The plugin; the error says why it cannot be had here."""
    done = subprocess.run(
        [REPOSITORY / "scripts" / "plugin"], capture_output=True, text=True, timeout=280
    )
    if done.returncode == 3:
        raise BedUnavailableError(done.stderr.strip().removeprefix("jobsight: "))
    assert done.returncode == 0, done.stderr
    return PLUGIN


@contextmanager
def profiled(hosts: dict[str, str | None]) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """A node for each kind of host (None: without the plugin), and which node it is."""
    # Not in a test's own folder: slurmctld is not root and could not enter it.
    with tempfile.TemporaryDirectory(prefix="jobsight-plugin-") as plugins:
        os.chmod(plugins, 0o755)
        shutil.copy(build(), plugins)
        with _cluster(hosts, plugins) as cluster:
            nodes = dict(zip(hosts, cluster.nodes, strict=True))
            daemons = [_moved(cluster, nodes[kind], host) for kind, host in hosts.items()]
            for daemon in daemons:
                daemon.launch()
            for daemon in daemons:
                daemon.wait_ready()
            yield cluster, nodes


def _cluster(hosts: dict[str, str | None], plugins: str) -> Cluster:
    usual = next(path for path in Path("/usr/lib").glob("*/slurm-wlm") if path.is_dir())
    extra = (
        TYPE,
        f"PluginDir={usual}:{plugins}",
        # Real data of the network beside that of the tasks.
        "AcctGatherInterconnectType=acct_gather_interconnect/sysfs",
        "JobAcctGatherFrequency=task=1,network=1",
        # slurmd's log then holds each sample that Slurm took.
        "DebugFlags=Profile,NO_CONF_HASH",
        "SlurmdDebug=verbose",
    )
    files = {"acct_gather.conf": settings_of("http://127.0.0.1:1")}
    return Cluster.unused("g", nodes=len(hosts), extra=extra, files=files)


def settings_of(host: str | None) -> str:
    own = (
        f"ProfilePrometheusHost={host}\nProfilePrometheusDefault=none\n"
        f"ProfilePrometheusKeep={KEEP}\n"
        if host
        else ""
    )
    return f"SysfsInterfaces=lo\n{own}"


def _moved(cluster: Cluster, node: str, host: str | None) -> Daemon:
    """The node's slurmd, stopped, to be started with a configuration of its own."""
    shared, own = cluster.settings.path("etc"), cluster.settings.path(f"etc-{node}")
    shutil.copytree(shared, own, ignore=shutil.ignore_patterns("slurmdbd.conf"))
    (own / "acct_gather.conf").write_text(settings_of(host))
    if host is None:
        slurm = own / "slurm.conf"
        slurm.write_text(slurm.read_text().replace(TYPE + "\n", ""))
    cluster.stop_slurmd(node)
    daemon = cluster.daemon(f"slurmd.{node}")
    environment = {**daemon.environment, "SLURM_CONF": str(own / "slurm.conf")}
    return dataclasses.replace(daemon, environment=environment)


def submit(cluster: Cluster, node: str, profile: str, *lines: str) -> int:
    script = "\n".join(["#!/bin/bash", STEP, *lines, ""])
    return cluster.submit(
        ALICE, script, f"--nodelist={node}", f"--profile={profile}", "--ntasks=2", "--mem=150"
    )


def steps_of(cluster: Cluster, job: int) -> list[tuple[float, int]]:
    """Seconds and exit code of the job's steps, as the job itself saw them."""
    found = re.findall(r"^step (\d+) (\d+)$", cluster.output(ALICE, job), re.M)
    return [(int(nanoseconds) / 1e9, int(code)) for nanoseconds, code in found]


def slurm_samples(cluster: Cluster, node: str, job: int, step: str) -> list[dict[str, float]]:
    """Each sample of a task that Slurm gave to its plugin, from slurmd's log."""
    log = cluster.settings.path("log", f"slurmd.{node}.log").read_text(errors="replace")
    lines = re.findall(rf"\[{job}\.{step}\].*PROFILE-Task: (.*)$", log, re.M)
    return [
        {name: float(value) for name, value in (word.split("=") for word in line.split())}
        for line in lines
    ]


class Peaks:
    """The peak memory of every slurmstepd that lives in a time, in KiB, by its title."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    title = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if not title.startswith(b"slurmstepd: ["):
                        continue
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                peak = re.search(r"VmHWM:\s*(\d+)", status)
                if peak is not None:
                    self.found[title.strip(b"\0 ").decode()] = int(peak[1])

    def of(self, job: int, step: str) -> int:
        return self.found[f"slurmstepd: [{job}.{step}]"]


class Outcome(NamedTuple):
    """How a job went that another thing at the other end must not change."""

    seconds: float  # of its step, as the job saw it
    freed: float  # from the end of the job's script until its node was free again
    code: int
    memory: int  # KiB, the peak of its slurmstepd
    descriptors: int  # that a task has


def compare(cluster: Cluster, nodes: dict[str, str], seconds: float) -> dict[str, Outcome]:
    """The same job on each node at the same time."""
    line = f"step -n2 sh -c 'sleep {seconds}; echo open: /proc/self/fd/*; exit 7'; date +'end %s%N'"
    with Peaks() as peaks:
        jobs = {kind: submit(cluster, node, "task", line) for kind, node in nodes.items()}
        gone: dict[str, float] = {}
        while len(gone) < len(jobs):
            here = cluster.run(["squeue", "--noheader", "--format=%i"]).stdout.split()
            for kind, job in jobs.items():
                if str(job) not in here:
                    gone.setdefault(kind, time.time())
            time.sleep(0.05)
    outcomes = {}
    for kind, job in jobs.items():
        cluster.wait(job, "COMPLETED")
        ((took, code),) = steps_of(cluster, job)
        said = cluster.output(ALICE, job)
        (end,) = re.findall(r"^end (\d+)$", said, re.M)
        opened = re.findall(r"^open: (.*)$", said, re.M)
        freed = gone[kind] - int(end) / 1e9
        outcomes[kind] = Outcome(took, freed, code, peaks.of(job, "0"), len(opened[0].split()))
    return outcomes


def median(outcomes: list[Outcome]) -> Outcome:
    columns = zip(*outcomes, strict=True)
    return Outcome(*(statistics.median(column) for column in columns))  # type: ignore[arg-type]
