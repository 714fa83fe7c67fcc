"""How far long work has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

#: Seconds between two lines, where no terminal shows a bar.
EVERY = 10.0


class Lines:
    """One line when a piece of work is done, and one every few seconds until then."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._said = clock()
        self._ended = ""

    def __call__(self, what: str, done: int, whole: int) -> None:
        ended = bool(whole) and done >= whole and self._ended != what
        if not ended and self._clock() - self._said < EVERY:
            return
        self._said = self._clock()
        self._ended = what if ended else self._ended
        of = f" of {whole:,}" if whole else ""
        print(f"{what}: {done:,}{of}", file=self._file, flush=True)


@contextmanager
def shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Something to call with what is done, how much of it, and how much there is (0: unknown)."""
    if not sys.stderr.isatty():
        yield Lines(sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(separator=" of "))
    with Progress(
        *columns, TimeElapsedColumn(), Remaining(), console=Console(stderr=True), transient=True
    ) as bars:
        tasks = {}

        def show(what: str, done: int, whole: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=None)
            bars.update(tasks[what], completed=done, total=whole or None)

        yield show
