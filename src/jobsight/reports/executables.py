"""The rows of the executables of a run: joined over the nodes, the largest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jobsight.model import ExecutableUse
from jobsight.reports.report import ExecutableRow
from jobsight.text import readable_path

if TYPE_CHECKING:
    from jobsight.store.read.queries import StoredExecutable

REMAINDER = "not attributed"


def executable_rows(stored: Iterable[StoredExecutable]) -> list[ExecutableRow]:
    """Join what the nodes say of each executable; shares are filled in by who knows the whole."""
    joined: dict[tuple[bytes, bool], ExecutableRow] = {}
    for part in stored:
        use = part.use
        row = joined.get((use.path, use.path_known))
        if row is None:
            joined[use.path, use.path_known] = _row(use)
        else:
            _add(row, use)
    rows = [row for row in joined.values() if not _taken_back(row)]
    return sorted(rows, key=lambda row: (-row.cpu_time, -(row.executions or 0), row.path))


def _taken_back(row: ExecutableRow) -> bool:
    """Whether the agent has since learned the path of what it had sent under a command's name."""
    return not (row.executions or row.processes or row.cpu_time)


def remainder_row(cpu_time: int, whole: int) -> ExecutableRow:
    """The CPU time of the counter that no executable accounts for, never hidden."""
    return ExecutableRow(
        kind="remainder",
        path=REMAINDER,
        executions=None,
        processes=None,
        cpu_time=cpu_time,
        cpu_user=None,
        cpu_system=None,
        cpu_estimated=0,
        cpu_share=cpu_time / whole if whole else None,
        read_bytes=None,
        written_bytes=None,
        peak_memory=None,
        failures=None,
    )


def _row(use: ExecutableUse) -> ExecutableRow:
    return ExecutableRow(
        kind="executable" if use.path_known else "path unknown",
        path=readable_path(use.path),
        executions=use.executions,
        processes=use.processes,
        cpu_time=use.cpu_time,
        cpu_user=use.cpu_user,
        cpu_system=use.cpu_system,
        cpu_estimated=use.cpu_estimated,
        cpu_share=None,
        read_bytes=use.read_bytes,
        written_bytes=use.written_bytes,
        peak_memory=use.peak_memory or None,
        failures=use.failures,
    )


def _add(row: ExecutableRow, use: ExecutableUse) -> None:
    row.executions = (row.executions or 0) + use.executions
    row.processes = (row.processes or 0) + use.processes
    row.cpu_time += use.cpu_time
    row.cpu_user = (row.cpu_user or 0) + use.cpu_user
    row.cpu_system = (row.cpu_system or 0) + use.cpu_system
    row.cpu_estimated += use.cpu_estimated
    row.read_bytes = (row.read_bytes or 0) + use.read_bytes
    row.written_bytes = (row.written_bytes or 0) + use.written_bytes
    row.failures = (row.failures or 0) + use.failures
    # The peak is of one process: over nodes the highest counts, not the sum.
    row.peak_memory = max(row.peak_memory or 0, use.peak_memory) or None
