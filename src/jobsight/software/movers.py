"""What grew and what shrank between two stretches of time."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from jobsight.store.rollups.usage import Question, UsageKey, UsageRow, usage


class Mover(UsageKey, kw_only=True, omit_defaults=True):
    """A group before and after, in core hours."""

    before: float
    after: float
    change: float
    jobs_before: int
    jobs_after: int


_KEYS = UsageKey.__struct_fields__


def movers(connection: Connection, question: Question, before: tuple[int, int]) -> list[Mover]:
    """The groups of a question, which has a first and a last day, against those of the days
    before; the largest change first."""
    earlier = msgspec.structs.replace(question, since=before[0], until=before[1])
    one, other = _by_key(connection, earlier), _by_key(connection, question)
    found = [_mover(key, one.get(key), other.get(key)) for key in {**one, **other}]
    # What has no name comes after what has one, where both moved as much.
    return sorted(
        found,
        key=lambda row: (-abs(row.change), not row.software, row.software or "", row.user or ""),
    )


def _by_key(connection: Connection, question: Question) -> dict[tuple[str | None, ...], UsageRow]:
    return {tuple(getattr(row, name) for name in _KEYS): row for row in usage(connection, question)}


def _mover(key: tuple[str | None, ...], one: UsageRow | None, other: UsageRow | None) -> Mover:
    before = (one.core_hours or 0) if one else 0.0
    after = (other.core_hours or 0) if other else 0.0
    return Mover(
        **dict(zip(_KEYS, key, strict=True)),
        before=before,
        after=after,
        change=after - before,
        jobs_before=one.jobs if one else 0,
        jobs_after=other.jobs if other else 0,
    )
