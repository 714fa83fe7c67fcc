"""How far a piece of work has come that goes on for ever; read and set inside a transaction."""

from __future__ import annotations

from typing import NamedTuple

from jobsight.store.database import Transaction

_READ = "SELECT value, text FROM marks WHERE name = :name"
_SET = """
    INSERT INTO marks (name, value, text) VALUES (:name, :value, :text)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value, text = excluded.text
"""
_REMOVE = "DELETE FROM marks WHERE name = :name"


class Mark(NamedTuple):
    value: int
    text: str | None = None


def read_mark(transaction: Transaction, name: str) -> Mark | None:
    found = transaction.execute(_READ, {"name": name}).fetchone()
    return None if found is None else Mark(*found)


def set_mark(transaction: Transaction, name: str, value: int, text: str | None = None) -> None:
    transaction.execute(_SET, {"name": name, "value": value, "text": text})


def remove_mark(transaction: Transaction, name: str) -> None:
    transaction.execute(_REMOVE, {"name": name})
