"""Rows for people and programs: a table, CSV, JSON or a Parquet file."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
import typer

from jobsight.errors import JobsightError
from jobsight.text import readable_text

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
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document)).decode() + "\n")


def write_csv(rows: Sequence[msgspec.Struct], names: Sequence[str]) -> None:
    """The named fields of the rows; a field that is not known is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = [getattr(row, name) for name in names]
        writer.writerow([readable_text(v) if isinstance(v, str) else v for v in values])


def write_parquet(
    rows: Sequence[msgspec.Struct], kind: type[msgspec.Struct], names: Sequence[str], file: Path
) -> None:
    """The same as a Parquet file, whole or not at all."""
    import pyarrow
    import pyarrow.parquet

    from jobsight.util.durable import write_durably

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    known = {field.name: field.type for field in msgspec.structs.fields(kind)}
    schema = pyarrow.schema(
        [(name, types[next(iter(get_args(known[name])), known[name])]) for name in names]
    )
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), sink, compression="zstd")
    try:
        write_durably(file, sink.getvalue().to_pybytes())
    except OSError as error:
        raise JobsightError(f"{file} cannot be written: {error.strerror}") from None
