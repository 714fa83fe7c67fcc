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
from jobsight.util.outer import encode_json


class Table:
    """Rows of texts under titles. Columns named in ``right`` are aligned at the right.

    On a narrow terminal the columns in ``wrap`` are folded and those in ``cut`` are truncated with
    an ellipsis. All others hold ids, times and numbers, which are never truncated: columns are left
    out instead, first those in ``optional`` in their order, then the last ones.
    """

    def __init__(
        self,
        *titles: str,
        right: Sequence[str] = (),
        wrap: Sequence[str] = (),
        cut: Sequence[str] = (),
        optional: Sequence[str] = (),
        max_width: Mapping[str, int] | None = None,
    ) -> None:
        self.titles = titles
        self.right = frozenset(right)
        self.wrap = frozenset(wrap)
        self.cut = frozenset(cut)
        self.optional = optional
        self.max_width = max_width or {}
        self.rows: list[tuple[Sequence[str], str | None]] = []

    def add(self, *cells: str, style: str | None = None) -> None:
        """Add a row. Cells are plain text: names may hold brackets, which are markup in rich."""
        self.rows.append((cells, style))


def print_table(table: Table) -> None:
    """Print a table with rich on a terminal, as plain text elsewhere and where rich is missing.
    Plain lines are never folded or truncated to the width of a terminal."""
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


#: A column that is folded or truncated keeps at least this width, or its natural one.
_MIN_WIDTH = 10
#: Between two columns.
_GAP = 2


def column_widths(table: Table, width: int) -> dict[int, int]:
    """The widths of the columns that fit on a terminal, by their positions in the table."""
    natural = {}
    for position, title in enumerate(table.titles):
        widest = max(_width(title), *(_width(cells[position]) for cells, _ in table.rows), 0)
        natural[position] = min(widest, table.max_width.get(title, widest))
    flexible = {p for p in natural if table.titles[p] in table.wrap | table.cut}
    widths = {p: min(w, _MIN_WIDTH) if p in flexible else w for p, w in natural.items()}
    # The first column says what a row is about.
    dropped = [table.titles.index(title) for title in table.optional if title in table.titles]
    dropped += [p for p in range(len(natural) - 1, 0, -1) if p not in dropped]
    for position in dropped:
        if _total(widths) <= width:
            break
        del widths[position]
    for position in sorted(flexible & widths.keys(), key=lambda p: natural[p]):
        free = max(width - _total(widths), 0)
        widths[position] = min(natural[position], widths[position] + free)
    return widths


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def _print_rich(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False)
    widths = column_widths(table, console.width)
    shown = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for position, width in widths.items():
        title = table.titles[position]
        shown.add_column(
            title,
            justify="right" if title in table.right else "left",
            no_wrap=title not in table.wrap,
            overflow="fold" if title in table.wrap else "ellipsis",
            width=width,
        )
    for cells, style in table.rows:
        shown.add_row(*(Text(cells[position]) for position in widths), style=style)
    # A single column may still be wider than the terminal, which then wraps it.
    console.print(shown, width=max(console.width, _total(widths)), soft_wrap=True)
    missing = [title for p, title in enumerate(table.titles) if p not in widths and title]
    if missing:
        console.print(Text(f"Not shown at this width: {', '.join(missing)}", style="dim"))


def write_json(document: Any) -> None:
    """JSON in outer units."""
    sys.stdout.write(msgspec.json.format(encode_json(document)).decode() + "\n")


def write_csv(rows: Sequence[msgspec.Struct], names: Sequence[str]) -> None:
    """Write the named fields of the rows in outer units; an unknown value is empty."""
    from jobsight.reports.csv_lines import csv_lines

    sys.stdout.writelines(csv_lines(rows, names))


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
