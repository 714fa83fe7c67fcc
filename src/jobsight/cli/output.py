"""Output of the commands: tables, CSV, JSON, Parquet files and progress.

rich is used on a terminal only and where it is installed: a compute node has only the agent's
packages.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, get_args

import msgspec

from jobsight.errors import JobsightError
from jobsight.text import readable_text
from jobsight.util.outer import encode_json, to_outer


class Table:
    """Rows of texts under titles. Columns named in ``right`` are aligned at the right; those in
    ``wrap`` are folded on a narrow terminal, all others are cut."""

    def __init__(
        self,
        *titles: str,
        right: Sequence[str] = (),
        wrap: Sequence[str] = (),
        max_width: Mapping[str, int] | None = None,
    ) -> None:
        self.titles = titles
        self.right = frozenset(right)
        self.wrap = frozenset(wrap)
        self.max_width = max_width or {}
        self.rows: list[tuple[Sequence[str], str | None]] = []

    def add(self, *cells: str, style: str | None = None) -> None:
        """Add a row. Cells are plain text: names may hold brackets, which are markup in rich."""
        self.rows.append((cells, style))


def print_table(table: Table) -> None:
    """Print a table with rich on a terminal, as plain text elsewhere and where rich is missing.
    Plain lines are never folded or cut to the width of a terminal."""
    if sys.stdout.isatty():
        try:
            _print_rich(table)
        except ModuleNotFoundError:
            pass
        else:
            return
    for line in plain_lines(table):
        sys.stdout.write(f"{line}\n")


def plain_lines(table: Table) -> Iterator[str]:
    """The lines of a table as text, with two spaces between the columns."""
    limits = [table.max_width.get(title) for title in table.titles]
    rows = [table.titles, *(cells for cells, _ in table.rows)]
    texts = [
        [_cut(cell, limit) for cell, limit in zip(cells, limits, strict=True)] for cells in rows
    ]
    widths = [max(map(_width, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        cells = [
            " " * (width - _width(cell)) + cell
            if title in table.right
            else cell + " " * (width - _width(cell))
            for title, cell, width in zip(table.titles, row, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _cut(text: str, limit: int | None) -> str:
    return (
        text
        if limit is None or len(text) <= limit
        else f"{text[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


def _width(text: str) -> int:
    """The columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _print_rich(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False, header_style="bold")
    for title in table.titles:
        shown.add_column(
            title,
            justify="right" if title in table.right else "left",
            no_wrap=title not in table.wrap,
            overflow="fold" if title in table.wrap else "ellipsis",
            max_width=table.max_width.get(title),
        )
    for cells, style in table.rows:
        shown.add_row(*map(Text, cells), style=style)
    Console(highlight=False).print(shown)


def write_json(document: Any) -> None:
    """JSON in outer units."""
    sys.stdout.write(msgspec.json.format(encode_json(document)).decode() + "\n")


def write_csv(rows: Sequence[msgspec.Struct], names: Sequence[str]) -> None:
    """Write the named fields of the rows in outer units; an unknown value is empty."""
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        document = to_outer(row)
        values = [document.get(name) for name in names]
        writer.writerow([readable_text(v) if isinstance(v, str) else v for v in values])


def write_parquet(
    rows: Sequence[msgspec.Struct], kind: type[msgspec.Struct], names: Sequence[str], file: Path
) -> None:
    """Write the named fields of the rows to a Parquet file, atomically."""
    import pyarrow
    import pyarrow.parquet

    from jobsight.util.durable import write_atomically

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    known = {field.name: field.type for field in msgspec.structs.fields(kind)}
    schema = pyarrow.schema(
        [(name, types[next(iter(get_args(known[name])), known[name])]) for name in names]
    )
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), sink, compression="zstd")
    try:
        write_atomically(file, sink.getvalue().to_pybytes(), mode=0o666)
    except OSError as error:
        raise JobsightError(f"{file} cannot be written: {error.strerror}") from None


#: Seconds between two lines of progress where no terminal shows a bar.
PROGRESS_INTERVAL = 10.0


class ProgressLines:
    """One line when a task is done, and one every few seconds until then."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._last = clock()
        self._ended = ""

    def __call__(self, task: str, done: int, total: int) -> None:
        ended = bool(total) and done >= total and self._ended != task
        if not ended and self._clock() - self._last < PROGRESS_INTERVAL:
            return
        self._last = self._clock()
        self._ended = task if ended else self._ended
        of_total = f" of {total:,}" if total else ""
        print(f"{task}: {done:,}{of_total}", file=self._file, flush=True)


@contextmanager
def shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A function to call with a task, how much is done, and the total (0 if unknown)."""
    if not sys.stderr.isatty():
        yield ProgressLines(sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(separator=" of "))
    with Progress(
        *columns, TimeElapsedColumn(), Remaining(), console=Console(stderr=True), transient=True
    ) as bars:
        tasks = {}

        def show(task: str, done: int, total: int) -> None:
            if task not in tasks:
                tasks[task] = bars.add_task(task, total=None)
            bars.update(tasks[task], completed=done, total=total or None)

        yield show


def progress_line(what: str) -> Callable[[int, int], None]:
    """A line that counts up on a terminal, and nothing elsewhere."""

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        print(f"\r{done:,} of {total:,} {what}", end=end, file=sys.stderr, flush=True)

    return show if sys.stderr.isatty() else lambda done, total: None
