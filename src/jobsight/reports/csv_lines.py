"""Rows as CSV in outer units, for files, downloads and standard output."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from jobsight.text import readable_text
from jobsight.util.outer import to_outer


def csv_lines(rows: Iterable[msgspec.Struct], names: Sequence[str]) -> Iterator[str]:
    """The named fields of the rows, after a line with the names; an unknown value is empty.

    Users choose the names of their jobs: a text that a spreadsheet would evaluate as a formula
    gets an apostrophe in front.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
        document = to_outer(row)
        values = [document.get(name) for name in names]
        writer.writerow([_text(value) if isinstance(value, str) else value for value in values])
    yield buffer.getvalue()


def _text(value: str) -> str:
    text = readable_text(value)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text
