"""Names for paths that have none yet, and the rows of the names themselves.

Nothing is named while a batch is written: the store's background work does it, before it sums up.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import select

from jobsight.software.rules import RuleSet, SoftwareName
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
