"""Errors for the user: one sentence, printed without a traceback."""

from __future__ import annotations


class JobsightError(Exception):
    """An error that the user or administrator can correct; the text says what is wrong, where,
    and what is expected."""

    #: The exit code of a command that ends with this error.
    exit_code = 1


class ConfigError(JobsightError):
    """A setting is wrong."""

    exit_code = 2


class StoreError(JobsightError):
    """The store cannot be opened, read or written."""


class CommandError(JobsightError):
    """The command of a job cannot be started. The exit codes are the shell's."""

    def __init__(self, message: str, exit_code: int = 127) -> None:
        super().__init__(message)
        self.exit_code = exit_code
