"""One start of the guest: the project goes in, a command runs, its results come out."""

import io
import os
import selectors
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tests.bed.errors import BedError
from tests.guest.image import PROJECT, Image

# What goes in; no need for git, so that it also works from a source package.
PARTS = ["src", "tests", "deploy", "slurm-plugin", "requirements", "pyproject.toml"]
RESULT_SIZE = 256 << 20
MEMORY = "3G"
# The guest ends its command by itself this long before it is killed, to hand out what it has.
RESERVE = 60
TIMED_OUT, NO_ANSWER = 124, 125


@dataclass(frozen=True)
class Start:
    """How the guest is started."""

    seconds: int
    #: As pid 1, in place of a script.
    systemd: bool = False
    #: A reboot starts the guest again, with the same disk; otherwise it ends the guest.
    reboot: bool = False
    #: More that goes in: files and directories, with their names in /project.
    more: tuple[tuple[Path, str], ...] = ()


def run(image: Image, command: str, result: Path, start: Start, echo: TextIO | None) -> int:
    """Boot, run the command, and unpack what it left in /out; returns its exit status."""
    seconds = start.seconds
    shutil.rmtree(result, ignore_errors=True)
    result.mkdir(parents=True)
    with _work_folder(image.folder.parent) as work:
        project, answer = work / "project.tar", work / "answer.tar"
        _pack(project, command, max(seconds - RESERVE, 10), start.more)
        with open(answer, "wb") as file:
            file.truncate(RESULT_SIZE)
        argv = _command_line(image, project, answer, start)
        finished = _boot(argv, work, result / "console.log", seconds, echo)
        # Nothing comes out where the guest did not come that far; the console says how far.
        subprocess.run(
            ["tar", "--extract", "--no-same-owner", f"--file={answer}", f"--directory={result}"],
            stderr=subprocess.DEVNULL,
            check=False,
        )
    status = result / "exit-status"
    if status.exists():
        return int(status.read_text())
    return NO_ANSWER if finished else TIMED_OUT


def _command_line(image: Image, project: Path, answer: Path, start: Start) -> list[str]:
    append = "root=/dev/vda rw console=ttyS0 panic=-1 quiet systemd.unified_cgroup_hierarchy=1"
    disks = []
    for path, option in ((image.disk, "snapshot=on"), (project, "readonly=on"), (answer, "")):
        disks += ["-drive", f"file={path},if=virtio,format=raw,cache=unsafe,{option}".rstrip(",")]
    return [
        # qemu must not outlive the process that looks after it, whatever ends that.
        "setpriv", "--pdeathsig", "KILL",
        # Not KVM: a guest inside a guest hangs on many machines, and two cores do without.
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
        "-m", MEMORY, "-display", "none", "-monitor", "none", "-serial", "stdio",
        *([] if start.reboot else ["-no-reboot"]),
        "-nic", "none", "-kernel", str(image.kernel), "-initrd", str(image.initial), *disks,
        "-append", append if start.systemd else append + " init=/init.sh",
    ]  # fmt: skip


def _boot(argv: list[str], work: Path, console: Path, seconds: int, echo: TextIO | None) -> bool:
    """Run qemu to its end, copying the console; false when it had to be killed."""
    deadline = time.monotonic() + seconds
    environment = {**os.environ, "TMPDIR": str(work)}  # for the disk's snapshot
    qemu = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=environment, start_new_session=True,
    )  # fmt: skip
    assert qemu.stdout is not None
    with qemu, selectors.DefaultSelector() as selector, open(console, "wb") as log:
        try:
            selector.register(qemu.stdout, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                if not selector.select(left):
                    break
                piece = os.read(qemu.stdout.fileno(), 65536)
                if not piece:
                    qemu.wait()
                    return True
                log.write(piece)
                log.flush()
                if echo is not None:
                    echo.write(piece.decode(errors="replace"))
                    echo.flush()
            return False
        finally:
            qemu.send_signal(signal.SIGKILL)


def _pack(path: Path, command: str, seconds: int, more: Iterable[tuple[Path, str]]) -> None:
    def clean(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if "__pycache__" in entry.name else entry

    with tarfile.open(path, "w") as archive:
        for part in PARTS:
            if (PROJECT / part).exists():
                archive.add(PROJECT / part, part, filter=clean)
        for source, name in more:
            archive.add(source, name)
        for name, text in (("command", command), ("seconds", f"{seconds}\n")):
            entry = tarfile.TarInfo(f".guest/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    if path.stat().st_size > 1 << 30:
        raise BedError("the project is larger than a gigabyte; something is in it by mistake")


@contextmanager
def _work_folder(cache: Path) -> Iterator[Path]:
    """Named by its process, so that what a killed run left is found by the next one."""
    for old in cache.glob("run-*"):
        owner = old.name.split("-")[1]
        if not Path(f"/proc/{owner}").exists():
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"run-{os.getpid()}-", dir=cache) as folder:
        yield Path(folder)
