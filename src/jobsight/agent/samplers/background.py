"""Work that may take long or never end, done in a thread of its own beside the sampling loop."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: The loop waits this long for an answer that most often comes at once.
PATIENCE: Final = 0.02
#: What a command may say before it is not believed.
_OUTPUT_LIMIT: Final = 4 * 2**20


class Background(Generic[T]):
    """One piece of work at a time; the loop gets the latest result and never waits for long."""

    def __init__(self, name: str, patience: float = PATIENCE) -> None:
        self.name = name
        self.patience = patience
        self._done = threading.Event()
        self._done.set()
        self._result: T | None = None
        self._error: Exception | None = None

    @property
    def busy(self) -> bool:
        return not self._done.is_set()

    def ask(self, work: Callable[[], T], patience: float | None = None) -> T | None:
        """The result of ``work`` if it comes in time, else None; what it raised is raised here.

        While an earlier piece hangs (a file server is away) no other is begun, so a dead mount
        costs one thread and not one per round.
        """
        if self.busy:
            return self._take() if self._done.wait(patience or 0) else None
        if self._result is not None or self._error is not None:
            # It came too late for the round that asked for it.
            return self._take()
        self._done.clear()
        threading.Thread(target=self._run, args=(work,), name=self.name, daemon=True).start()
        waited = self._done.wait(self.patience if patience is None else patience)
        return self._take() if waited else None

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._result = work()
        except Exception as error:
            self._error = error
        finally:
            self._done.set()

    def _take(self) -> T | None:
        result, error = self._result, self._error
        self._result = self._error = None
        if error is not None:
            raise error
        return result


def run(arguments: Sequence[str], timeout: float) -> str:
    """What a command prints; to be called in a helper thread only."""
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{arguments[0]} gave no answer in {timeout:g} s") from None
    if done.returncode and not done.stdout:
        words = done.stderr[:200].decode("utf-8", "replace").strip()
        raise OSError(f"{arguments[0]} ended with {done.returncode}: {words}")
    return done.stdout[:_OUTPUT_LIMIT].decode("utf-8", "surrogateescape")
