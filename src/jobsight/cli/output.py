"""Rows for people and programs: a table, CSV, JSON or a Parquet file.

How far long work has come: a bar on a terminal, a line now and then elsewhere.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, get_args

import msgspec
import typer

from jobsight.errors import JobsightError
from jobsight.text import readable_text
from jobsight.util.outer import encode_json, to_outer

if TYPE_CHECKING:
    from rich.table import Table


JsonOption = Annotated[bool, typer.Option("--json", help="As JSON")]
CsvOption = Annotated[bool, typer.Option("--csv", help="As CSV")]


def new_table(*columns: str, right: Sequence[str] = (), wrap: Sequence[str] = ()) -> Table:
    """A table with these columns; those of figures are aligned at the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in columns:
        table.add_column(
            title,
            justify="right" if title in right else "left",
            no_wrap=title not in wrap,
            overflow="fold" if title in wrap else "ellipsis",
        )
    return table


def add_row(table: Table, *cells: str, style: str | None = None) -> None:
    """Add texts as they are: names hold brackets, which are markup elsewhere."""
    from rich.text import Text

    table.add_row(*(Text(cell) for cell in cells), style=style)


def print_table(table: Table) -> None:
    """Print a table; in a pipe no line is folded to the width of a terminal that is not there."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    wide = Console(highlight=False, width=1000)
    with wide.capture() as captured:
        wide.print(table)
    for line in captured.get().splitlines():
        sys.stdout.write(f"{line.rstrip()}\n")


def write_json(document: Any) -> None:
    """JSON in outer units."""
    sys.stdout.write(msgspec.json.format(encode_json(document)).decode() + "\n")


def write_csv(rows: Sequence[msgspec.Struct], names: Sequence[str]) -> None:
    """The named fields of the rows in outer units; an unknown value is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        document = to_outer(row)
        values = [document.get(name) for name in names]
        writer.writerow([readable_text(v) if isinstance(v, str) else v for v in values])


def write_parquet(
    rows: Sequence[msgspec.Struct], kind: type[msgspec.Struct], names: Sequence[str], file: Path
) -> None:
    """The same as a Parquet file, whole or not at all."""
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
