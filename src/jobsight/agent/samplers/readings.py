"""What went wrong, remembered once per cause, so that a log is not filled by one broken file.

Work that may take long or never end, done in a thread of its own beside the sampling loop.

A counter of the kernel that wraps around or starts anew, made one that only grows.

A value over time: its last reading, its bounds and its average, weighted by time.

Names with ``%(jobid)s`` and globs in the settings, expanded again while the job runs.
"""

from __future__ import annotations

import glob
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from jobsight.agent.job import JobView
from jobsight.errors import ConfigError
from jobsight.model import SECOND

_LIMIT: Final = 64


class Errors:
    """Causes of failed readings, and how often readings failed in all."""

    def __init__(self) -> None:
        #: Cause -> the first sentence said about it.
        self.causes: dict[str, str] = {}
        self.count = 0
        self._told = 0

    def note(self, cause: str, error: BaseException | str) -> None:
        self.count += 1
        if cause not in self.causes and len(self.causes) < _LIMIT:
            self.causes[cause] = describe(error)

    def news(self) -> list[str]:
        """What has not been told yet, for the log."""
        sentences = [f"{cause}: {text}" for cause, text in self.causes.items()][self._told :]
        self._told = len(self.causes)
        return sentences


def describe(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


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


#: Counters of 32 bits are told by a last value in the upper half of their range.
WORD: Final = 2**32


def growth(before: int, now: int, modulus: int | None = None) -> int:
    """How much a counter grew between two readings.

    A reading below the one before means that it wrapped, where its range is known or it stood
    high in 32 bits, else that it began anew (a device was replaced), and then only what it
    counted since is known.
    """
    if now >= before:
        return now - before
    if modulus is not None and before < modulus:
        return now + modulus - before
    if modulus is None and WORD // 2 <= before < WORD and now < WORD // 2:
        return now + WORD - before
    return now


class Counter:
    """What a counter of the kernel counted since its first reading."""

    def __init__(self, modulus: int | None = None) -> None:
        self.total = 0
        self._modulus = modulus
        self._last: int | None = None

    def update(self, value: int) -> int:
        if self._last is not None:
            self.total += growth(self._last, value, self._modulus)
        self._last = value
        return self.total


class Gauge:
    """Readings at irregular times, joined by straight lines from the first reading on."""

    def __init__(self) -> None:
        self.last: float | None = None
        self.maximum: float | None = None
        self.minimum: float | None = None
        #: The area under the lines, in units of the value times seconds.
        self.integral = 0.0
        self._first = self._time = 0

    def add(self, time: int, value: float | None) -> None:
        """Take a reading in; None is a failed one and leaves a gap that the next one closes."""
        if value is None:
            return
        if self.last is None or self.maximum is None or self.minimum is None:
            self._first = self._time = time
            self.last = self.maximum = self.minimum = value
            return
        if time < self._time:
            return
        self.integral += (self.last + value) / 2 * (time - self._time) / SECOND
        self._time, self.last = time, value
        self.maximum = max(self.maximum, value)
        self.minimum = min(self.minimum, value)

    @property
    def seconds(self) -> float:
        """The time from the first reading to the last."""
        return (self._time - self._first) / SECOND

    @property
    def average(self) -> float | None:
        """The average by time; of a single moment it is the reading itself."""
        return self.integral / self.seconds if self._time > self._first else self.last


#: A glob over a folder that users may write to must not make columns without end.
LIMIT: Final = 64


def check(where: str, key: str, patterns: Iterable[str]) -> None:
    """Refuse a pattern that could not be filled in."""
    for pattern in patterns:
        try:
            pattern % {"jobid": 1, "node": "node"}
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{where}: {key} has {pattern!r}; only %(jobid)s and %(node)s can stand in it, "
                "and a percent sign is written %%"
            ) from None


def fill(pattern: str, view: JobView) -> str:
    """A pattern for one job; what is filled in is taken as it is, never as a glob."""
    return pattern % {
        "jobid": view.sighting.job_id,
        "node": glob.escape(view.sighting.node),
    }


def expand(patterns: Iterable[str], view: JobView) -> list[str]:
    """The paths there are now; a pattern without a glob stands for itself, there or not."""
    found: dict[str, None] = {}
    for pattern in patterns:
        text = fill(pattern, view)
        names = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
        found.update(dict.fromkeys(names))
    return list(found)[:LIMIT]
