"""One question about use, whoever asks: the command or the API.

What grew and what shrank between two stretches of time.

All that the store knows of one software, or of one path.

The paths that the store knows, what they are called, and what they used.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, text

from jobsight.errors import ConfigError, JobsightError
from jobsight.reports.terminal import buckets
from jobsight.software.preview import software_names
from jobsight.software.rules import RuleSet, SoftwareName
from jobsight.store.database import Database
from jobsight.store.rollups.catalogue import PathRow, find_path, list_software, paths_of, use_of
from jobsight.store.rollups.shares import DAY
from jobsight.store.rollups.usage import (
    NAMES,
    PERIODS,
    Question,
    UsageKey,
    UsageRow,
    date_of,
    days_of,
    node_usage,
    today,
    usage,
)
from jobsight.text import readable_path

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


def trends_since(connection: Connection, question: Question) -> list[Trend]:
    """The groups of a question against as many days before it."""
    if question.since is None:
        raise ConfigError("what moved needs a first day; right: --since 30d")
    if {*question.by} & {*PERIODS, "node"}:
        raise ConfigError("what moved is found by software and owners, not by time or node")
    until = today() + 1 if question.until is None else question.until
    before = (question.since - (until - question.since), question.since)
    return trends(connection, question, before)


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


class Trend(UsageKey, kw_only=True, omit_defaults=True):
    """A group before and after, in core hours."""

    before: float
    after: float
    change: float
    jobs_before: int
    jobs_after: int


_KEYS = UsageKey.__struct_fields__


def trends(connection: Connection, question: Question, before: tuple[int, int]) -> list[Trend]:
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


def _mover(key: tuple[str | None, ...], one: UsageRow | None, other: UsageRow | None) -> Trend:
    before = (one.core_hours or 0) if one else 0.0
    after = (other.core_hours or 0) if other else 0.0
    return Trend(
        **dict(zip(_KEYS, key, strict=True)),
        before=before,
        after=after,
        change=after - before,
        jobs_before=one.jobs if one else 0,
        jobs_after=other.jobs if other else 0,
    )


class AboutSoftware(msgspec.Struct):
    """Its versions, who uses them and until when, and the paths that are called so."""

    software: str
    version: str | None
    versions: list[UsageRow]
    users: list[UsageRow]
    paths: list[PathRow]


class AboutPath(msgspec.Struct):
    """What a path is called, which rule says so, and its use."""

    path: str
    #: As stored; None where it is undetermined or was never seen.
    name: SoftwareName | None
    #: By the rules as they stand.
    name_by_rules: SoftwareName | None
    #: File and number of the rule.
    rule: tuple[str, int] | None
    use: PathRow | None


def about_software(
    connection: Connection, name: str, version: str | None, since: int | None, limit: int
) -> AboutSoftware:
    """What is known of a software since a day."""
    question = Question(
        by=("software", "version", "local_version"), software=name, version=version, since=since,
        ignored=True,
    )  # fmt: skip
    versions = usage(connection, question)
    named = list_software(connection, name)
    if not versions and not named:
        raise _unknown(connection, name)
    ids = [row.id for row in named if version in (None, row.version)]
    users = usage(connection, msgspec.structs.replace(question, by=("version", "user", "account")))
    return AboutSoftware(
        name,
        version,
        versions[:limit],
        users[:limit],
        paths_of(connection, ids, limit, None if since is None else since * DAY),
    )


def about_path(connection: Connection, rules: RuleSet, path: bytes) -> AboutPath:
    """What is known of a path."""
    use = find_path(connection, path)
    names = {row.id: row for row in list_software(connection)} if use else {}
    row = names.get(use.software_id or 0) if use else None
    name = None
    if row is not None and row.software is not None:
        texts = (row.software, row.version or "", row.local_version or "")
        name = SoftwareName(*texts, row.user_provided, row.ignored)
    return AboutPath(readable_path(path), name, rules.name(path), rules.rule_of(path), use)


def _unknown(connection: Connection, name: str) -> JobsightError:
    known = sorted({row.software for row in list_software(connection) if row.software})
    lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), lower, n=3)
    hint = f"did you mean {', '.join(lower[one] for one in near)}?" if near else "see the list"
    return JobsightError(f"no software of this store is called {name!r}; {hint}")


#: Paths whose use is asked for at once.
_AT_ONCE = 500
_PATHS = "SELECT id, path, software_id FROM paths ORDER BY id"


class KnownPath(NamedTuple):
    id: int
    #: As :func:`jobsight.text.readable_path` writes it.
    path: str
    #: None where no rule knows it.
    name: SoftwareName | None
    core_hours: float = 0.0
    runs: int = 0


def known_paths(database: Database) -> Iterable[KnownPath]:
    """All paths by the time they were first seen, without their use."""
    names = software_names(database)
    with database.read() as connection:
        for row in connection.execute(text(_PATHS)):
            yield KnownPath(row.id, readable_path(bytes(row.path)), names.get(row.software_id or 0))


def with_use(database: Database, paths: Iterable[KnownPath]) -> list[KnownPath]:
    """The same with what they used, the least first."""
    chosen = list(paths)
    result = []
    with database.read() as connection:
        for place in range(0, len(chosen), _AT_ONCE):
            group = chosen[place : place + _AT_ONCE]
            used = use_of(connection, [path.id for path in group])
            for path in group:
                row = used.get(path.path)
                result.append(
                    path._replace(core_hours=row.core_hours, runs=row.jobs) if row else path
                )
    return sorted(result, key=lambda path: path.core_hours)


def matcher(pattern: str) -> Callable[[str], bool]:
    """GLOB as SQLite has it; one with ``%`` and no sign of GLOB is LIKE, as SAMS documents both."""
    if "%" in pattern and not re.search(r"[*?\[]", pattern):
        pattern = pattern.replace("%", "*")
    compiled = re.compile(fnmatch.translate(pattern.replace("[^", "[!")))
    return lambda text: compiled.match(text) is not None
