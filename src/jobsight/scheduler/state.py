"""The position and health of the scrape of a cluster, as a checkpoint of the store.

The position belongs to the data: a store that is restored from a backup has the position of the
backup, and the next round reads what is missing since then.
"""

from __future__ import annotations

import msgspec

from jobsight.store.checkpoints import list_checkpoints, read_checkpoint, set_checkpoint
from jobsight.store.database import Database

#: Followed by the name of the cluster.
_PREFIX = "scrape "


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
