"""The jobs of `jobsight demo`: four jobs of about ten seconds each."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

_HERE = Path(__file__).parent


class Sample(NamedTuple):
    """A job to run, and what its report shows."""

    name: str
    shows: str
    #: About how long it takes, for the progress line.
    seconds: int
    options: tuple[str, ...]
    command: tuple[str, ...]


def samples() -> list[Sample]:
    """The four jobs, sized for this machine."""
    cpus = min(4, len(os.sched_getaffinity(0)))
    workers = max(1, cpus - 1)
    return [
        Sample(
            "parallel",
            f"{workers} of {cpus} CPUs busy" if cpus > 1 else "one busy CPU",
            12,
            ("--cpus", str(cpus)),
            (sys.executable, str(_HERE / "parallel.py"), str(workers)),
        ),
        Sample(
            "memory",
            "memory that grows to near its limit",
            11,
            ("--cpus", "1", "--memory", "256M"),
            (sys.executable, str(_HERE / "memory.py")),
        ),
        Sample(
            "files",
            "writing and reading files",
            11,
            ("--cpus", "1"),
            (sys.executable, str(_HERE / "files.py")),
        ),
        Sample(
            "storm",
            "programs that live a few milliseconds",
            11,
            ("--cpus", "1"),
            ("/bin/sh", str(_HERE / "storm.sh")),
        ),
    ]
