"""A cluster whose nodes all load the profile plugin, each with another thing at the other end."""

from __future__ import annotations

import contextlib
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
from tests.bed.configuration import Configuration
from tests.bed.daemon import Daemon
from tests.bed.state import State
from tests.slurm.jobs import ALICE

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = REPOSITORY / "slurm-plugin" / "acct_gather_profile_prometheus.so"
TYPE = "AcctGatherProfileType=acct_gather_profile/prometheus"
#: Seconds for which the last samples stay in a gateway.
KEEP = 15
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


class Host(NamedTuple):
    """What a node's acct_gather.conf says; no address is a node without the plugin."""

    address: str | None
    default: str = "none"

    def settings(self) -> str:
        own = (
            f"ProfilePrometheusHost={self.address}\nProfilePrometheusDefault={self.default}\n"
            f"ProfilePrometheusKeep={KEEP}\n"
        )
        return f"SysfsInterfaces=lo\n{own if self.address else ''}"


@contextmanager
def profiled(hosts: dict[str, Host]) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """A cluster with a node for each kind of host, and which node it is."""

    class Profiled(Cluster):
        """Each slurmd has a configuration of its own."""

        def _own(self, node: str) -> Path:
            return self.settings.path(f"etc-{node}")

        def _write_files(self, state: State) -> Configuration:
            written = super()._write_files(state)
            for node, host in zip(self.nodes, hosts.values(), strict=True):
                shutil.copytree(
                    self.settings.path("etc"),
                    self._own(node),
                    ignore=shutil.ignore_patterns("slurmdbd.conf"),
                )
                (self._own(node) / "acct_gather.conf").write_text(host.settings())
                slurm = self._own(node) / "slurm.conf"
                if host.address is None:
                    slurm.write_text(slurm.read_text().replace(TYPE + "\n", ""))
            return written

        def daemons(self) -> list[Daemon]:
            return [self._moved(daemon) for daemon in super().daemons()]

        def _moved(self, daemon: Daemon) -> Daemon:
            kind, _, node = daemon.name.partition(".")
            if kind != "slurmd":
                return daemon
            place = {"SLURM_CONF": str(self._own(node) / "slurm.conf")}
            return dataclasses.replace(daemon, environment={**daemon.environment, **place})

    # Not in a test's own directory: slurmctld is not root and could not enter it.
    with tempfile.TemporaryDirectory(prefix="jobsight-plugin-") as plugins:
        os.chmod(plugins, 0o755)
        shutil.copy(build(), plugins)
        # The controller loads the plugin in any case, and wants to know its host.
        some = next(host for host in hosts.values() if host.address)
        with Profiled.unused(
            "g",
            nodes=len(hosts),
            extra=slurm_settings(plugins),
            files={"acct_gather.conf": some.settings()},
        ) as cluster:
            yield cluster, dict(zip(hosts, cluster.nodes, strict=True))


def slurm_settings(plugins: str) -> tuple[str, ...]:
    usual = next(path for path in Path("/usr/lib").glob("*/slurm-wlm") if path.is_dir())
    return (
        TYPE,
        f"PluginDir={usual}:{plugins}",
        # Real data of the network alongside that of the tasks.
        "AcctGatherInterconnectType=acct_gather_interconnect/sysfs",
        "JobAcctGatherFrequency=task=1,network=1",
        # slurmd's log then holds each sample that Slurm took.
        "DebugFlags=Profile,NO_CONF_HASH",
        "SlurmdDebug=verbose",
    )


def submit(cluster: Cluster, node: str, profile: str | None, *lines: str) -> int:
    script = "\n".join(["#!/bin/bash", STEP, *lines, ""])
    wanted = [f"--profile={profile}"] if profile else []
    return cluster.submit(ALICE, script, f"--nodelist={node}", "--ntasks=2", "--mem=150", *wanted)


def steps_of(cluster: Cluster, job: int) -> list[tuple[float, int]]:
    """Seconds and exit code of the job's steps, as the job itself saw them."""
    found = re.findall(r"^step (\d+) (\d+)$", cluster.output(ALICE, job), re.M)
    return [(int(nanoseconds) / 1e9, int(code)) for nanoseconds, code in found]


def slurmd_log(cluster: Cluster, node: str) -> str:
    return cluster.settings.path("log", f"slurmd.{node}.log").read_text(errors="replace")


def slurm_samples(cluster: Cluster, node: str, job: int, step: str) -> list[dict[str, float]]:
    """Each sample of a task that Slurm gave to its plugin, from slurmd's log."""
    lines = re.findall(rf"\[{job}\.{step}\].*PROFILE-Task: (.*)$", slurmd_log(cluster, node), re.M)
    return [
        {name: float(value) for name, value in (word.split("=") for word in line.split())}
        for line in lines
    ]


def step_daemons(job: int, step: str) -> list[Path]:
    """The directories in /proc of a step's slurmstepd processes."""
    wanted = f"slurmstepd: [{job}.{step}]".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes().startswith(wanted):
                found.append(folder)
    return found


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
