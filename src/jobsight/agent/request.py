"""What a job that we start ourselves was asked to be, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobsight.model import Run


class Outcome(msgspec.Struct, frozen=True):
    """How the command ended."""

    run: Run
    state: str
    exit_code: int | None
    exit_signal: int | None
    left_overs: int

    @property
    def status(self) -> int:
        """The exit code that a shell would give."""
        if self.exit_signal is not None:
            return 128 + self.exit_signal
        return self.exit_code or 0


class Request(msgspec.Struct, kw_only=True, frozen=True):
    """What was asked for."""

    arguments: Sequence[str]
    job_id: int
    name: str | None = None
    cpus: int | None = None
    memory: int | None = None
    account: str | None = None
