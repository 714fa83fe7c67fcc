"""The nodes: one slurmd each, all on this machine, with fake GPUs."""

import os
import stat
import subprocess
from collections.abc import Mapping

from tests.bed.daemon import Daemon, port_open
from tests.bed.settings import Settings

NVIDIA_MAJOR = 195


def prepare(settings: Settings) -> None:
    """Device nodes with NVIDIA's number and no driver: scheduling and environment are real."""
    for node in settings.node_names:
        settings.path("spool", node).mkdir(parents=True)
    settings.path("dev").mkdir(mode=0o755)
    for number in range(settings.gpus_per_node):
        path = settings.path("dev", f"gpu{number}")
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(NVIDIA_MAJOR, number))


def daemon(settings: Settings, node: str, port: int, environment: Mapping[str, str]) -> Daemon:
    def ready() -> bool:
        # The controller calls a node idle for a while after its slurmd has gone.
        if not port_open(port):
            return False
        state = subprocess.run(
            ["sinfo", "--noheader", "--Node", f"--nodes={node}", "--partition=main",
             "--format=%T"],
            env=dict(environment), capture_output=True, text=True, check=False,
        )  # fmt: skip
        return state.stdout.strip() in ("idle", "mixed", "allocated", "completing")

    return Daemon(
        f"slurmd.{node}",
        settings,
        ["slurmd", "-D", "-N", node],
        environment,
        ready,
        log=settings.path("log", f"slurmd.{node}.log"),
    )
