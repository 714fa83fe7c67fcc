"""Reports from the rollups by month are those of the rollups by day, in any time."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from jobsight.software.naming import adopt_rules, name_all_new
from jobsight.software.rules import RuleSet
from jobsight.store.rollups.catalogue import list_software
from jobsight.store.rollups.rollups import sum_up_all
from jobsight.store.rollups.shares import DAY, first_day, month_of
from jobsight.store.rollups.usage import HOUR, Question, UsageRow, days_of, left_out, usage
from jobsight.store.schema.tables import software, software_by_day, usage_by_day
from jobsight.store.store import Store
from tests.software.rule_sets import rule_set
from tests.store.sample import batch, info, part, sighting, totals, use
from tests.store.sums import rows

#: 2025-11-20: a month of 31 days, one of 28, and a change of the year follow.
FIRST = (date(2025, 11, 20) - date(1970, 1, 1)).days
DAYS = 120
RULES = rule_set(
    "^/apps/(?P<s>[a-z]+)/(?P<v>[0-9.]+)/ %(s)s %(v)s",
    "^/home/ programs-of-%(user)s 1",
    "^/project/ programs-of-%(project)s 1",
    "^/bin/ system 1 ignore",
)
PATHS = (
    b"/apps/solver/1.0/bin/solve",
    b"/apps/solver/2.0/bin/solve",
    b"/apps/mesher/3.1/bin/mesh",
    b"/home/x/a.out",
    b"/project/x/a.out",
    b"/bin/sh",
    b"/unknown/program",
)


def _fill(store: Store, count: int = 60) -> None:
    choose = random.Random(11)
    records: list[Any] = []
    for job in range(1, count + 1):
        start = (FIRST + choose.randrange(DAYS)) * DAY + choose.randrange(DAY)
        who = {
            "user": choose.choice(("anna", "bert", "carla", "")) or None,
            "account": choose.choice(("astro", "bio")),
            "partition": choose.choice(("batch", "debug")),
            "cpus": choose.choice((1, 4)),
        }
        end = start + choose.randrange(1, 5 * DAY)
        records.append(info(job, start, end=end, state="COMPLETED", **who))
        uses = [use(path, choose.randrange(10**12)) for path in choose.sample(PATHS, 3)]
        seen = sighting(job, birth=start)
        records.append(part(seen, totals=totals(9, 3 * 10**12), executables=uses, final=True))
    assert store.write(batch(*records))
    adopt_rules(store.database, RULES)
    name_all_new(store.database, RULES)
    sum_up_all(store.database)


def _expected(store: Store, question: Question) -> dict[tuple[object, ...], tuple[Any, ...]]:
    """The groups of a question, added up row by row."""
    named = question.names_software
    table = software_by_day if named else usage_by_day
    with store.database.read() as connection:
        names = {row.id: row for row in connection.execute(select(software))}
        found = [dict(row) for row in connection.execute(select(table)).mappings()]
    groups: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in found:
        if question.since is not None and row["day"] < question.since:
            continue
        if question.until is not None and row["day"] >= question.until:
            continue
        if any(row[name] != value for name, value in question.given("user", "account").items()):
            continue
        name = names.get(row.get("software_id") or 0)
        if named and name is not None:
            if name.ignored and not question.ignored:
                continue
            filled = name.name.replace("%(user)s", row["user"])
            row["software"] = filled.replace("%(project)s", row["account"])
            row["version"] = name.version
        if question.software is not None and row.get("software") != question.software:
            continue
        when = date(1970, 1, 1) + timedelta(days=row["day"])
        row["month"], row["day_name"] = when.strftime("%Y-%m"), when.isoformat()
        kind = None if not named else name is not None or row["software_id"]
        key = tuple(row.get("day_name" if by == "day" else by) for by in question.by)
        group = groups.setdefault(
            (*key, kind if {*question.by} & {"software", "version"} else None),
            {"users": set(), "days": set(), "cpu": 0, "core": 0, "runs": 0},
        )
        counted = "runs"
        if named:
            counted = "version_runs" if "version" in question.by else "name_runs"
        group["users"].add(row["user"])
        group["days"].add(row["day_name"])
        group["cpu"] += row["cpu_time"]
        group["core"] += row["core_time"]
        group["runs"] += row[counted]
    return {
        key: (
            group["runs"],
            len(group["users"]),
            group["cpu"] / HOUR,
            group["core"] / HOUR,
            min(group["days"]),
            max(group["days"]),
        )
        for key, group in groups.items()
    }


_KINDS = {"software": True, "undetermined": 0, "not attributed": -1, None: None}


def _given(question: Question, found: list[UsageRow]) -> dict[tuple[object, ...], tuple[Any, ...]]:
    result = {
        (
            *(row.period if by in ("day", "month") else getattr(row, by) for by in question.by),
            _KINDS[row.kind],
        ): (row.jobs, row.users, row.cpu_hours, row.core_hours, row.first, row.last)
        for row in found
    }
    assert len(result) == len(found)
    return result


def test_any_time_comes_to_the_sum_of_its_days(store: Store) -> None:
    _fill(store)
    choose = random.Random(5)
    with store.database.read() as connection:
        bounds = days_of(connection)
    assert bounds is not None
    times: list[tuple[int | None, int | None]] = [
        (None, None),
        bounds,
        (bounds[0], bounds[1] + 1),
        (FIRST + 11, FIRST + 11),
        (FIRST + 11, FIRST + 11 + 31),
        (FIRST + 11, None),
        (None, FIRST + 42),
        (bounds[0] - 400, bounds[1] + 400),
        (bounds[1] + 1, None),
    ]
    for _ in range(40):
        first = FIRST - 3 + choose.randrange(DAYS + 6)
        times.append((first, first + choose.randrange(DAYS)))
    groups: tuple[tuple[str, ...], ...] = (
        ("software",), ("software", "version", "user"), ("user",), ("account", "partition"),
        ("software", "month"), ("cluster", "month"), ("user", "day"),
    )  # fmt: skip
    with store.database.read() as connection:
        for since, until in times:
            filters: dict[str, Any] = choose.choice(
                ({}, {"user": "anna"}, {"account": "bio"}, {"software": "solver"},
                 {"software": "programs-of-bio"}, {"software": "programs-of-bert"},
                 {"ignored": True}, {"user": ""})
            )  # fmt: skip
            for by in groups:
                question = Question(by=by, since=since, until=until, **filters)
                given = _given(question, usage(connection, question))
                assert given == _expected(store, question), question


def test_what_is_left_out_is_what_the_rules_ignore(store: Store) -> None:
    _fill(store)
    for since, until in ((None, None), (FIRST + 20, FIRST + 90), (FIRST + 25, FIRST + 60)):
        with store.database.read() as connection:
            question = Question(since=since, until=until)
            shown = usage(connection, question)
            every = usage(connection, Question(since=since, until=until, ignored=True))
            out = left_out(connection, question)
        difference = sum(row.cpu_hours for row in every) - sum(row.cpu_hours for row in shown)
        assert out.cpu_hours == pytest.approx(difference)
        assert out.cpu_hours > 0


def test_the_list_of_software_is_the_sum_of_its_days(store: Store) -> None:
    _fill(store)
    with store.database.read() as connection:
        listed = {row.id: row for row in list_software(connection)}
    days = rows(store, software_by_day)
    place = list(software_by_day.c.keys()).index
    for id, row in listed.items():
        own = [day for day in days if day[place("software_id")] == id]
        assert row.jobs == sum(day[place("runs")] for day in own)
        assert row.users == len({day[place("user")] for day in own})
        assert row.core_hours == sum(day[place("core_time")] for day in own) / HOUR
        last = max((day[0] for day in own), default=None)
        assert row.last == (last and (date(1970, 1, 1) + timedelta(days=last)).isoformat())
    assert {day[place("software_id")] for day in days} <= listed.keys()


def test_a_run_that_moves_within_a_month_clears_the_day_that_it_left(store: Store) -> None:
    """The first and the last day of use are those of rows that exist."""
    start = FIRST * DAY
    store.write(batch(info(1, start, end=start + 2 * DAY, user="anna", cpus=1)))
    name_all_new(store.database, RuleSet([]))
    sum_up_all(store.database)
    store.record_jobs([info(1, start, end=start + DAY // 2, user="anna", cpus=1)])
    sum_up_all(store.database)
    with store.database.read() as connection:
        (row,) = usage(connection, Question(by=("user",)))
    assert (row.first, row.last, row.core_hours) == ("2025-11-20", "2025-11-20", 12)
    assert len(rows(store, usage_by_day)) == 1


def test_months_are_those_of_the_calendar() -> None:
    for day in range(-1000, 40_000):
        when = date(1970, 1, 1) + timedelta(days=day)
        assert month_of(day) == (when.year - 1970) * 12 + when.month - 1
        assert first_day(month_of(day)) == day - when.day + 1
