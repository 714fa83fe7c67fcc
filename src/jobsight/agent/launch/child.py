"""The first process of a job of ``jobsight run``: it waits, then executes the command."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from jobsight.errors import CommandError

_PR_SET_CHILD_SUBREAPER: Final = 36

#: Signals that Python ignores; the command gets the default action.
_DEFAULT_SIGNALS: Final = (signal.SIGPIPE, signal.SIGXFSZ)


def set_subreaper(enabled: bool) -> None:
    """Adopt orphaned descendants or not; adopted ones are waited for and their usage is counted."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(enabled), 0, 0, 0)


class ChildProcess:
    """A child process that executes the command when :meth:`start` is called, so that the tracker
    knows it before."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: dict[str, str],
        before: Callable[[], None],
        signal_mask: set[signal.Signals],
    ) -> None:
        self._go_read, self._go_write = os.pipe2(os.O_CLOEXEC)
        self._error_read, self._error_write = os.pipe2(os.O_CLOEXEC)
        self.arguments = arguments
        self.pid = os.fork()
        if self.pid == 0:
            self._become(environment, before, signal_mask)
        os.close(self._go_read)
        os.close(self._error_write)

    def _become(
        self,
        environment: dict[str, str],
        before: Callable[[], None],
        signal_mask: set[signal.Signals],
    ) -> None:
        try:
            os.close(self._go_write)
            if os.read(self._go_read, 1) != b"g":
                os._exit(125)
            try:
                before()
            except Exception as error:
                os.write(self._error_write, b"!" + str(error).encode(errors="replace")[:2000])
                os._exit(127)
            for number in _DEFAULT_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
            os.execvpe(self.arguments[0], list(self.arguments), environment)
        except OSError as error:
            os.write(self._error_write, str(error.errno or 0).encode())
        except BaseException as error:
            os.write(self._error_write, b"!" + str(error).encode(errors="replace")[:2000])
        os._exit(127)

    def start(self) -> None:
        """Execute the command; raises CommandError with the message of a shell if that fails."""
        os.write(self._go_write, b"g")
        os.close(self._go_write)
        with os.fdopen(self._error_read, "rb") as pipe:
            failure = pipe.read()
        if failure:
            os.waitpid(self.pid, 0)
            if failure.startswith(b"!"):
                reason = failure[1:].decode(errors="replace")
                raise CommandError(f"the job's process could not be prepared: {reason}", 125)
            raise _command_error(self.arguments[0], int(failure))

    def abandon(self) -> None:
        """End the child without executing the command."""
        os.close(self._go_write)
        os.close(self._error_read)
        os.waitpid(self.pid, 0)


def _command_error(name: str, number: int) -> CommandError:
    path = Path(name)
    if number == 2 and "/" not in name:
        return CommandError(f"{name}: command not found; is it on PATH?", 127)
    if number == 2 and path.exists():
        return CommandError(f"{name}: its interpreter (first line) does not exist", 127)
    if number == 2:
        return CommandError(f"{name}: no such file", 127)
    if number == 13 and path.is_dir():
        return CommandError(f"{name}: is a directory, not a command", 126)
    if number == 13:
        return CommandError(f"{name}: not executable; chmod +x would make it so", 126)
    if number == 8:
        return CommandError(f"{name}: not a program this machine can execute", 126)
    return CommandError(f"{name}: cannot be executed: {os.strerror(number)}", 126)
