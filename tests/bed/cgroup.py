"""The cgroups of the bed's nodes: which kind there is, where a job's are, and how they go away.

Only `slurm_<node>` (v1) and `system.slice/<node>_slurmstepd.scope` (v2) of the bed's own node
names are ever written to or removed. Everything else below the mount belongs to the machine.
"""

import os
import re
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.bed import process
from tests.bed.errors import BedError, BedUnavailableError

ROOT = Path("/sys/fs/cgroup")
V1_CONTROLLERS = ("cpuacct", "cpuset", "devices", "freezer", "memory")
# "memory" must not be the last word of cgroup.controllers: Slurm 22.05 reads it with its newline
# and then believes that there is no memory controller. "pids" behind it keeps it in sight.
V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")


def kind(wanted: str, root: Path = ROOT) -> str:
    """The cgroup version to run with: `v1` or `v2`."""
    hierarchies = Path("/proc/self/cgroup").read_text().splitlines()
    # Slurm's v2 plugin refuses to run as long as any v1 hierarchy is alive anywhere.
    pure_v2 = (root / "cgroup.controllers").exists() and len(hierarchies) == 1
    lacking = [name for name in V1_CONTROLLERS if not (root / name / "tasks").exists()]
    if wanted == "v2" and not pure_v2:
        raise BedUnavailableError(f"cgroup v2 needs to be alone on {root}, and v1 is alive here")
    if wanted == "v2" or (wanted == "auto" and pure_v2):
        return "v2"
    if lacking:
        raise BedUnavailableError(f"cgroup v1 lacks {', '.join(lacking)} below {root}")
    return "v1"


def prepare(nodes: list[str], root: Path = ROOT) -> None:
    """Without systemd nobody makes the scopes of cgroup v2, so the bed does."""
    scopes = [root / "system.slice" / f"{node}_slurmstepd.scope" for node in nodes]
    for folder in [root, root / "system.slice", *scopes]:
        folder.mkdir(exist_ok=True)
        for controller in V2_CONTROLLERS:
            with suppress(OSError):  # not every kernel has every one
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def of_job(version: str, job_id: int, node: str, hierarchy: str, root: Path = ROOT) -> Path | None:
    if version == "v2":
        pattern = f"system.slice/{node}_slurmstepd.scope/job_{job_id}"
    else:
        pattern = f"{hierarchy}/slurm_{node}/uid_*/job_{job_id}"
    return next(root.glob(pattern), None)


def tops(node: re.Pattern[str], root: Path = ROOT) -> list[Path]:
    """The topmost cgroups of all nodes whose names match, in every hierarchy."""
    v1 = re.compile(rf"slurm_{node.pattern}")
    v2 = re.compile(rf"{node.pattern}_slurmstepd\.scope")
    found = [
        path
        for hierarchy in root.iterdir()
        if hierarchy.is_dir() and not hierarchy.is_symlink()
        for path in hierarchy.glob("slurm_*")
        if v1.fullmatch(path.name)
    ]
    scopes = [path for path in root.glob("system.slice/*.scope") if v2.fullmatch(path.name)]
    return found + scopes


def thaw(node: re.Pattern[str], root: Path = ROOT) -> None:
    """Let the processes of suspended jobs go on: a frozen process does not even die."""
    for top in tops(node, root):
        for folder, _, _ in os.walk(top):
            _thaw(Path(folder))


def empty(node: re.Pattern[str], root: Path = ROOT, timeout: float = 60.0) -> None:
    """End every process in the nodes' cgroups and remove the cgroups, deepest first."""
    deadline = time.monotonic() + timeout
    while remaining := tops(node, root):
        folders = [Path(path) for top in remaining for path, _, _ in os.walk(top, topdown=False)]
        for folder in folders:
            _thaw(folder)
        process.end(_members(folders), partial(_is_member, folders))
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()
        if time.monotonic() > deadline:
            raise BedError(f"these cgroups could not be removed: {' '.join(map(str, remaining))}")
        if tops(node, root):
            time.sleep(0.05)
    if not Path("/run/systemd/system").exists():
        with suppress(OSError):  # somebody else's scope may be in it
            (root / "system.slice").rmdir()


def _thaw(folder: Path) -> None:
    for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        with suppress(OSError):
            if (folder / name).exists():
                (folder / name).write_text(value)


def _is_member(folders: list[Path], pid: int) -> bool:
    return pid in _members(folders)


def _members(folders: list[Path]) -> set[int]:
    pids: set[int] = set()
    for folder in folders:
        with suppress(OSError):
            pids.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
    return pids
