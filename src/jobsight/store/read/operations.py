"""What operators look at: late agents, lost batches, and the size of the store."""

from __future__ import annotations

from typing import Final, NamedTuple

from jobsight.store.database import Database
from jobsight.store.maintenance.inventory import disk_free, size_of
from jobsight.store.sql.load import load_statements

_SQL: Final = load_statements("operations")
#: Agents and spools in a list.
MAX_LISTED: Final = 50


class AgentRow(NamedTuple):
    """An agent by its last batch."""

    cluster: str
    node: str
    version: str
    received: int
    clock_skew: int


class AgentCount(NamedTuple):
    """The agents of a cluster."""

    cluster: str
    agents: int
    #: The last batches of the agent that is silent for the longest time, and of the newest.
    oldest: int
    newest: int
    #: Agents without a batch since the given time.
    late: int


class LostBatches(NamedTuple):
    """Sequence numbers of one spool that were never received, although later ones were."""

    cluster: str
    node: str
    lost: int


class StoreSize(NamedTuple):
    """Bytes of the database, and bytes free on its disk; None for PostgreSQL."""

    size: int
    free: int | None


def count_agents(database: Database, late: int) -> list[AgentCount]:
    """The agents by cluster; late are those without a batch since then."""
    with database.query() as transaction:
        rows = transaction.execute(_SQL["count_agents"], {"late": late}).fetchall()
    return [AgentCount(row[0], *map(int, row[1:])) for row in rows]


def silent_agents(database: Database, limit: int = MAX_LISTED) -> list[AgentRow]:
    """The agents that sent nothing for the longest time."""
    with database.query() as transaction:
        rows = transaction.execute(_SQL["agents"], {"limit": limit}).fetchall()
    return [AgentRow(*row) for row in rows]


def lost_batches(database: Database, limit: int = MAX_LISTED) -> list[LostBatches]:
    """The spools that lost batches, the most first."""
    with database.query() as transaction:
        rows = transaction.execute(_SQL["lost_batches"], {"limit": limit}).fetchall()
    return [LostBatches(cluster, node, int(lost)) for cluster, node, lost in rows]


def store_size(database: Database) -> StoreSize:
    """How large the store is, and what its disk has left."""
    with database.read() as connection:
        size = size_of(connection)
    return StoreSize(size, None if database.postgresql else disk_free(database))
