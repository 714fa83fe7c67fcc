"""Where the batches of `jobsight run` go: the server that runs here, else the store's own file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobsight.config import paths
from jobsight.config.settings import Settings
from jobsight.errors import JobsightError
from jobsight.server.receiver import Receiver
from jobsight.store.store import Store
from jobsight.transport.delivery import Delivery, EmbeddedTarget, Target, server_target
from jobsight.transport.spool import Spool, SpoolError


@contextmanager
def open_target(settings: Settings, location: str) -> Iterator[Target]:
    """The receiver to use; opening it before the job starts shows what is wrong in time."""
    target = server_target(settings, location)
    if target is not None:
        yield target
        return
    if "://" not in location:
        paths.private_directory(paths.store_directory(location))
    store = Store.open(location)
    try:
        yield EmbeddedTarget(Receiver(store))
    finally:
        store.close()


def next_job_id(folder: Path) -> int:
    """Count the jobs that were started from this folder; several may start at once."""
    file = folder / "last-job-id"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JobsightError(f"the counter {file} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "r+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        text = opened.read().strip()
        number = (int(text) if text.isdigit() else 0) + 1
        opened.seek(0)
        opened.truncate()
        opened.write(f"{number}\n")
    return number


def deliver_left_overs(folder: Path, target: Target) -> int:
    """Deliver what earlier jobs could not; spools in use by a running job are left alone."""
    delivered = 0
    for place in sorted(folder.glob("run-*")):
        try:
            spool = Spool(place)
        except SpoolError:
            continue
        waiting = len(spool)
        taken = Delivery(spool, target).deliver()
        delivered += waiting - len(spool)
        spool.remove()
        if not taken:
            # Each further attempt would keep the job that is about to start waiting.
            break
    return delivered
