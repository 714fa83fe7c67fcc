"""Processes the bed started: how they are marked, found again, and ended, and no others.

A process is ours when its pid *and* its start time are in one of our pid files, when its
environment carries the random mark of the bed, or when it sits in one of the bed's cgroups.
Signals go through a pidfd that was opened before that check, so a pid that was given to
somebody else in between is never hit.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

MARK = "JOBSIGHT_BED"

# Children of this process that are daemons: kept, so that they can be reaped when they end.
_children: dict[int, subprocess.Popen[bytes]] = {}


def start_time(pid: int) -> int | None:
    """Ticks since boot when the process started; nothing for one that is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def environment_of(pid: int) -> dict[bytes, bytes]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(entry.partition(b"=")[::2] for entry in text.split(b"\0") if b"=" in entry)


def start(
    argv: list[str],
    log: Path,
    pid_file: Path,
    environment: Mapping[str, str],
    user: str | None = None,
) -> None:
    """Start a daemon in the foreground mode it has, in a session of its own."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            cwd="/",
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=[] if user else None,
        )
    _children[process.pid] = process
    pid_file.write_text(f"{process.pid} {start_time(process.pid)} {boot_id()}\n")


def running(pid_file: Path) -> int | None:
    """The pid in the file, if that very process is still there."""
    try:
        pid, began, boot = pid_file.read_text().split()
    except (OSError, ValueError):
        return None
    if boot != boot_id() or str(start_time(int(pid))) != began:
        return None
    return int(pid)


def reap() -> None:
    for pid, process in list(_children.items()):
        if process.poll() is not None:
            del _children[pid]


def end(pids: Iterable[int], ours: Callable[[int], bool], grace: float = 0.0) -> list[int]:
    """End those that are ours, first politely when there is a grace; returns what did not end."""
    descriptors: dict[int, int] = {}
    try:
        for pid in pids:
            if pid == os.getpid():
                continue
            with suppress(OSError):
                descriptors[pid] = os.pidfd_open(pid)
                if not ours(pid):
                    os.close(descriptors.pop(pid))
        # One that is killed while the kernel writes for it ends when the disk has answered.
        stages = [(signal.SIGKILL, 600.0)]
        if grace > 0:
            stages.insert(0, (signal.SIGTERM, grace))
        for number, seconds in stages:
            for descriptor in descriptors.values():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)
            _forget_ended(descriptors, seconds)
        return list(descriptors)
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
        reap()


def describe(pid: int) -> str:
    """What a process that does not end is doing."""

    def read(name: str) -> str:
        with suppress(OSError):
            return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
        return ""

    status = dict(line.partition(":\t")[::2] for line in read("status").splitlines())
    stack = " < ".join(line.split()[-1] for line in read("stack").splitlines()[:8])
    state, name = status.get("State", "gone"), status.get("Name", "")
    return f"{pid} {name}, {state}, in {stack or read('wchan') or 'no call'}"


def _forget_ended(descriptors: dict[int, int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    poll = select.poll()
    pid_of = {descriptor: pid for pid, descriptor in descriptors.items()}
    for descriptor in pid_of:
        poll.register(descriptor, select.POLLIN)
    while descriptors and (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            poll.unregister(descriptor)
            os.close(descriptors.pop(pid_of[descriptor]))


def end_by_file(pid_file: Path, grace: float = 0.0) -> None:
    pid = running(pid_file)
    if pid is not None:
        end([pid], lambda _: running(pid_file) == pid, grace)
    pid_file.unlink(missing_ok=True)


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def carries(mark: str, slurm_conf: Path) -> Callable[[int], bool]:
    """Whether a process was started by this bed, or by a prolog or epilog of its slurmd.

    Hooks get a fresh environment without the mark, but Slurm says which they are.
    """
    wanted, conf = mark.encode(), os.fsencode(slurm_conf)

    def check(pid: int) -> bool:
        environment = environment_of(pid)
        if environment.get(MARK.encode()) == wanted:
            return True
        hook = environment.get(b"SLURM_SCRIPT_CONTEXT", b"")
        return environment.get(b"SLURM_CONF") == conf and hook.endswith((b"_slurmd", b"_slurmctld"))

    return check
