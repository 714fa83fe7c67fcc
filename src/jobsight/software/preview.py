"""What other rules would change: the hours that go from one name to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from sqlalchemy import select

from jobsight.software.naming import PATHS_AT_ONCE, RenamingRequest, request_renaming
from jobsight.software.rules import RuleSet, SoftwareName
from jobsight.store.database import Database, Transaction
from jobsight.store.rollups import rollups
from jobsight.store.rollups.shares import shares_of_run, with_day_boundaries
from jobsight.store.schema.tables import executables, paths, run_nodes, software

#: Runs that are read in one transaction.
_RUNS_AT_ONCE = 100


class Change(msgspec.Struct):
    """Paths that go from one name to another, and the microseconds that go with them."""

    #: None is undetermined.
    before: SoftwareName | None
    after: SoftwareName | None
    #: Their number, and some of them.
    paths: int = 0
    examples: list[bytes] = msgspec.field(default_factory=list)
    runs: int = 0
    cpu_time: int = 0
    core_time: int = 0
    gpu_time: int = 0


class _Changed(NamedTuple):
    id: int
    digest: bytes
    move: Change


def preview(
    database: Database,
    rules: RuleSet,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> list[Change]:
    """All moves that these rules would make, the most core time first. Nothing is changed."""
    changed = _changed_paths(database, rules)
    by_digest = {path.digest: path.move for path in changed}
    run_ids = sorted(_runs_of(database, changed))
    for place in range(0, len(run_ids), _RUNS_AT_ONCE):
        with database.write() as transaction:
            for run_id in run_ids[place : place + _RUNS_AT_ONCE]:
                _book(transaction, run_id, by_digest)
        progress(min(place + _RUNS_AT_ONCE, len(run_ids)), len(run_ids))
    moves = {id(path.move): path.move for path in changed}.values()
    return sorted(moves, key=lambda move: (-move.core_time, -move.cpu_time, -move.paths))


def software_names(database: Database) -> dict[int, SoftwareName]:
    """The names in the store by their ids."""
    columns = (software.c.name, software.c.version, software.c.local_version)
    flags = (software.c.user_provided, software.c.ignored)
    with database.read() as connection:
        rows = connection.execute(select(software.c.id, *columns, *flags)).all()
    return {row[0]: SoftwareName(*row[1:4], bool(row[4]), bool(row[5])) for row in rows}


def _changed_paths(database: Database, rules: RuleSet) -> list[_Changed]:
    names = software_names(database)
    moves: dict[tuple[SoftwareName | None, SoftwareName | None], Change] = {}
    result = []
    after = 0
    while True:
        asked = request_renaming(database, rules, after)
        differing = [path for path in asked if _before(path, names) != path.name]
        digests = _digests(database, [path.id for path in differing])
        for path in differing:
            key = (_before(path, names), path.name)
            move = moves.setdefault(key, Change(*key))
            move.paths += 1
            if len(move.examples) < 3:
                move.examples.append(path.path)
            result.append(_Changed(path.id, digests[path.id], move))
        if len(asked) < PATHS_AT_ONCE:
            return result
        after = asked[-1].id


def _before(path: RenamingRequest, names: dict[int, SoftwareName]) -> SoftwareName | None:
    return names.get(path.software_id or 0)


def _digests(database: Database, ids: list[int]) -> dict[int, bytes]:
    with database.read() as connection:
        found = connection.execute(
            select(paths.c.id, paths.c.digest).where(paths.c.id.in_(ids))
        ).all()
    return {row.id: bytes(row.digest) for row in found}


def _runs_of(database: Database, changed: list[_Changed]) -> set[int]:
    result: set[int] = set()
    with database.read() as connection:
        for path in changed:
            query = (
                select(run_nodes.c.run_id)
                .join(executables, executables.c.run_node_id == run_nodes.c.id)
                .where(executables.c.path_id == path.id)
            )
            result.update(connection.scalars(query))
    return result


def _book(transaction: Transaction, run_id: int, moves: dict[bytes, Change]) -> None:
    run = rollups.read_run(transaction, run_id)
    if run is None:
        return
    found = rollups.read_nodes(transaction, rollups.ONE, {"id": run_id}).nodes.get(run_id, {})
    seen: set[int] = set()
    for share in shares_of_run(run, with_day_boundaries(transaction, run, found)):
        move = moves.get(share.digest)
        if move is None:
            continue
        move.runs += id(move) not in seen
        seen.add(id(move))
        move.cpu_time += sum(share.cpu_time)
        move.core_time += sum(share.core_time)
        move.gpu_time += sum(share.gpu_time)
