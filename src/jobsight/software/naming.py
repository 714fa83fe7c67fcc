"""Naming of the paths in a store: new paths, and all paths again when the rules change.

Nothing is named while a batch is written; the store's background work calls :func:`name_all_new`
and :func:`rename_all` before it computes the rollups. Renaming works in small transactions, each
with a checkpoint: an interrupted renaming resumes there, and batches never wait long. Runs of a
renamed path are marked stale, and the next rollup recomputes them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from jobsight.software.rules import RuleSet, SoftwareName
from jobsight.store.checkpoints import read_checkpoint, remove_checkpoint, set_checkpoint
from jobsight.store.database import Database
from jobsight.store.read import software as stored
from jobsight.store.read.software import SoftwareKey
from jobsight.store.write.software import (
    SoftwareIds,
    mark_runs_stale,
    name_new_paths,
    rename_path,
)

logger = logging.getLogger(__name__)

#: Paths named in one transaction.
NEW_BATCH_SIZE: Final = 2000
#: Paths named in one turn of the rollups, between the groups of runs.
NEW_TURN_SIZE: Final = 20_000
#: Paths renamed in one transaction, and nodes of runs that it marks stale.
BATCH_SIZE, MAX_NODES = 1000, 2000
#: The checkpoint with the digest of the current rules and the last path they were applied to.
RULES: Final = "rules"
#: The checkpoint of a path with many runs: its id, and the last of its nodes that is marked.
PARTIAL_PATH: Final = "rules: path in hand"
#: The rules have been applied to all paths.
DONE: Final = 2**63 - 1


class PathName(NamedTuple):
    """A path, its stored name, and its name by some rules."""

    id: int
    path: bytes
    software_id: int | None
    name: SoftwareName | None


def software_names(database: Database) -> dict[int, SoftwareName]:
    """The names in the store by their ids."""
    return {id: SoftwareName(*key) for id, key in stored.software_keys(database).items()}


def name_new(database: Database, rules: RuleSet, limit: int = NEW_BATCH_SIZE) -> int:
    """Name some of the new paths; returns their number."""
    new = stored.unnamed_paths(database, limit)
    if not new:
        return 0
    # Rules are applied before the transaction, so that no batch waits for them.
    keys = {row.id: _key(rules.name(row.path)) for row in new}
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        ids = SoftwareIds(transaction)
        named = [(path_id, ids.id_of(key)) for path_id, key in keys.items()]
        name_new_paths(transaction, named, time.time_ns())
    logger.debug("%d new paths named, %d without a rule", len(keys), [*keys.values()].count(None))
    return len(new)


def name_all_new(
    database: Database,
    rules: RuleSet,
    stopped: Callable[[], bool] = lambda: False,
    limit: float = math.inf,
) -> bool:
    """Name all new paths, up to a limit; False if there may be more."""
    total = 0
    while not stopped() and total < limit:
        named = name_new(database, rules, NEW_BATCH_SIZE)
        total += named
        if named < NEW_BATCH_SIZE:
            return True
    return False


def digest_in_use(database: Database) -> str | None:
    """The digest of the rules that name this store's paths."""
    with database.write() as transaction:
        checkpoint = read_checkpoint(transaction, RULES)
    return None if checkpoint is None else checkpoint.text


def adopt_rules(database: Database, rules: RuleSet) -> bool:
    """Make these the rules of the store; False if they are already."""
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        checkpoint = read_checkpoint(transaction, RULES)
        if checkpoint is not None and checkpoint.text == rules.digest:
            return False
        # A partial path keeps its checkpoint: the rest of its runs must still be marked.
        set_checkpoint(transaction, RULES, 0, rules.digest)
    logger.info("new rules: all paths are named again (digest %s)", rules.digest[:12])
    return True


def rename_all(
    database: Database,
    rules: RuleSet,
    progress: Callable[[int, int], None] = lambda done, total: None,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Apply adopted rules to all paths that others named; False if stopped before the end."""
    while not stopped():
        with database.write() as transaction:
            checkpoint = read_checkpoint(transaction, RULES)
            partial = read_checkpoint(transaction, PARTIAL_PATH)
        if partial is not None:
            # No progress means that a batch holds one of the runs, for milliseconds.
            time.sleep(0 if _continue_path(database) else 0.01)
            continue
        if checkpoint is None or checkpoint.text != rules.digest or checkpoint.value == DONE:
            return True
        names = names_by_rules(database, rules, checkpoint.value)
        _rename(database, rules, checkpoint.value, names)
        progress(*_progress(database, names))
    return False


def names_by_rules(database: Database, rules: RuleSet, after: int) -> list[PathName]:
    """The next paths by id, with their names by the rules."""
    rows = stored.paths_after(database, after, BATCH_SIZE)
    return [PathName(row.id, row.path, row.software_id, rules.name(row.path)) for row in rows]


def _rename(database: Database, rules: RuleSet, after: int, names: list[PathName]) -> None:
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        checkpoint = read_checkpoint(transaction, RULES)
        if checkpoint is None or checkpoint.text != rules.digest or checkpoint.value != after:
            return  # Another process has renamed these paths, or adopted other rules.
        if read_checkpoint(transaction, PARTIAL_PATH) is not None:
            return
        ids = SoftwareIds(transaction)
        remaining, now = MAX_NODES, time.time_ns()
        for path in names:
            after = path.id
            software_id = ids.id_of(_key(path.name))
            if software_id == path.software_id:
                continue
            rename_path(transaction, path.id, software_id, now)
            if path.software_id is None:
                continue  # No rollup contains it yet.
            marked = mark_runs_stale(transaction, path.id, -1, remaining)
            remaining -= marked.nodes
            if not marked.finished:
                set_checkpoint(transaction, PARTIAL_PATH, marked.last_node, str(path.id))
                break
        complete = len(names) < BATCH_SIZE and (not names or after == names[-1].id)
        set_checkpoint(transaction, RULES, DONE if complete else after, rules.digest)


def _continue_path(database: Database) -> int:
    """Mark more runs of the partial path; returns the number of its nodes."""
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        partial = read_checkpoint(transaction, PARTIAL_PATH)
        if partial is None or partial.text is None:
            return 0
        marked = mark_runs_stale(transaction, int(partial.text), partial.value, MAX_NODES)
        if marked.finished:
            remove_checkpoint(transaction, PARTIAL_PATH)
        else:
            set_checkpoint(transaction, PARTIAL_PATH, marked.last_node, partial.text)
    return marked.nodes


def _progress(database: Database, names: list[PathName]) -> tuple[int, int]:
    total = stored.count_paths(database)
    if len(names) < BATCH_SIZE:
        return total, total
    return stored.count_paths(database, names[-1].id), total


def _key(name: SoftwareName | None) -> SoftwareKey | None:
    if name is None:
        return None
    texts = (name.software, name.version, name.local_version)
    return SoftwareKey(*texts, name.user_provided, name.ignored)
