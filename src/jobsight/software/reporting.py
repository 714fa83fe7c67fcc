"""One question about use, whoever asks: the command or the API."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from jobsight.errors import ConfigError
from jobsight.reports.sparks import buckets
from jobsight.software.movers import Mover, movers
from jobsight.store.rollups.usage import (
    NAMES,
    PERIODS,
    Question,
    UsageRow,
    date_of,
    days_of,
    node_usage,
    today,
    usage,
)

#: The fields of a row that can name its group.
KEYS = ("period", "kind", *NAMES, "node", "cluster", "user", "account", "partition")


def key_fields(question: Question) -> list[str]:
    """The fields of a row that name its group."""
    periods = [name for name in question.by if name in PERIODS]
    kind = ["kind"] if {*question.by} & {*NAMES} else []
    others = [name for name in question.by if name not in periods]
    return [*(["period"] if periods else []), *kind, *others]


def read_usage(connection: Connection, question: Question) -> list[UsageRow]:
    """The groups of a question; by node from the executables, else from the sums by day."""
    ask = node_usage if "node" in question.by else usage
    return ask(connection, question)


def movers_since(connection: Connection, question: Question) -> list[Mover]:
    """The groups of a question against as many days before it."""
    if question.since is None:
        raise ConfigError("what moved needs a first day; right: --since 30d")
    if {*question.by} & {*PERIODS, "node"}:
        raise ConfigError("what moved is found by software and owners, not by time or node")
    until = today() + 1 if question.until is None else question.until
    before = (question.since - (until - question.since), question.since)
    return movers(connection, question, before)


def read_trends(
    connection: Connection, question: Question, count: int
) -> dict[tuple[object, ...], list[float]]:
    """The core hours of each group over the time asked for, in at most ``count`` steps."""
    if {*question.by} & {*PERIODS, "node"}:
        return {}
    days = days_of(connection)
    if days is None:
        return {}
    first = days[0] if question.since is None else question.since
    last = days[1] if question.until is None else question.until - 1
    places = {date_of(day).isoformat(): day - first for day in range(first, last + 1)}
    fields = key_fields(question)
    result: dict[tuple[object, ...], list[float]] = {}
    by_day = msgspec.structs.replace(question, by=(*question.by, "day"))
    for row in usage(connection, by_day):
        key = tuple(getattr(row, name) for name in fields)
        values = result.setdefault(key, [0.0] * len(places))
        values[places[row.period or ""]] += row.core_hours or 0
    return {key: buckets(values, count) for key, values in result.items()}
