"""Reports: who used what, by any key, from the daily rollups and from the executables."""

from __future__ import annotations

import msgspec
import pytest

from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.software.queries import read_trends, trends
from jobsight.software.worker import update
from jobsight.store.rollups.catalogue import (
    count_software,
    find_path,
    list_software,
    paths_of,
    undetermined_paths,
)
from jobsight.store.rollups.shares import DAY
from jobsight.store.rollups.usage import (
    LeftOut,
    Question,
    UsageRow,
    days_of,
    left_out,
    node_usage,
    period_name,
    starts,
    usage,
)
from jobsight.store.store import Store
from tests.software.rule_sets import rule_set
from tests.store.sample import START, batch, info, part, sighting, totals, use
from tests.store.sums import sum_up_everything

RULES = rule_set(
    "^/opt/sh/ sh 1 ignore",
    "^/home/ own-of-%%(user)s 1 user",
    "^/opt/(?P<s>[^/]+)/(?P<v>[^/]+)/ %(s)s %(v)s",
)
HOUR = 3600 * SECOND
FIRST = START // DAY


@pytest.fixture
def filled(store: Store) -> Store:
    """anna: two jobs of alpha 1 and one of alpha 2 a month later; bert: beta and his own."""
    _job(store, 1, "anna", 0, {b"/opt/alpha/1/a": 3, b"/opt/sh/1/sh": 1})
    _job(store, 2, "anna", 1, {b"/opt/alpha/1/a": 2}, cpu_hours=4)
    _job(store, 3, "anna", 30, {b"/opt/alpha/2/a": 4})
    _job(store, 4, "bert", 0, {b"/opt/beta/1/b": 2, b"/home/bert/x": 1, b"/usr/y": 1}, node="n2")
    update(store, RULES)
    return store


def _job(
    store: Store, job: int, user: str, day: int, uses: dict[bytes, int], cpu_hours: int = 0,
    node: str = "n1",
) -> None:  # fmt: skip
    """One hour on eight cores and two GPUs."""
    start = START + day * DAY
    record = info(
        job, start, user=user, account=f"of {user}", partition="batch", cpus=8, gpus=2,
        memory=2**30, end=start + HOUR,
    )  # fmt: skip
    whole = (cpu_hours or sum(uses.values())) * HOUR
    seen = part(
        sighting(job, node, start),
        totals=totals(day * 86400 + 3600, whole),
        executables=[use(path, hours * HOUR) for path, hours in uses.items()],
    )
    store.write(batch(record, seen))


def ask(store: Store, *by: str, **more: object) -> list[UsageRow]:
    with store.database.read() as connection:
        return usage(connection, Question(by=by, **more))  # type: ignore[arg-type]


def test_by_software(filled: Store) -> None:
    rows = ask(filled, "software")
    assert [
        (row.kind, row.software, row.jobs, row.users, row.executions, row.cpu_hours,
         row.core_hours, row.gpu_hours)
        for row in rows
    ] == [
        ("software", "alpha", 3, 1, 3, 9, 18, 4.5),
        ("software", "beta", 1, 1, 1, 2, 4, 1),
        ("not attributed", None, 1, 1, 0, 2, 4, 1),
        ("software", "own-of-bert", 1, 1, 1, 1, 2, 0.5),
        ("undetermined", None, 1, 1, 1, 1, 2, 0.5),
    ]  # fmt: skip
    with filled.database.read() as connection:
        assert left_out(connection, Question()) == LeftOut(2, 1)
    assert sum(row.core_hours or 0 for row in ask(filled, "software", ignored=True)) == 32


def test_by_version_and_user_and_month(filled: Store) -> None:
    rows = ask(filled, "software", "version", "user", "month", software="alpha")
    assert [(row.period, row.version, row.user, row.core_hours) for row in rows] == [
        ("2026-09", "1", "anna", 10),
        ("2026-10", "2", "anna", 8),
    ]
    assert (rows[0].first, rows[0].last) == ("2026-09-21", "2026-09-22")


def test_without_software_all_counts(filled: Store) -> None:
    rows = ask(filled, "user")
    assert [
        (row.user, row.jobs, row.executions, row.core_hours, row.gpu_hours, row.memory_gib_hours)
        for row in rows
    ] == [("anna", 3, 4, 24, 6, 3), ("bert", 1, 3, 8, 2, 1)]
    (whole,) = ask(filled)
    assert (whole.jobs, whole.users, whole.core_hours, whole.cpu_hours) == (4, 2, 32, 16)
    assert [row.period for row in ask(filled, "week")] == ["2026-W39", "2026-W43"]
    assert [row.jobs for row in ask(filled, "day")] == [2, 1, 1]


def test_filters(filled: Store) -> None:
    assert [row.software for row in ask(filled, "software", user="bert")] == [
        "beta", "own-of-bert", None,
    ]  # fmt: skip
    assert [row.user for row in ask(filled, "user", software="alpha", version="2")] == ["anna"]
    assert [row.user for row in ask(filled, "user", software="undetermined")] == ["bert"]
    assert [row.user for row in ask(filled, "user", software="not attributed")] == ["anna"]
    assert [row.user for row in ask(filled, "user", software="own-of-bert")] == ["bert"]
    assert ask(filled, "software", since=FIRST + 2, until=FIRST + 30) == []
    assert len(ask(filled, "software", since=FIRST + 30, until=FIRST + 31)) == 1
    assert ask(filled, "account", account="of bert")[0].core_hours == 8
    assert ask(filled, "partition", cluster="c2") == []


def test_a_wrong_grouping_says_what_would_be_right(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"no grouping by 'usr'; expected software, version"):
        ask(store, "usr")
    with pytest.raises(ConfigError, match="cannot be grouped by week"), store.database.read() as it:
        node_usage(it, Question(by=("node", "week")))
    with pytest.raises(ConfigError, match="one of day, week and month"):
        ask(store, "day", "month")
    assert ask(store, "month") == ask(store) == []
    with store.database.read() as connection:
        assert days_of(connection) is None


def test_by_node_from_the_executables(filled: Store) -> None:
    def by_node(*by: str, **more: object) -> list[tuple[object, ...]]:
        with filled.database.read() as connection:
            rows = node_usage(connection, Question(by=("node", *by), **more))  # type: ignore[arg-type]
        return [
            (row.node, row.kind, row.software, row.jobs, row.executions, row.cpu_hours)
            for row in rows
        ]

    assert by_node() == [("n1", None, None, 3, 4, 12), ("n2", None, None, 1, 3, 4)]
    assert by_node("software", user="anna") == [
        ("n1", "software", "alpha", 3, 3, 9),
        ("n1", "not attributed", None, 1, 0, 2),
    ]
    assert by_node("software", software="undetermined") == [("n2", "undetermined", None, 1, 1, 1)]
    assert by_node("software", since=FIRST + 30) == [("n1", "software", "alpha", 1, 1, 4)]
    assert by_node("software", software="own-of-bert") == [
        ("n2", "software", "own-of-bert", 1, 1, 1)
    ]


def test_movers(filled: Store) -> None:
    question = Question(by=("software", "version"), since=FIRST + 10, until=FIRST + 40)
    with filled.database.read() as connection:
        found = trends(connection, question, (FIRST, FIRST + 10))
    assert [(row.software, row.version, row.before, row.after) for row in found[:2]] == [
        ("alpha", "1", 10, 0),
        ("alpha", "2", 0, 8),
    ]


def test_names_and_paths(filled: Store) -> None:
    with filled.database.read() as connection:
        names = list_software(connection)
        assert [(row.software, row.version, row.ignored, row.paths) for row in names] == [
            ("alpha", "1", False, 1), ("alpha", "2", False, 1), ("beta", "1", False, 1),
            ("own-of-%(user)s", "1", False, 1), ("sh", "1", True, 1), (None, None, False, 1),
            (None, None, False, 0),
        ]  # fmt: skip
        assert [(row.core_hours, row.jobs, row.last) for row in names[-3:]] == [
            (2, 1, "2026-09-21"), (2, 1, "2026-09-21"), (4, 1, "2026-09-22"),
        ]  # fmt: skip
        assert count_software(connection) == 5
        # With a limit those that were used most; the usage without a name is always listed.
        for limit, expected in ((1, {"alpha 1"}), (2, {"alpha 1", "alpha 2"}), (9, None)):
            largest = list_software(connection, limit=limit)
            named = {f"{row.software} {row.version}" for row in largest if row.software}
            assert expected is None or named == expected
            assert largest == [
                row
                for row in names
                if row.software is None or f"{row.software} {row.version}" in named
            ]
        assert largest == names
        alpha = [row.id for row in list_software(connection, "alpha")]
        found = paths_of(connection, alpha, 10)
        assert [(row.path, row.jobs, row.core_hours) for row in found] == [
            ("/opt/alpha/1/a", 2, pytest.approx(10)), ("/opt/alpha/2/a", 1, pytest.approx(8)),
        ]  # fmt: skip
        (unknown,) = undetermined_paths(connection, 10)
        assert (unknown.path, unknown.software_id, unknown.last) == ("/usr/y", 0, START)
        assert undetermined_paths(connection, 10, since=START + 1) == []
        path = find_path(connection, b"/home/bert/x")
        assert path is not None
        assert path.cpu_hours == 1
        assert find_path(connection, b"/never/seen") is None


def test_periods() -> None:
    year = starts("month", 20454, 20454 + 364)
    assert [period_name("month", day) for day in year[:2]] == ["2026-01", "2026-02"]
    assert len(year) == 12
    # A Thursday; its week began on Monday in the year before.
    assert period_name("week", starts("week", 20454, 20454)[0]) == "2026-W01"
    assert starts("day", 5, 7) == [5, 6, 7]


def test_a_long_trend_has_a_step_for_each_month(store: Store) -> None:
    first = 20454  # 2026-01-01
    for job, day in enumerate((first + 3, first + 45, first + 250), 1):
        start = day * DAY
        end = start + 3600 * SECOND
        assert store.write(batch(info(job, start, end=end, user="anna", cpus=job)))
    sum_up_everything(store)
    question = Question(by=("user",), since=first, until=first + 273)
    with store.database.read() as connection:
        assert read_trends(connection, question, 20) == {
            ("anna",): [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0]
        }
        short = msgspec.structs.replace(question, until=first + 60)
        assert read_trends(connection, short, 2) == {("anna",): [1.0, 2.0]}
        alone = msgspec.structs.replace(question, until=first + 4)
        assert read_trends(connection, alone, 20) == {("anna",): [0.0, 0.0, 0.0, 1.0]}
