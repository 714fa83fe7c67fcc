"""The position and health of the scrape of a cluster, as a checkpoint of the store.

The name that Slurm reported for a cluster without one in the settings is a checkpoint, too.

The position belongs to the data: a store that is restored from a backup has the position of the
backup, and the next round reads what is missing since then.
"""

from __future__ import annotations

import msgspec

from jobsight.config.settings import Settings, short_host_name
from jobsight.store.checkpoints import list_checkpoints, read_checkpoint, set_checkpoint
from jobsight.store.database import Database

#: Followed by the name of the cluster.
_PREFIX = "scrape "
#: Followed by where Slurm is queried: several servers may share a store.
_NAME_PREFIX = "cluster name of "


class ScrapeState(msgspec.Struct, kw_only=True):
    """The position in the accounting, and the outcome of the last attempt."""

    cluster: str
    #: The accounting has been read up to this time.
    until: int | None = None
    attempted: int | None = None
    succeeded: int | None = None
    #: Why the last attempt failed; empty if it succeeded.
    reason: str = ""
    #: Which source is queried, and why it was chosen.
    source: str = ""
    #: In the last attempt: runs seen, runs that changed, fields that were not understood.
    seen: int = 0
    changed: int = 0
    problems: int = 0

    @property
    def healthy(self) -> bool:
        return self.succeeded is not None and not self.reason


def read_state(database: Database, cluster: str) -> ScrapeState:
    """The stored state; a new one if there is none, or if it cannot be read."""
    with database.query() as transaction:
        checkpoint = read_checkpoint(transaction, f"{_PREFIX}{cluster}")
    if checkpoint is None or checkpoint.text is None:
        return ScrapeState(cluster=cluster)
    try:
        return msgspec.json.decode(checkpoint.text, type=ScrapeState)
    except msgspec.DecodeError:
        return ScrapeState(cluster=cluster)


def write_state(database: Database, state: ScrapeState) -> None:
    text = msgspec.json.encode(state).decode()
    with database.write() as transaction:
        set_checkpoint(transaction, f"{_PREFIX}{state.cluster}", state.until or 0, text)


def attempted_clusters(database: Database) -> list[str]:
    """The clusters that were ever queried, also without success."""
    with database.query() as transaction:
        return sorted(list_checkpoints(transaction, _PREFIX))


def read_cluster_name(database: Database, settings: Settings) -> str | None:
    """The name that Slurm last reported where these settings query it."""
    with database.query() as transaction:
        checkpoint = read_checkpoint(transaction, _name_key(settings))
    return checkpoint.text if checkpoint else None


def write_cluster_name(database: Database, settings: Settings, name: str) -> None:
    with database.write() as transaction:
        set_checkpoint(transaction, _name_key(settings), 0, name)


def cluster_of_records(database: Database, settings: Settings) -> str:
    """The cluster of records that name none: as set, as Slurm reported it, or this machine."""
    return settings.cluster or read_cluster_name(database, settings) or settings.own_cluster()


def _name_key(settings: Settings) -> str:
    places = settings.scheduler.places() or [f"the commands of {short_host_name()}"]
    return _NAME_PREFIX + ", ".join(places)
