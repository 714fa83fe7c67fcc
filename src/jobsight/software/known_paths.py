"""The paths that the store knows, what they are called, and what they used."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sqlalchemy import Row, text

from jobsight.software.moves import software_names
from jobsight.software.rules import SoftwareName
from jobsight.store.database import Database
from jobsight.text import readable_path

#: Paths whose use is asked for at once.
_AT_ONCE = 500
_PATHS = "SELECT id, path, software_id FROM paths ORDER BY id"
# The share of a run's core time goes by CPU time, as everywhere.
_USE = """
    SELECT path_id, sum(hours) AS hours, count(*) AS runs FROM (
        SELECT executables.path_id, runs.id,
            sum(executables.cpu_time) * 1.0 / runs.cpu_time * runs.cpus
                * (coalesce(runs."end", runs.last_seen, runs.start) - runs.start) / 3.6e12 AS hours
        FROM executables
        JOIN run_nodes ON run_nodes.id = executables.run_node_id
        JOIN runs ON runs.id = run_nodes.run_id
        WHERE runs.cpu_time > 0 AND executables.path_id IN ({ids})
        GROUP BY executables.path_id, runs.id
    ) AS shares GROUP BY path_id
"""


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
    used: dict[int, Row[Any]] = {}
    for place in range(0, len(chosen), _AT_ONCE):
        # Numbers of rows, and nothing that a user wrote.
        ids = ", ".join(str(int(path.id)) for path in chosen[place : place + _AT_ONCE])
        with database.read() as connection:
            found = connection.execute(text(_USE.format(ids=ids)))
            used.update((row.path_id, row) for row in found)
    result = [
        path._replace(core_hours=float(used[path.id].hours or 0), runs=used[path.id].runs)
        if path.id in used
        else path
        for path in chosen
    ]
    return sorted(result, key=lambda path: path.core_hours)


def matcher(pattern: str) -> Callable[[str], bool]:
    """GLOB as SQLite has it; one with ``%`` and no sign of GLOB is LIKE, as SAMS documents both."""
    if "%" in pattern and not re.search(r"[*?\[]", pattern):
        pattern = pattern.replace("%", "*")
    compiled = re.compile(fnmatch.translate(pattern.replace("[^", "[!")))
    return lambda text: compiled.match(text) is not None
