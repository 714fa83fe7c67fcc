"""Names for paths that have none yet, and the rows of the names themselves.

Nothing is named while a batch is written: the store's background work does it, before it sums up.

History under new rules: every path is asked again, and the runs of those that changed wait.

Small transactions, each of which notes how far it came: whoever is killed goes on from there, and
batches never wait long. The sums follow when the runs are summed up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from sqlalchemy import func, select

from jobsight.software.rules import RuleSet, SoftwareName
from jobsight.store.checkpoints import read_checkpoint, remove_checkpoint, set_checkpoint
from jobsight.store.database import Database, Transaction
from jobsight.store.rollups.shares import UNDETERMINED
from jobsight.store.schema.tables import paths

#: Paths that are named in one transaction.
AT_ONCE = 2000

_KEY = ("name", "version", "local_version", "user_provided", "ignored")
_SAME = " AND ".join(f"{name} = :{name}" for name in _KEY)
_FIND = f"SELECT id FROM software WHERE {_SAME}"
_INSERT = f"""
    INSERT INTO software ({", ".join(_KEY)}) VALUES ({", ".join(f":{name}" for name in _KEY)})
    ON CONFLICT ({", ".join(_KEY)}) DO NOTHING
"""
SET_NAME = "UPDATE paths SET software_id = :software_id, named = :named WHERE id = :id"
_NAME_NEW = f"{SET_NAME} AND software_id IS NULL"


class SoftwareRows:
    """The ids of names, in one transaction; a name that is new gets a row."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._ids: dict[SoftwareName | None, int] = {None: UNDETERMINED}

    def id(self, name: SoftwareName | None) -> int:
        """The row of a name; paths that no rule knows have none."""
        if name not in self._ids:
            assert name is not None
            key = {
                "name": name.software,
                "version": name.version,
                "local_version": name.local_version,
                "user_provided": name.user_provided,
                "ignored": name.ignored,
            }
            found = self._transaction.execute(_FIND, key).fetchone()
            if found is None:
                self._transaction.execute(_INSERT, key)
                found = self._transaction.execute(_FIND, key).fetchone()
            self._ids[name] = int(found[0])
        return self._ids[name]


def name_new(database: Database, rules: RuleSet, limit: int = AT_ONCE) -> int:
    """Name some of the paths that have no name yet; how many they were."""
    waiting = select(paths.c.id, paths.c.path).where(paths.c.software_id.is_(None))
    with database.read() as connection:
        found = connection.execute(waiting.order_by(paths.c.id).limit(limit)).all()
    if not found:
        return 0
    # Before the transaction, so that no batch waits for a rule.
    names = {row.id: rules.name(bytes(row.path)) for row in found}
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        rows = SoftwareRows(transaction)
        now = time.time_ns()
        transaction.execute_many(
            _NAME_NEW,
            [{"id": id, "software_id": rows.id(name), "named": now} for id, name in names.items()],
        )
    return len(found)


def name_all_new(
    database: Database, rules: RuleSet, stopped: Callable[[], bool] = lambda: False
) -> int:
    """Name all paths that have no name yet."""
    whole = 0
    while not stopped():
        named = name_new(database, rules)
        whole += named
        if named < AT_ONCE:
            break
    return whole


#: Paths that are asked at once, and nodes of runs whose runs one transaction makes wait.
PATHS_AT_ONCE, NODES_AT_ONCE = 1000, 2000
#: Of the marks: which rules name now and the last path that they were asked for; and the path in
#: hand, with the last of its nodes whose run was made to wait.
RULES, IN_HAND = "rules", "rules: path in hand"
#: All paths have been asked.
DONE: Final = 2**63 - 1

_NODES_OF_PATH = """
    SELECT DISTINCT executables.run_node_id, run_nodes.run_id
    FROM executables JOIN run_nodes ON run_nodes.id = executables.run_node_id
    WHERE executables.path_id = :path_id AND executables.run_node_id > :after
    ORDER BY executables.run_node_id LIMIT :limit
"""
_FREE = "SELECT id FROM runs WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED"
_WAIT = "UPDATE runs SET stale = true WHERE id = :id AND NOT stale"


class RenamingRequest(NamedTuple):
    """A path, what it is called, and what the rules call it now."""

    id: int
    path: bytes
    software_id: int | None
    name: SoftwareName | None


def digest_in_use(database: Database) -> str | None:
    """Of the rules that name this store's paths."""
    with database.write() as transaction:
        mark = read_checkpoint(transaction, RULES)
    return None if mark is None else mark.text


def adopt_rules(database: Database, rules: RuleSet) -> bool:
    """Make these the rules of the store; False where they are it already."""
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        mark = read_checkpoint(transaction, RULES)
        if mark is not None and mark.text == rules.digest:
            return False
        # The path in hand stays: runs that were not reached yet still wait for its new name.
        set_checkpoint(transaction, RULES, 0, rules.digest)
    return True


def rename_all(
    database: Database,
    rules: RuleSet,
    progress: Callable[[int, int], None] = lambda done, whole: None,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Ask the rules for every path that was named by others before; False where it was stopped."""
    while not stopped():
        with database.write() as transaction:
            mark = read_checkpoint(transaction, RULES)
            in_hand = read_checkpoint(transaction, IN_HAND)
        if in_hand is not None:
            moved = _finish_path(database)
            # Some run of it is held by a batch, which takes milliseconds.
            time.sleep(0 if moved else 0.01)
            continue
        if mark is None or mark.text != rules.digest or mark.value == DONE:
            return True
        asked = request_renaming(database, rules, mark.value)
        _apply(database, rules, mark.value, asked)
        progress(*_how_far(database, asked))
    return False


def request_renaming(database: Database, rules: RuleSet, after: int) -> list[RenamingRequest]:
    """What the rules call the next paths by id."""
    query = select(paths.c.id, paths.c.path, paths.c.software_id).where(paths.c.id > after)
    with database.read() as connection:
        rows = connection.execute(query.order_by(paths.c.id).limit(PATHS_AT_ONCE)).all()
    return [
        RenamingRequest(id, bytes(path), software_id, rules.name(bytes(path)))
        for id, path, software_id in rows
    ]


def _apply(database: Database, rules: RuleSet, after: int, asked: list[RenamingRequest]) -> None:
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        mark = read_checkpoint(transaction, RULES)
        if mark is None or mark.text != rules.digest or mark.value != after:
            return  # Another process has done it, or brought other rules.
        if read_checkpoint(transaction, IN_HAND) is not None:
            return
        rows = SoftwareRows(transaction)
        left, now = NODES_AT_ONCE, time.time_ns()
        for path in asked:
            after = path.id
            new = rows.id(path.name)
            if new == path.software_id:
                continue
            transaction.execute(SET_NAME, {"id": path.id, "software_id": new, "named": now})
            if path.software_id is None:
                continue  # No run with it was ever summed up.
            reached, finished, moved = _make_wait(transaction, path.id, -1, left)
            left -= moved
            if not finished:
                set_checkpoint(transaction, IN_HAND, reached, str(path.id))
                break
        whole = len(asked) < PATHS_AT_ONCE and (not asked or after == asked[-1].id)
        set_checkpoint(transaction, RULES, DONE if whole else after, rules.digest)


def _finish_path(database: Database) -> int:
    """Go on with the path in hand; how many of its nodes were reached."""
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        in_hand = read_checkpoint(transaction, IN_HAND)
        if in_hand is None or in_hand.text is None:
            return 0
        path_id = int(in_hand.text)
        reached, finished, moved = _make_wait(transaction, path_id, in_hand.value, NODES_AT_ONCE)
        if finished:
            remove_checkpoint(transaction, IN_HAND)
        else:
            set_checkpoint(transaction, IN_HAND, reached, in_hand.text)
    return moved


def _make_wait(
    transaction: Transaction, path_id: int, after: int, limit: int
) -> tuple[int, bool, int]:
    """Make the runs of a path wait: the last node reached, whether it was the path's last, and how
    many they were."""
    key = {"path_id": path_id, "after": after, "limit": max(limit, 1)}
    found = transaction.execute(_NODES_OF_PATH, key).fetchall()
    moved = 0
    for run_node_id, run_id in found:
        # Waiting here for a batch that waits for a run of ours would never end.
        if transaction.postgresql and not transaction.execute(_FREE, {"id": run_id}).fetchone():
            return after, False, moved
        transaction.execute(_WAIT, {"id": run_id})
        after, moved = run_node_id, moved + 1
    return after, len(found) < key["limit"], moved


def _how_far(database: Database, asked: list[RenamingRequest]) -> tuple[int, int]:
    whole = select(func.count()).select_from(paths)
    with database.read() as connection:
        count = connection.scalar(whole) or 0
        if len(asked) < PATHS_AT_ONCE:
            return count, count
        return connection.scalar(whole.where(paths.c.id <= asked[-1].id)) or 0, count
