"""Load named statements from the ``.sql`` files of this directory.

A statement begins with a line ``-- name: find_agent`` and ends where the next begins. Parameters
are written ``:name``; ``:keys`` stands for the rows of :meth:`Transaction.look_up`. Other comments
are not sent to the database.
"""

from __future__ import annotations

import re
from pathlib import Path

_DIRECTORY = Path(__file__).parent
_HEADER = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)


def load_statements(file: str) -> dict[str, str]:
    """The statements of one file by name."""
    _, *parts = _HEADER.split((_DIRECTORY / f"{file}.sql").read_text())
    statements: dict[str, str] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        if name in statements:
            raise ValueError(f"{file}.sql has two statements named {name}")
        statements[name] = _COMMENT.sub("", text).strip()
    return statements
