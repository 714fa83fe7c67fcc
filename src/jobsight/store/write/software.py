"""Software names of paths: rows of ``software``, the names of ``paths``, and their stale runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from jobsight.store.database import Transaction
from jobsight.store.read.software import SoftwareKey
from jobsight.store.rollups.shares import UNDETERMINED

_KEY: Final = SoftwareKey._fields
_FIND: Final = f"SELECT id FROM software WHERE {' AND '.join(f'{name} = :{name}' for name in _KEY)}"
_INSERT: Final = f"""
    INSERT INTO software ({", ".join(_KEY)}) VALUES ({", ".join(f":{name}" for name in _KEY)})
    ON CONFLICT ({", ".join(_KEY)}) DO NOTHING
"""
_SET_NAME: Final = "UPDATE paths SET software_id = :software_id, named = :now WHERE id = :id"
_NODES_OF_PATH: Final = """
    SELECT DISTINCT executables.run_node_id, run_nodes.run_id
    FROM executables JOIN run_nodes ON run_nodes.id = executables.run_node_id
    WHERE executables.path_id = :path_id AND executables.run_node_id > :after
    ORDER BY executables.run_node_id LIMIT :limit
"""
_TRY_LOCK_RUN: Final = "SELECT id FROM runs WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED"
_SET_STALE: Final = "UPDATE runs SET stale = true, changes = changes + 1 WHERE id = :id"


class SoftwareIds:
    """The ids of software names within one transaction; an unknown name is inserted."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._ids: dict[SoftwareKey | None, int] = {None: UNDETERMINED}

    def id_of(self, key: SoftwareKey | None) -> int:
        """The id of a name; None is the name of paths that no rule matches."""
        if key not in self._ids:
            assert key is not None
            values = key._asdict()
            row = self._transaction.execute(_FIND, values).fetchone()
            if row is None:
                self._transaction.execute(_INSERT, values)
                row = self._transaction.execute(_FIND, values).fetchone()
            self._ids[key] = int(row[0])
        return self._ids[key]


def name_new_paths(
    transaction: Transaction, software_ids: Iterable[tuple[int, int]], now: int
) -> None:
    """Name paths, given with their software id, unless another process has named them."""
    rows = [{"id": id, "software_id": software_id, "now": now} for id, software_id in software_ids]
    transaction.execute_many(f"{_SET_NAME} AND software_id IS NULL", rows)


def rename_path(transaction: Transaction, path_id: int, software_id: int, now: int) -> None:
    transaction.execute(_SET_NAME, {"id": path_id, "software_id": software_id, "now": now})


class StaleRuns(NamedTuple):
    """How far the runs of a path have been marked."""

    #: The last ``run_nodes.id`` whose run is marked.
    last_node: int
    #: Whether it is the last one of the path.
    finished: bool
    nodes: int


def mark_runs_stale(transaction: Transaction, path_id: int, after: int, limit: int) -> StaleRuns:
    """Mark the runs of a path for new rollups, at most ``limit`` nodes after the node ``after``."""
    limit = max(limit, 1)
    key = {"path_id": path_id, "after": after, "limit": limit}
    nodes = transaction.execute(_NODES_OF_PATH, key).fetchall()
    marked = 0
    for run_node_id, run_id in nodes:
        run = {"id": run_id}
        # A batch may hold this run and wait for another of ours: waiting would be a deadlock.
        if transaction.postgresql and not transaction.execute(_TRY_LOCK_RUN, run).fetchone():
            return StaleRuns(after, False, marked)
        transaction.execute(_SET_STALE, run)
        after, marked = run_node_id, marked + 1
    return StaleRuns(after, len(nodes) < limit, marked)
