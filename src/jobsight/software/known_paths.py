"""The paths that the store knows, what they are called, and what they used."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sqlalchemy import text

from jobsight.software.moves import software_names
from jobsight.software.rules import SoftwareName
from jobsight.store.database import Database
from jobsight.store.rollups.catalogue import use_of
from jobsight.text import readable_path

#: Paths whose use is asked for at once.
_AT_ONCE = 500
_PATHS = "SELECT id, path, software_id FROM paths ORDER BY id"


class KnownPath(NamedTuple):
    id: int
    #: As :func:`jobsight.text.readable_path` writes it.
    path: str
    #: None where no rule knows it.
    name: SoftwareName | None
    core_hours: float = 0.0
    runs: int = 0


def known_paths(database: Database) -> Iterable[KnownPath]:
    """All paths by the time they were first seen, without their use."""
    names = software_names(database)
    with database.read() as connection:
        for row in connection.execute(text(_PATHS)):
            yield KnownPath(row.id, readable_path(bytes(row.path)), names.get(row.software_id or 0))


def with_use(database: Database, paths: Iterable[KnownPath]) -> list[KnownPath]:
    """The same with what they used, the least first."""
    chosen = list(paths)
    result = []
    with database.read() as connection:
        for place in range(0, len(chosen), _AT_ONCE):
            group = chosen[place : place + _AT_ONCE]
            used = use_of(connection, [path.id for path in group])
            for path in group:
                row = used.get(path.path)
                result.append(
                    path._replace(core_hours=row.core_hours, runs=row.jobs) if row else path
                )
    return sorted(result, key=lambda path: path.core_hours)


def matcher(pattern: str) -> Callable[[str], bool]:
    """GLOB as SQLite has it; one with ``%`` and no sign of GLOB is LIKE, as SAMS documents both."""
    if "%" in pattern and not re.search(r"[*?\[]", pattern):
        pattern = pattern.replace("%", "*")
    compiled = re.compile(fnmatch.translate(pattern.replace("[^", "[!")))
    return lambda text: compiled.match(text) is not None
