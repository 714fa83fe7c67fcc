"""Queries about the use of software, for the commands and the API.

:func:`read_usage` groups use, :func:`trends_since` compares two intervals, :func:`about_software`
and :func:`about_path` describe one name or path, and :func:`known_paths` lists paths.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from jobsight.errors import ConfigError, JobsightError
from jobsight.software.naming import software_names
from jobsight.software.rules import RuleSet, SoftwareName
from jobsight.store.database import Database
from jobsight.store.read.software import iterate_paths
from jobsight.store.rollups.catalogue import PathRow, find_path, list_software, paths_of, use_of
from jobsight.store.rollups.shares import DAY
from jobsight.store.rollups.usage import (
    NAMES,
    PERIODS,
    Period,
    Question,
    UsageKey,
    UsageRow,
    days_of,
    node_usage,
    period_name,
    starts,
    today,
    usage,
)
from jobsight.text import readable_path
from jobsight.util.batching import batched

if TYPE_CHECKING:
    from jobsight.store.database import Connection

#: The fields of a row that can identify its group.
KEYS = ("period", "kind", *NAMES, "node", "cluster", "user", "account", "partition")


def key_fields(question: Question) -> list[str]:
    """The fields of a row that identify its group."""
    periods = [name for name in question.by if name in PERIODS]
    kind = ["kind"] if {*question.by} & {*NAMES} else []
    others = [name for name in question.by if name not in periods]
    return [*(["period"] if periods else []), *kind, *others]


def read_usage(connection: Connection, question: Question) -> list[UsageRow]:
    """The groups of a question: by node from the executables, else from the daily rollups."""
    read = node_usage if "node" in question.by else usage
    return read(connection, question)


def trends_since(connection: Connection, question: Question) -> list[Trend]:
    """The groups of a question compared with the same number of days before it."""
    if question.since is None:
        raise ConfigError("a trend needs a first day; expected --since, e.g. --since 30d")
    if {*question.by} & {*PERIODS, "node"}:
        raise ConfigError("a trend is grouped by software or owner, not by time or node")
    until = today() + 1 if question.until is None else question.until
    before = (question.since - (until - question.since), question.since)
    return trends(connection, question, before)


#: Days of a trend that are read by day; a longer one is read by month.
_MOST_DAYS = 180


def read_trends(
    connection: Connection, question: Question, count: int
) -> dict[tuple[object, ...], list[float]]:
    """The core hours of each group over the requested time, in at most ``count`` steps."""
    if {*question.by} & {*PERIODS, "node"}:
        return {}
    days = days_of(connection)
    if days is None:
        return {}
    first = days[0] if question.since is None else question.since
    last = days[1] if question.until is None else question.until - 1
    step: Period = "month" if last - first > _MOST_DAYS else "day"
    names = [period_name(step, day) for day in starts(step, first, max(first, last))]
    indices = {name: index for index, name in enumerate(names)}
    fields = key_fields(question)
    result: dict[tuple[object, ...], list[float]] = {}
    by_step = msgspec.structs.replace(question, by=(*question.by, step))
    for row in usage(connection, by_step):
        key = tuple(getattr(row, name) for name in fields)
        values = result.setdefault(key, [0.0] * len(indices))
        values[indices[row.period or ""]] += row.core_hours or 0
    return {key: _buckets(values, count) for key, values in result.items()}


def _buckets(values: Sequence[float], count: int) -> list[float]:
    """Sum values into at most ``count`` buckets of equal width."""
    if len(values) <= count:
        return list(values)
    result = [0.0] * count
    for index, value in enumerate(values):
        result[index * count // len(values)] += value
    return result


class Trend(UsageKey, kw_only=True, omit_defaults=True):
    """The core hours and jobs of a group in two intervals."""

    before: float
    after: float
    change: float
    jobs_before: int
    jobs_after: int


_KEYS = UsageKey.__struct_fields__


def trends(connection: Connection, question: Question, before: tuple[int, int]) -> list[Trend]:
    """The groups of a question compared with those of the days ``before``; the largest change
    first."""
    earlier = msgspec.structs.replace(question, since=before[0], until=before[1])
    old, new = _by_key(connection, earlier), _by_key(connection, question)
    rows = [_trend(key, old.get(key), new.get(key)) for key in {**old, **new}]
    # Of equal changes, groups without a name come last.
    return sorted(
        rows,
        key=lambda row: (-abs(row.change), not row.software, row.software or "", row.user or ""),
    )


def _by_key(connection: Connection, question: Question) -> dict[tuple[str | None, ...], UsageRow]:
    return {tuple(getattr(row, name) for name in _KEYS): row for row in usage(connection, question)}


def _trend(key: tuple[str | None, ...], old: UsageRow | None, new: UsageRow | None) -> Trend:
    before = (old.core_hours or 0) if old else 0.0
    after = (new.core_hours or 0) if new else 0.0
    return Trend(
        **dict(zip(_KEYS, key, strict=True)),
        before=before,
        after=after,
        change=after - before,
        jobs_before=old.jobs if old else 0,
        jobs_after=new.jobs if new else 0,
    )


class AboutSoftware(msgspec.Struct):
    """The versions of a software, their users, and the paths with that name."""

    software: str
    version: str | None
    versions: list[UsageRow]
    users: list[UsageRow]
    paths: list[PathRow]


class AboutPath(msgspec.Struct):
    """The name of a path, the rule that assigns it, and its use."""

    path: str
    #: As stored; None if it is undetermined or was never seen.
    name: SoftwareName | None
    #: By the current rules.
    name_by_rules: SoftwareName | None
    #: File and number of the rule.
    rule: tuple[str, int] | None
    use: PathRow | None


def about_software(
    connection: Connection, name: str, version: str | None, since: int | None, limit: int
) -> AboutSoftware:
    """Describe a software since a day."""
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
    """Describe a path."""
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
    by_lower = {software.lower(): software for software in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3)
    hint = "see `jobsight software`"
    if near:
        hint = f"did you mean {', '.join(by_lower[lower] for lower in near)}?"
    return JobsightError(f"this store has no software named {name!r}; {hint}")


#: Paths whose use is read with one query.
_BATCH_SIZE = 500


class KnownPath(NamedTuple):
    id: int
    #: As :func:`jobsight.text.readable_path` writes it.
    path: str
    #: None if no rule matches it.
    name: SoftwareName | None
    core_hours: float = 0.0
    runs: int = 0


def known_paths(database: Database) -> Iterable[KnownPath]:
    """All paths in the order in which they were first seen, without their use."""
    names = software_names(database)
    for row in iterate_paths(database):
        yield KnownPath(row.id, readable_path(row.path), names.get(row.software_id or 0))


def with_use(database: Database, paths: Iterable[KnownPath]) -> list[KnownPath]:
    """The paths with their use, the least used first."""
    chosen = list(paths)
    result = []
    with database.read() as connection:
        for group in batched(chosen, _BATCH_SIZE):
            used = use_of(connection, [path.id for path in group])
            for path in group:
                row = used.get(path.path)
                result.append(
                    path._replace(core_hours=row.core_hours, runs=row.jobs) if row else path
                )
    return sorted(result, key=lambda path: path.core_hours)


def matcher(pattern: str) -> Callable[[str], bool]:
    """SQLite's GLOB; a pattern with ``%`` and no GLOB character is LIKE. SAMS documents both."""
    if "%" in pattern and not re.search(r"[*?\[]", pattern):
        pattern = pattern.replace("%", "*")
    compiled = re.compile(fnmatch.translate(pattern.replace("[^", "[!")))
    return lambda text: compiled.match(text) is not None
