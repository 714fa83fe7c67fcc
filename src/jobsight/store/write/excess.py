"""What was left out of runs because they have too much of it, counted by cluster.

The bounds are those of :mod:`jobsight.store.write.bounds` for all batches of a run. An agent gets a
sentence with each batch of which something is left out; the counts here are what health and
``/metrics`` show, over the life of the store.
"""

from __future__ import annotations

from typing import Final

from jobsight.store.checkpoints import Checkpoint, add_to_checkpoint, list_checkpoints
from jobsight.store.database import Database
from jobsight.store.transaction import Transaction

#: Followed by the cluster; the value is the count, the text the first sentence.
_LEFT_OUT: Final = "left out: "


def count_excess(transaction: Transaction, cluster: str, count: int, sentence: str) -> None:
    """Count rows and values that were left out."""
    add_to_checkpoint(transaction, f"{_LEFT_OUT}{cluster}", count, sentence)


def read_excess(database: Database) -> dict[str, Checkpoint]:
    """How many rows and values were left out of each cluster, and what was first."""
    with database.query() as transaction:
        return list_checkpoints(transaction, _LEFT_OUT)
