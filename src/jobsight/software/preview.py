"""Preview of a rule change: the paths and hours that would move from one name to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from jobsight.software.naming import BATCH_SIZE, names_by_rules, software_names
from jobsight.software.rules import RuleSet, SoftwareName
from jobsight.store.database import Database, Transaction
from jobsight.store.read.software import path_digests, runs_of_paths
from jobsight.store.rollups import rollups
from jobsight.store.rollups.shares import shares_of_run, with_day_boundaries
from jobsight.util.batching import batched

#: Runs read in one transaction.
_RUNS_BATCH_SIZE: Final = 100
_MAX_EXAMPLES: Final = 3


class Change(msgspec.Struct):
    """Paths that move from one name to another, and their use in microseconds."""

    #: None is undetermined.
    before: SoftwareName | None
    after: SoftwareName | None
    paths: int = 0
    examples: list[bytes] = msgspec.field(default_factory=list)
    runs: int = 0
    cpu_time: int = 0
    core_time: int = 0
    gpu_time: int = 0


class _ChangedPath(NamedTuple):
    id: int
    digest: bytes
    change: Change


def preview(
    database: Database,
    rules: RuleSet,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Change]:
    """All changes that the rules would make, by decreasing core time. Nothing is written."""
    changed = _changed_paths(database, rules)
    changes = {path.digest: path.change for path in changed}
    run_ids = sorted(runs_of_paths(database, (path.id for path in changed)))
    done = 0
    for some in batched(run_ids, _RUNS_BATCH_SIZE):
        with database.query() as transaction:
            for run_id in some:
                _add_run(transaction, run_id, changes)
        done += len(some)
        progress(done, len(run_ids))
    distinct = {id(path.change): path.change for path in changed}.values()
    return sorted(distinct, key=lambda change: (-change.core_time, -change.cpu_time, -change.paths))


def _changed_paths(database: Database, rules: RuleSet) -> list[_ChangedPath]:
    stored = software_names(database)
    changes: dict[tuple[SoftwareName | None, SoftwareName | None], Change] = {}
    result = []
    after = 0
    while True:
        names = names_by_rules(database, rules, after)
        before = {path.id: stored.get(path.software_id or 0) for path in names}
        differing = [path for path in names if before[path.id] != path.name]
        digests = path_digests(database, [path.id for path in differing])
        for path in differing:
            key = (before[path.id], path.name)
            change = changes.setdefault(key, Change(*key))
            change.paths += 1
            if len(change.examples) < _MAX_EXAMPLES:
                change.examples.append(path.path)
            result.append(_ChangedPath(path.id, digests[path.id], change))
        if len(names) < BATCH_SIZE:
            return result
        after = names[-1].id


def _add_run(transaction: Transaction, run_id: int, changes: dict[bytes, Change]) -> None:
    run = rollups.read_run(transaction, run_id)
    if run is None:
        return
    nodes = rollups.read_nodes(transaction, [run_id]).nodes.get(run_id, {})
    counted: set[int] = set()
    for share in shares_of_run(run, with_day_boundaries(transaction, run, nodes)):
        change = changes.get(share.digest)
        if change is None:
            continue
        change.runs += id(change) not in counted
        counted.add(id(change))
        change.cpu_time += share.cpu_time
        change.core_time += share.core_time
        change.gpu_time += share.gpu_time
