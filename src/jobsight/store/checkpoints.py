"""Checkpoints: the stored position at which background work resumes after a restart."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from jobsight.store.sql.load import load_statements
from jobsight.store.transaction import Transaction

_SQL: Final = load_statements("checkpoints")


class Checkpoint(NamedTuple):
    value: int
    text: str | None = None


def read_checkpoint(transaction: Transaction, name: str) -> Checkpoint | None:
    row = transaction.execute(_SQL["read_checkpoint"], {"name": name}).fetchone()
    return None if row is None else Checkpoint(*row)


def list_checkpoints(transaction: Transaction, prefix: str) -> dict[str, Checkpoint]:
    """The checkpoints whose name begins with ``prefix``, by the rest of their name."""
    rows = transaction.execute(_SQL["list_checkpoints"], {"pattern": f"{prefix}%"}).fetchall()
    return {name.removeprefix(prefix): Checkpoint(value, text) for name, value, text in rows}


def set_checkpoint(
    transaction: Transaction, name: str, value: int, text: str | None = None
) -> None:
    transaction.execute(_SQL["set_checkpoint"], {"name": name, "value": value, "text": text})


def add_to_checkpoint(
    transaction: Transaction, name: str, amount: int, text: str | None = None
) -> None:
    """Add to the value of a checkpoint; the text is that of the first call."""
    transaction.execute(_SQL["add_to_checkpoint"], {"name": name, "value": amount, "text": text})


def remove_checkpoint(transaction: Transaction, name: str) -> None:
    transaction.execute(_SQL["remove_checkpoint"], {"name": name})


def is_at_work(host: str, pid: int) -> bool:
    """Whether another process of this host is running, by what a checkpoint has of it."""
    if host != os.uname().nodename or pid == os.getpid():
        # In a container each server has the same PID as the one before.
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
