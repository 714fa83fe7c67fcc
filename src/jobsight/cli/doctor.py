"""``jobsight doctor``: which sources this machine has, each tried and not derived from a version,
and whether the installation works from both ends.

:func:`examine` tries what can be measured, :func:`summary` gives the consequences, and
:func:`installation` tries the way to the server, or the parts of the server on its host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobsight.agent.launch.cgroup import Hierarchies, create_cgroup, find_hierarchies
from jobsight.agent.processes.netlink import (
    EXEC,
    EXIT,
    FORK,
    Connector,
    EventsUnavailable,
    Taskstats,
)
from jobsight.agent.samplers.readings import Background
from jobsight.cli.arguments import CommandParser, add_config_option, add_json_option
from jobsight.cli.checks import Check
from jobsight.cli.output import write_json
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.util.units import format_bytes

if TYPE_CHECKING:
    from jobsight.agent.samplers.node import Node

#: What a verdict is called, and its ANSI colour.
_MARKS = {
    "good": ("yes", "32"),
    "partly": ("part", "33"),
    "missing": ("no", "31"),
    "fault": ("FAIL", "1;31"),
}
_BOLD, _DIM = "1", "2"
#: A machine is complete without these.
_OPTIONAL = ("Slurm", "GPU", "server")


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("doctor", doctor.__doc__)
    add_json_option(parser)
    add_config_option(parser)
    return parser.run(doctor, arguments)


def doctor(*, json: bool, config: str | None) -> int:
    """Show what can be measured on this machine, and whether the installation works.

    Each source is tried: the command starts child processes and reads their events. The settings
    are those that the agent would use: store, spool, server and Slurm's commands are taken from
    them.

    With server.url the way to the server is tried as well: address, certificate and its end, clock,
    token, versions. On the host of a server its store, certificate, health, Slurm, sinks, mail
    and archive are tried. What fails is shown with what to type; the exit code is then 1.
    """
    settings = load_settings(config)
    checks = [*examine(settings), *installation(settings)]
    faults = [check for check in checks if check.verdict == "fault"]
    if json:
        write_json({"checks": checks, "therefore": summary(checks)})
        return 1 if faults else 0
    styled = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if styled else 1000
    for line in _lines(checks, styled, width):
        print(line)
    return 1 if faults else 0


def installation(settings: Settings) -> list[Check]:
    """From a node to its server, or the server's own parts."""
    if settings.server.url is not None:
        from jobsight.cli.connection_checks import connection_checks

        return connection_checks(settings)
    if not _is_server(settings):
        return [_no_server()]
    from jobsight.cli.server_checks import server_checks

    return server_checks(settings)


def _is_server(settings: Settings) -> bool:
    """Whether a server runs here, or the settings are those of one."""
    own = settings.server
    return bool(
        settings.scrapes()
        or own.tls_certificate
        or own.allowed_hosts
        or paths.server_file(settings.store.location).exists()
    )


def _lines(checks: list[Check], styled: bool, width: int) -> Iterator[str]:
    """Plain text: a compute node has no rich."""

    def style(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if styled else text

    column = max(len(check.name) for check in checks)
    indent = " " * (column + 6)
    for check in checks:
        word, colour = _MARKS[check.verdict]
        if check.verdict == "missing" and check.name in _OPTIONAL:
            colour = _DIM
        first, *more = textwrap.wrap(check.found, max(20, width - len(indent))) or [""]
        name = style(f"{check.name:<{column}}", _BOLD)
        yield f"{name} {style(f'{word:<4}', colour)} {first}"
        yield from (indent + line for line in more)
        for line in textwrap.wrap(check.therefore, max(20, width - len(indent))):
            yield indent + style(line, _DIM)
        for line in textwrap.wrap(check.todo and f"-> {check.todo}", max(20, width - len(indent))):
            yield indent + line
    yield ""
    yield "Therefore, for jobs on this machine:"
    for sentence in summary(checks):
        title, _, rest = sentence.partition(":")
        yield f"  {style(title, _BOLD)}:{rest}"


_SLURM_COMMANDS = ("sacct", "squeue", "sinfo", "scontrol", "sstat")
#: Seconds after which a driver does not answer.
_GPU_TIMEOUT = 10.0
#: Less room than this and a spool or store will soon be full.
_LITTLE_ROOM = 2**30


def examine(settings: Settings) -> list[Check]:
    """Try everything, in the order in which it matters."""
    checks: list[Callable[[], Check]] = [
        _privileges,
        _cgroup_mounts,
        _own_cgroup,
        _process_events,
        _exit_records,
        _kernel_children,
        lambda: _slurm(settings),
        _graphics,
        lambda: _disk(settings),
    ]
    return [check() for check in checks]


def summary(checks: list[Check]) -> list[str]:
    """What will be exact, polled or missing, for `jobsight run` and the agent on this machine."""
    found = {check.name: check.verdict for check in checks}
    events = found["process connector"] == "good" and found["exit records"] != "missing"
    cgroup = found["own cgroup"]
    return [
        "CPU time of a job: "
        + ("exact, from its cgroup" if cgroup != "missing" else "exact at its end, from rusage"),
        "CPU time by executable: "
        + (
            "exact, from exit records; every execution counted" if events else "polled, an estimate"
        ),
        "memory: "
        + (
            "exact, from its cgroup"
            if cgroup == "good"
            else "polled, an estimate (sum over processes)"
        ),
        "I/O: "
        + ("exact to 1 KiB a process, ended ones included" if events else "polled, an estimate"),
        "GPU: "
        + {
            "good": "means and counters over the whole time; the busy parts of each GPU",
            "partly": "a part of the figures; see above",
            "missing": "missing, there is none",
        }[found["GPU"]],
    ]


def _privileges() -> Check:
    capabilities = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            capabilities = int(line.split()[1], 16)
    if os.geteuid() == 0:
        network = bool(capabilities >> 12 & 1)
        return Check(
            "privileges",
            "good" if network else "partly",
            "root" if network else "root without CAP_NET_ADMIN",
            "process events can be requested" if network else "no process events",
        )
    return Check(
        "privileges",
        "partly",
        f"user {os.geteuid()}",
        "the split by executable is polled; run the agent as root for exact figures",
    )


def _cgroup_mounts() -> Check:
    found = find_hierarchies()
    parts = list(_describe(found))
    if not parts:
        return Check("cgroups", "missing", "no hierarchy is mounted", "jobs are process trees")
    return Check("cgroups", "good", "; ".join(parts), "jobs of Slurm can be found by their cgroup")


def _describe(found: Hierarchies) -> Iterator[str]:
    if found.v2_mount is not None:
        try:
            controllers = (found.v2_mount / "cgroup.controllers").read_text().split()
        except OSError:
            controllers = []
        yield f"v2 with {', '.join(controllers) if controllers else 'no controllers'}"
    if found.v1:
        yield f"v1 with {', '.join(sorted(found.v1))}"


def _own_cgroup() -> Check:
    own = create_cgroup(f"jobsight-doctor-{os.getpid()}")
    if own is None:
        return Check(
            "own cgroup",
            "missing",
            "may not be made",
            "`jobsight run` follows the process tree; totals from rusage",
        )
    try:
        memory = own.cgroup.memory() is not None
        version = own.cgroup.version
    finally:
        own.remove()
    return Check(
        "own cgroup",
        "good" if memory else "partly",
        f"{version}, {'CPU and memory' if memory else 'CPU alone'}",
        "`jobsight run` has exact totals" + ("" if memory else "; memory is polled"),
    )


def _process_events() -> Check:
    """Start a child and see its events: in a namespace the socket opens but stays silent."""
    try:
        connector = Connector()
    except EventsUnavailable as error:
        return Check("process connector", "missing", str(error.strerror), "programs are polled")
    try:
        seen: set[int] = set()
        pid = _short_child()
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and len(seen) < 3:
            for event in connector.drain():
                if event.pid == pid or (event.what == FORK and event.value == pid):
                    seen.add(event.what)
            time.sleep(0.01)
    finally:
        connector.close()
    if seen >= {FORK, EXEC, EXIT}:
        return Check(
            "process connector",
            "good",
            "fork, exec and exit of a child were received",
            "every execution can be counted, where exit records come too",
        )
    return Check(
        "process connector",
        "missing",
        "the socket opens but stays silent (another network or pid namespace?)",
        "programs are polled",
    )


def _exit_records() -> Check:
    try:
        taskstats = Taskstats()
    except EventsUnavailable as error:
        return Check("exit records", "missing", str(error.strerror), "CPU time is polled")
    try:
        pid = _short_child()
        deadline = time.monotonic() + 1.0
        record = None
        while time.monotonic() < deadline and record is None:
            record = next((one for one in taskstats.drain() if one.pid == pid), None)
            time.sleep(0.01)
    finally:
        taskstats.close()
    if record is None:
        return Check(
            "exit records",
            "missing",
            "no record came (another pid namespace, or a kernel whose records cannot be read?)",
            "CPU time by executable is polled",
        )
    if record.executable is None:
        return Check(
            "exit records",
            "partly",
            "a record came, without the executable's inode (an older kernel)",
            "short programs that were never caught alive have no path",
        )
    return Check(
        "exit records",
        "good",
        "the record of a child came, with its executable",
        "CPU time by executable is exact",
    )


def _short_child() -> int:
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    return child.pid


def _kernel_children() -> Check:
    there = Path(f"/proc/self/task/{os.getpid()}/children").exists()
    return Check(
        "process tree",
        "good" if there else "missing",
        "/proc/PID/task/TID/children is there" if there else "the kernel does not list children",
        "jobs without a cgroup can be followed" if there else "jobs need a cgroup",
    )


def _slurm(settings: Settings) -> Check:
    directory = settings.scheduler.slurm_directory
    found = {name: path for name in _SLURM_COMMANDS if (path := shutil.which(name, path=directory))}
    if not found:
        where = f"in {directory} (scheduler.slurm_directory)" if directory else "on PATH"
        return Check("Slurm", "missing", f"no Slurm commands {where}", "`jobsight run` makes jobs")
    try:
        answer = subprocess.run(
            [*list(found.values())[:1], "--version"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        answer = None
    if answer is None or answer.returncode:
        return Check(
            "Slurm",
            "partly",
            f"{', '.join(found)} are there but do not answer; is slurm.conf there?",
            "jobs are known by their cgroups alone",
        )
    return Check(
        "Slurm",
        "good",
        f"{answer.stdout.strip()}: {', '.join(found)}",
        "the owner of a job can be queried",
    )


def _graphics(node: Node | None = None) -> Check:
    """Read each GPU once, and tell what it gives and what not."""
    from jobsight.agent.samplers.gpu.devices import NodeGpus
    from jobsight.agent.samplers.node import Node

    node = node or Node()
    gpus = NodeGpus(node, "/usr/bin/nvidia-smi", 10.0)
    source = gpus.wait_for_source(_GPU_TIMEOUT)
    if source is None:
        if gpus.unavailable.startswith("this node has no"):
            return Check("GPU", "missing", "none found", "no GPU figures")
        return Check("GPU", "partly", gpus.unavailable, "GPUs are there but cannot be read")
    described = Background[list[list[str]]]("gpu", _GPU_TIMEOUT)
    found = described.run(lambda: [source.describe(gpu) for gpu in source.gpus])
    if found is None:
        return Check("GPU", "partly", "the driver does not answer", "GPUs cannot be read")
    lines = [
        f"{gpu.key} ({gpu.name}): {', '.join(what)}"
        for gpu, what in zip(source.gpus, found, strict=True)
    ]
    gpus.close()
    complete = bool(lines) and not any(one.startswith("no ") for what in found for one in what)
    return Check(
        "GPU",
        "good" if complete else "partly",
        "; ".join(lines) or "the driver lists none",
        "time, memory and energy of each GPU by job"
        + ("" if complete else "; what a GPU does not give is marked as missing"),
    )


def _disk(settings: Settings) -> Check:
    parts = []
    little = False
    directories = {
        "store": paths.store_directory(settings.store.location),
        "spool": Path(settings.agent.spool),
    }
    if "://" in settings.store.location or settings.server.url is not None:
        del directories["store"]
    for title, directory in directories.items():
        existing = directory.absolute()
        while not os.access(existing, os.F_OK):
            existing = existing.parent
        free = shutil.disk_usage(existing).free
        little = little or free < _LITTLE_ROOM
        parts.append(f"{format_bytes(free)} free for the {title} ({directory})")
    return Check(
        "disk",
        "partly" if little else "good",
        "; ".join(parts),
        "room is short: batches may be dropped" if little else "room enough",
    )


def _no_server() -> Check:
    return Check(
        "server",
        "missing",
        "server.url is not set",
        "the agent writes to the store of this machine or to the server that runs on it",
    )
