"""Runs real commands as jobs, as a person would, and reads their reports."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobsight.cli.report import find_report
from jobsight.util.outer import encode_json

JOBSIGHT = (sys.executable, "-m", "jobsight.cli.main")

#: Each takes a number of microseconds; the first spins on the wall clock, the second on its CPU.
BURNERS = {
    "wall": "CLOCK_MONOTONIC",
    "processor": "CLOCK_PROCESS_CPUTIME_ID",
}
_BURNER = """
#include <stdlib.h>
#include <time.h>
static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
int main(int count, char **words) {
    long long end = now() + atoll(words[1]) * 1000LL;
    while (now() < end)
        ;
    return 0;
}
"""


@dataclass(frozen=True)
class Home:
    """A place for the store of a test's jobs, and the command lines that use it."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store.db"

    def command(self, *arguments: str | bytes, options: tuple[str, ...] = ()) -> list[str | bytes]:
        return [*JOBSIGHT, "run", "--store", str(self.store), *options, "--", *arguments]

    def run(
        self, *arguments: str | bytes, options: tuple[str, ...] = (), **named: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command as a job to its end."""
        return subprocess.run(
            self.command(*arguments, options=options),
            check=False,
            **({"capture_output": True, "timeout": 100} | named),
        )

    def start(
        self, *arguments: str | bytes, options: tuple[str, ...] = (), **named: Any
    ) -> subprocess.Popen[bytes]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(self.command(*arguments, options=options), **(pipes | named))

    def report(self, run: str | None = None) -> dict[str, Any]:
        """The report of a run, or of the latest one, as ``jobsight report --json`` prints it."""
        # In this process: a command of its own for each report would be a third of the CPU time
        # of the tests that use it.
        return dict(json.loads(encode_json(find_report(str(self.store), run))))

    def count(self) -> int:
        """How many runs the store holds."""
        if not self.store.exists():
            return 0
        from jobsight.store.store import Store

        store = Store.open(str(self.store))
        try:
            return len(store.runs(limit=1000))
        finally:
            store.close()


def row(report: dict[str, Any], path: str) -> dict[str, Any]:
    """The row of one executable, by the end of its path."""
    found = [row for row in report["executables"] if row["path"].endswith(path)]
    assert len(found) == 1, report["executables"]
    return dict(found[0])


def attributed(report: dict[str, Any]) -> float:
    """The share of the counter's CPU time that stands on named executables."""
    named = [row for row in report["executables"] if row["kind"] == "executable"]
    return float(sum(row["cpu_seconds"] for row in named) / report["cpu"]["cpu_seconds"])


def adds_up(report: dict[str, Any]) -> bool:
    """Whether the executables and the remainder together are the CPU time of the counter."""
    total = sum(row["cpu_seconds"] for row in report["executables"])
    return math.isclose(total, report["cpu"]["cpu_seconds"], rel_tol=1e-6)


def build_burner(kind: str, folder: Path) -> Path:
    """Compile a program that keeps a CPU busy."""
    source, program = folder / f"burn-{kind}.c", folder / f"burn-{kind}"
    source.write_text(_BURNER)
    subprocess.run(
        ["cc", "-O1", f"-DCLOCK={BURNERS[kind]}", "-o", str(program), str(source)], check=True
    )
    return program
