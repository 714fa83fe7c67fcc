"""Reads the batch script of a job: from the controller, or from the accounting if the job is gone.

One job in each command: the output of sacct for several jobs separates them by a line that a script
may contain as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jobsight.scheduler.records import SourceError
from jobsight.scheduler.sources.commands import StreamRunner
from jobsight.util.script_key import MAX_SCRIPT_SIZE

#: sacct prints "Batch Script for 12" and a line of this character before the script.
_RULE: Final = "-"
_NO_SCRIPT: Final = "NONE"


class ScriptReader:
    """Runs scontrol and sacct."""

    def __init__(self, run: StreamRunner, timeout: float) -> None:
        self._run = run
        self._timeout = timeout

    def __call__(self, job_id: int) -> str | None:
        """The script of a job, None if it has none; raises :class:`SourceError` if neither command
        can be run."""
        try:
            text = self._output(["scontrol", "write", "batch_script", str(job_id), "-"])
        except SourceError:
            # An interactive job has no script, and the controller forgets a job some minutes after
            # its end.
            output = self._output(["sacct", "--batch-script", f"--jobs={job_id}"])
            text = _after_heading(output)
        return text if text.strip() else None

    def _output(self, command: Sequence[str]) -> str:
        parts: list[bytes] = []
        size = 0
        for part in self._run(command, self._timeout):
            parts.append(part)
            size += len(part)
            if size >= MAX_SCRIPT_SIZE:
                break
        return b"".join(parts)[:MAX_SCRIPT_SIZE].decode("utf-8", "backslashreplace")


def _after_heading(output: str) -> str:
    """The script in the output of sacct for one job."""
    heading, _, rest = output.partition("\n")
    rule, _, script = rest.partition("\n")
    if not heading.startswith("Batch Script for ") or set(rule.strip()) != {_RULE}:
        return ""
    return "" if script.strip() == _NO_SCRIPT else script
