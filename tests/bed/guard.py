"""Takes a bed down when the process that owns it has died without doing so, even by kill -9."""

import os
import select
import subprocess
import sys
from pathlib import Path

from tests.bed import process

PROJECT = Path(__file__).resolve().parents[2]


def start(folder: str, mark: str) -> subprocess.Popen[bytes]:
    owner = os.getpid()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bed", "guard", f"--folder={folder}", f"--mark={mark}",
         f"--owner={owner}", f"--owner-start={process.start_time(owner)}"],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def wait_for_end(owner: int, owner_start: int) -> None:
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        return
    if process.start_time(owner) == owner_start:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
    os.close(descriptor)
