"""How many jobs used what: the counts of the reports against a plain count over the runs."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from jobsight.model import SECOND
from jobsight.software.worker import update
from jobsight.store.rollups.rollups import decode_contribution
from jobsight.store.rollups.shares import DAY, NOT_ATTRIBUTED, UNDETERMINED
from jobsight.store.rollups.usage import KINDS, Question, node_usage, usage
from jobsight.store.schema.tables import (
    contributions,
    executables,
    paths,
    run_nodes,
    runs,
    software,
)
from jobsight.store.store import Store
from tests.examples import examples
from tests.software.rule_sets import rule_set
from tests.software.test_naming import clear
from tests.store.sample import START, batch, info, part, sighting, totals, use

#: One name in many rows: by versions, by local versions, by flags alone, ignored or not.
RULES = rule_set(
    "^/bin/(?P<f>[^/]+)$ system 1 local=%(f)s",
    "^/own/bin/(?P<f>[^/]+)$ system 1 local=%(f)s user",
    "^/sbin/(?P<f>[^/]+)$ system 2 local=%(f)s ignore",
    "^/home/(?P<f>[^/]+)$ of-%%(user)s 1 local=%(f)s",
    "^/a/ alone 1",
)
PATHS = [b"/bin/cat", b"/bin/gzip", b"/own/bin/cat", b"/sbin/cat", b"/sbin/fsck", b"/home/x",
         b"/home/y", b"/a/a", b"/b", b"/c"]  # fmt: skip
NAMES = ("software", "version", "local_version")
OWNERS = ("user", "account", "partition")


class Job(NamedTuple):
    start: int
    days: int
    user: str
    account: str
    uses: dict[bytes, int]
    #: CPU time that no program accounts for.
    more: int


JOBS = st.builds(
    Job,
    st.integers(0, 40),
    st.integers(0, 20),
    st.sampled_from(["anna", "bert"]),
    st.sampled_from(["astro", "bio"]),
    st.dictionaries(st.sampled_from(PATHS), st.integers(0, 3)),
    st.integers(0, 1),
)


def write(store: Store, jobs: list[Job]) -> None:
    for number, job in enumerate(jobs, 1):
        start = START + job.start * DAY
        record = info(
            number, start, user=job.user, account=job.account, partition="batch", cpus=2,
            end=start + job.days * DAY + SECOND,
        )  # fmt: skip
        seen = part(
            sighting(number, f"n{number % 2}", start),
            totals=totals(job.start * 86400 + 1, (sum(job.uses.values()) + job.more) * SECOND),
            executables=[use(path, spent * SECOND) for path, spent in job.uses.items()],
        )
        store.write(batch(record, seen))


class Row(NamedTuple):
    """One run and one software that it used."""

    run_id: int
    ignored: bool
    #: Not attributed, but without CPU time: only what was allocated.
    idle: bool
    #: What a report may be grouped by.
    keys: dict[str, Any]


def used(store: Store) -> list[Row]:
    """From the programs; what they leave over is known from the run's share alone."""
    program = (
        select(runs.c.id, paths.c.software_id)
        .join(run_nodes, run_nodes.c.run_id == runs.c.id)
        .join(executables, executables.c.run_node_id == run_nodes.c.id)
        .join(paths, paths.c.id == executables.c.path_id)
    )
    with store.database.read() as connection:
        names = {row.id: row for row in connection.execute(select(software))}
        owners = {row.id: row for row in connection.execute(select(runs))}
        nodes = dict(connection.execute(select(run_nodes.c.run_id, run_nodes.c.node)).all())
        pairs = {(*row, False) for row in connection.execute(program)}
        for row in connection.execute(select(contributions)):
            rest = decode_contribution(bytes(row.data)).software().get(NOT_ATTRIBUTED)
            if rest is not None:
                pairs.add((row.run_id, NOT_ATTRIBUTED, not rest.cpu_time))
    result = []
    for run_id, software_id, idle in pairs:
        run, name = owners[run_id], names.get(software_id)
        keys = {key: getattr(run, key) for key in OWNERS} | {"node": nodes[run_id]}
        keys["month"] = datetime.fromtimestamp(run.start / 1e9, UTC).strftime("%Y-%m")
        keys["kind"] = KINDS.get(software_id, "software")
        texts = (name.name, name.version, name.local_version) if name else (None, None, None)
        for key, text in zip(NAMES, texts, strict=True):
            keys[key] = text and text.replace("%(user)s", run.user)
        result.append(Row(run_id, bool(name and name.ignored), idle, keys))
    return result


def plain_count(rows: list[Row], question: Question) -> Counter[tuple[Any, ...]]:
    filters = question.given(*NAMES[:2], *OWNERS)
    groups = {
        (row.run_id, tuple(row.keys[key] for key in ("kind", *question.by)))
        for row in rows
        if question.ignored or not row.ignored
        if all(row.keys[key] == value for key, value in filters.items())
    }
    return Counter(group for _, group in groups)


def reported(rows: list[Any], question: Question) -> Counter[tuple[Any, ...]]:
    fields = ["kind", *("period" if key == "month" else key for key in question.by)]
    found = Counter({tuple(getattr(row, field) for field in fields): row.jobs for row in rows})
    # A run is in the sums of later months, too, but began in one.
    return +found


BY = [
    (*NAMES[:depth], *more)
    for depth in (1, 2, 3)
    for more in ((), ("user",), ("month",), ("user", "month"), ("account", "partition", "month"))
]
QUESTIONS = [
    Question(by=by, ignored=ignored, **filters)
    for ignored in (False, True)
    for by, filters in [
        *((by, {}) for by in BY),
        (("software",), {"version": "1"}),
        (("version", "user"), {"software": "system"}),
        (("software", "month"), {"user": "anna"}),
    ]
]


@given(st.lists(JOBS, max_size=5))
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_report_counts_each_run_once_in_each_row(store: Store, jobs: list[Job]) -> None:
    clear(store)
    write(store, jobs)
    update(store, RULES)
    rows = used(store)
    with store.database.read() as connection:
        for question in QUESTIONS:
            found = reported(usage(connection, question), question)
            assert found == plain_count(rows, question), question
        for names in (NAMES[:1], NAMES[:2], NAMES):
            question = Question(by=("node", *names))
            found = reported(node_usage(connection, question), question)
            # Nobody knows what was allocated by node.
            assert found == plain_count([row for row in rows if not row.idle], question), question


def test_two_runs_of_five_programs_are_two_jobs(store: Store) -> None:
    programs = dict.fromkeys(PATHS[:3] + PATHS[8:], 1)
    write(store, [Job(0, 0, "anna", "astro", programs, 0), Job(1, 0, "bert", "bio", programs, 0)])
    update(store, RULES)
    with store.database.read() as connection:
        found = usage(connection, Question(by=("software",)))
        assert [(row.software, row.jobs, row.users) for row in found] == [
            ("system", 2, 2), (None, 2, 2),
        ]  # fmt: skip
        (system,) = usage(connection, Question(by=("user",), software="system", user="anna"))
        assert (system.jobs, system.users) == (1, 1)
        (whole,) = usage(connection, Question(by=(), software="system", version="1"))
        assert (whole.jobs, whole.users) == (2, 2)


@pytest.mark.parametrize("kind", [UNDETERMINED, NOT_ATTRIBUTED])
def test_what_has_no_name_counts_as_a_name(store: Store, kind: int) -> None:
    write(store, [Job(0, 0, "anna", "astro", {b"/b": 1, b"/c": 1, b"/a/a": 1}, 1)] * 3)
    update(store, RULES)
    for depth in (1, 2, 3):
        with store.database.read() as connection:
            found = usage(connection, Question(by=NAMES[:depth]))
        assert [row.jobs for row in found if row.kind == KINDS[kind]] == [3]
