"""Building blocks of the samplers.

:class:`Counter` and :class:`Gauge` accumulate readings, :class:`Errors` collects their failures.
:class:`CurrentCgroup` keeps a cgroup's files open, :class:`Background` runs work that may block
outside of the sampling loop, and the functions at the end expand ``%(jobid)s`` and globs in
settings.
"""

from __future__ import annotations

import glob
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from jobsight.agent.job import JobView
from jobsight.agent.probes.cgroup_files import CgroupFiles
from jobsight.errors import ConfigError
from jobsight.model import SECOND

T = TypeVar("T")

_MAX_CAUSES: Final = 64
#: How long the sampling loop waits for a result; most arrive within this time.
RESULT_TIMEOUT: Final = 0.02
_MAX_OUTPUT: Final = 4 * 2**20
_WORD: Final = 2**32
#: A glob over a directory that users may write to must not create columns without bound.
MAX_PATHS: Final = 64


def growth(before: int, now: int, modulus: int | None = None) -> int:
    """The growth of a counter between two readings.

    A reading below the previous one means that the counter wrapped, if its range is known or if
    it was in the upper half of 32 bits. Otherwise the counter was reset (a device was replaced),
    and only what it counted since is known.
    """
    if now >= before:
        return now - before
    if modulus is not None and before < modulus:
        return now + modulus - before
    if modulus is None and _WORD // 2 <= before < _WORD and now < _WORD // 2:
        return now + _WORD - before
    return now


class Counter:
    """The growth of a kernel counter since its first reading, over wraparounds and resets."""

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
    """Last value, extrema and time-weighted average of readings at irregular times.

    Between two readings the value is interpolated linearly.
    """

    def __init__(self) -> None:
        self.last: float | None = None
        self.maximum: float | None = None
        self.minimum: float | None = None
        #: The area under the interpolated readings, in units of the value times seconds.
        self.integral = 0.0
        self._first = self._time = 0

    def add(self, time: int, value: float | None) -> None:
        """Add a reading. None is a failed one; the next reading closes the gap."""
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
        """The average over time; with a single reading, that reading."""
        return self.integral / self.seconds if self._time > self._first else self.last


class Errors:
    """Failed readings: the first message of each cause, and the number of failures."""

    def __init__(self) -> None:
        #: Cause -> its first message.
        self.causes: dict[str, str] = {}
        self.count = 0
        self._reported = 0

    def add(self, cause: str, error: BaseException | str) -> None:
        self.count += 1
        if cause not in self.causes and len(self.causes) < _MAX_CAUSES:
            self.causes[cause] = describe(error)

    def unreported(self) -> list[str]:
        """The messages since the last call, for the log."""
        messages = [f"{cause}: {text}" for cause, text in self.causes.items()][self._reported :]
        self._reported = len(self.causes)
        return messages


def describe(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


class CurrentCgroup:
    """The open files of one cgroup, reopened when the job's directory changes."""

    def __init__(self) -> None:
        self._files: CgroupFiles | None = None

    def files(self, directory: Path) -> CgroupFiles:
        if self._files is None or self._files.directory != directory:
            self.close()
            self._files = CgroupFiles(directory)
        return self._files

    def close(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None


class Background(Generic[T]):
    """Runs one piece of work at a time in a thread, so that the sampling loop never blocks."""

    def __init__(self, name: str, timeout: float = RESULT_TIMEOUT) -> None:
        self.name = name
        self.timeout = timeout
        self._done = threading.Event()
        self._done.set()
        self._result: T | None = None
        self._error: Exception | None = None

    @property
    def busy(self) -> bool:
        return not self._done.is_set()

    def run(self, work: Callable[[], T], timeout: float | None = None) -> T | None:
        """The result of ``work`` if it arrives in time, else None. Exceptions are raised here.

        While earlier work hangs (a file server is unreachable) no other is started, so a dead
        mount costs one thread and not one per round.
        """
        if self.busy:
            return self._collect() if self._done.wait(timeout or 0) else None
        if self._result is not None or self._error is not None:
            # The result arrived too late for the round that started the work.
            return self._collect()
        self._done.clear()
        threading.Thread(target=self._work, args=(work,), name=self.name, daemon=True).start()
        finished = self._done.wait(self.timeout if timeout is None else timeout)
        return self._collect() if finished else None

    def _work(self, work: Callable[[], T]) -> None:
        try:
            self._result = work()
        except Exception as error:
            self._error = error
        finally:
            self._done.set()

    def _collect(self) -> T | None:
        result, error = self._result, self._error
        self._result = self._error = None
        if error is not None:
            raise error
        return result


def run_command(arguments: Sequence[str], timeout: float) -> str:
    """The output of a command. It forks and blocks, so call it in :class:`Background` only."""
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
        raise OSError(f"{arguments[0]} did not finish in {timeout:g} s") from None
    if done.returncode and not done.stdout:
        message = done.stderr[:200].decode("utf-8", "replace").strip()
        raise OSError(f"{arguments[0]} exited with status {done.returncode}: {message}")
    return done.stdout[:_MAX_OUTPUT].decode("utf-8", "surrogateescape")


def check_patterns(where: str, key: str, patterns: Iterable[str]) -> None:
    """Refuse a pattern that cannot be filled."""
    for pattern in patterns:
        try:
            pattern % {"jobid": 1, "node": "node"}
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{where}: {key} has {pattern!r}; expected no placeholders other than %(jobid)s "
                "and %(node)s, and %% for a percent sign"
            ) from None


def fill_pattern(pattern: str, view: JobView) -> str:
    """A pattern for one job. The inserted values are escaped, so none of them acts as a glob."""
    return pattern % {
        "jobid": view.sighting.job_id,
        "node": glob.escape(view.sighting.node),
    }


def expand_patterns(patterns: Iterable[str], view: JobView) -> list[str]:
    """The paths that exist now; a pattern without a glob is returned whether it exists or not."""
    paths: dict[str, None] = {}
    for pattern in patterns:
        text = fill_pattern(pattern, view)
        paths.update(dict.fromkeys(sorted(glob.glob(text)) if glob.has_magic(text) else [text]))
    return list(paths)[:MAX_PATHS]
