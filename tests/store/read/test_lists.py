"""Lists of runs: every filter finds what a filter in Python finds, and reads an index."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobsight.model import SECOND, RunReference
from jobsight.reports import pending
from jobsight.reports.build import JobRow, job_row
from jobsight.reports.pending import Cursor, list_page
from jobsight.store import transaction as transactions
from jobsight.store.read import queries
from jobsight.store.read.filters import Filters, Sort
from jobsight.store.read.search import parse_search
from jobsight.store.schema.search_index import TABLE
from jobsight.store.store import Store
from tests.store import postgresql
from tests.store.sample import START, batch, info, part, sighting, step, totals, use

COUNT = 160
USERS = ("anna", "bob", "carla_1", None)
ACCOUNTS = ("physics", "bio%", None)
STATES = ("RUNNING", "COMPLETED", "FAILED", "UNKNOWN", "PENDING", "TIMEOUT")
PARTITIONS = ("batch", "gpu", None)
NAMES = ("md_prod_1", "MD_PROD_2", "relax", "a", "ab", "100%", "Größe", "x'y\"z", "", None)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """Runs with and without records of the scheduler, open and ended on their nodes."""
    location = str(Path(tmp_path_factory.mktemp("lists")) / "store.db")
    if request.param == "postgresql":
        server: postgresql.Server = request.getfixturevalue("postgresql_server")
        location = server.new_database()
    with Store.open(location) as store:
        _fill(store)
        yield store


def _fill(store: Store) -> None:
    choose = random.Random(16)
    for number in range(COUNT):
        job_id = choose.choice((number, 4200 + number, 420_000 + number))
        # Several runs start in the same second.
        start = START + choose.randrange(60) * SECOND
        recorded = choose.random() < 0.7
        content: list[Any] = []
        if recorded:
            ended = choose.random() < 0.6
            content.append(
                info(
                    job_id,
                    start,
                    user=choose.choice(USERS),
                    account=choose.choice(ACCOUNTS),
                    partition=choose.choice(PARTITIONS),
                    qos=choose.choice(("normal", "long")),
                    cpus=choose.choice((None, 0, 1, 4)),
                    memory=choose.choice((None, 10**9)),
                    gpus=choose.choice((None, None, 0, 2)),
                    name=choose.choice(NAMES),
                    command=choose.choice((None, "/home/anna/run.sh --case 7")),
                    state=choose.choice((*STATES[1:3], "TIMEOUT") if ended else ("RUNNING", None)),
                    end=start + choose.randrange(4) * SECOND if ended else None,
                    array_job_id=62 if number % 9 == 0 else None,
                    array_task_id=number if number % 9 == 0 else None,
                )
            )
        for node in range(choose.randrange(0 if recorded else 1, 3)):
            seen = sighting(job_id, f"n{node}", start)
            final = choose.random() < 0.5
            memory = choose.choice((None, choose.randrange(2 * 10**9)))
            used = totals(1, choose.randrange(10**10), memory_used_peak=memory)
            content.append(part(seen, totals=used, steps=[step("0")], final=final))
        store.write(batch(*content))


def shown(store: Store) -> list[tuple[queries.StoredRun, JobRow]]:
    """All runs in the order of lists."""
    runs = store.runs(limit=10 * COUNT)
    assert len(runs) == COUNT
    assert [(run.start, run.id) for run in runs] == sorted(
        ((run.start, run.id) for run in runs), reverse=True
    )
    return [(run, job_row(run, START)) for run in runs]


def is_match(run: queries.StoredRun, row: JobRow, filters: Mapping[str, Any]) -> bool:
    """The filters in Python, by what a list shows."""
    for name in ("user", "account", "state", "partition", "cluster"):
        if filters.get(name) is not None and getattr(row, name) != filters[name]:
            return False
    if filters.get("qos") not in (None, run.info.qos):
        return False
    if filters.get("gpus") and not run.info.gpus:
        return False
    if "node" in filters and run.node_count <= int(filters["node"][1:]):
        return False
    share = row.cpu_share if row.end is not None else None
    if "cpu_share_below" in filters and (share is None or share >= filters["cpu_share_below"]):
        return False
    if "cpu_share_above" in filters and (share is None or share < filters["cpu_share_above"]):
        return False
    since = filters.get("since")
    if since is not None and (row.start is None or row.start < since):
        return False
    return filters.get("search") is None or is_found(
        run, row, filters["search"].strip().partition("\n")[0]
    )


def is_found(run: queries.StoredRun, row: JobRow, text: str) -> bool:
    """The search in Python, by its definition."""
    columns = [row.name, row.user, row.account, row.partition, run.info.command]
    texts = [lower(column or "") for column in columns]
    sought = lower(text)
    if len(text) == 1:
        found = sought in texts
    elif len(text) == 2:
        found = any(column.startswith(sought) for column in texts)
    else:
        found = any(sought in column for column in texts)
    return found or not text or str(row.job_id).startswith(text) or row.display_id == text


def lower(text: str) -> str:
    """Lower case as both engines have it in the search: of ASCII."""
    return "".join(char.lower() if char.isascii() else char for char in text)


SEARCHES = (
    *("md_prod", "MD_PROD_2", "prod", "relax", "a", "ab", "A", "re", "100%", "0%", "%", "größe"),
    *("Größe", "x'y\"z", '"z', "case 7", "/home", "anna", "carla_1", "bio%", "batch", "ba", "tch"),
    *("4", "42", "420", "4200", "42003", "420001", "7", "0", "62_9", "62_0", "62_1", "88+1"),
    *(" relax ", " ", "nowhere", "zz", "\x00", "a\nb", "x" * 200, "9" * 18, "9" * 40),
)
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "user": st.sampled_from([*USERS[:3], "nobody"]),
        "account": st.sampled_from([*ACCOUNTS[:2], "none"]),
        "state": st.sampled_from(STATES),
        "search": st.sampled_from(SEARCHES),
        "since": st.integers(-5, 65).map(lambda second: START + second * SECOND),
        "partition": st.sampled_from(["batch", "gpu", "none"]),
        "qos": st.sampled_from(["normal", "long"]),
        "cluster": st.sampled_from(["c1", "c2"]),
        "node": st.sampled_from(["n0", "n1", "n2"]),
        "gpus": st.booleans(),
        "cpu_share_below": st.sampled_from([0.1, 1.0, 100.0]),
        "cpu_share_above": st.sampled_from([0.1, 1.0, 100.0]),
    },
)
#: What a list shows of each column that it can be sorted by, for those whose order Python knows.
SORTED = {
    "start": lambda run, row: run.start,
    "job_id": lambda run, row: row.job_id,
    "user": lambda run, row: row.user,
    "account": lambda run, row: row.account,
    "cluster": lambda run, row: row.cluster,
    "partition": lambda run, row: row.partition,
    "qos": lambda run, row: run.info.qos,
    "state": lambda run, row: row.state,
    "end": lambda run, row: row.end,
    "elapsed": lambda run, row: None if row.end is None else row.elapsed,
    "cpus": lambda run, row: row.requested_cpus,
    "cpu_time": lambda run, row: None if row.end is None else row.cpu_time,
    "cpu_share": lambda run, row: None if row.end is None else row.cpu_share,
    "memory_peak": lambda run, row: None if row.end is None else row.memory_used_peak_bytes,
    "memory_share": lambda run, row: None if row.end is None or not run.info.memory
    else row.memory_share,
    "gpus": lambda run, row: run.info.gpus or None,
}  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(filters=FILTERS, limit=st.integers(1, 60), offset=st.integers(0, 170))
def test_a_list_is_what_a_filter_in_python_finds(
    filled: Store, filters: dict[str, Any], limit: int, offset: int
) -> None:
    expected = [run.id for run, row in shown(filled) if is_match(run, row, filters)]
    found = filled.runs(**filters, limit=limit, offset=offset)
    assert [run.id for run in found] == expected[offset : offset + limit]
    assert filled.count_runs(**filters) == len(expected)
    page, count = filled.page_of_runs(**filters, limit=limit, offset=offset)
    assert (page.runs, count) == (found, (len(expected), True))
    assert (page.next is None) == (len(expected) <= offset + limit)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(filters=FILTERS, limit=st.integers(1, 60))
def test_the_pages_of_a_cursor_join_without_gap(
    filled: Store, filters: dict[str, Any], limit: int
) -> None:
    expected = [row.run for run, row in shown(filled) if is_match(run, row, filters)]
    found: list[str] = []
    cursor: Cursor | None = None
    while True:
        page = list_page(filled, now=START, limit=limit, cursor=cursor, **filters)
        found += [row.run for row in page.rows]
        assert (page.total, page.total_exact) == (len(expected), True)
        if page.next is None:
            break
        assert len(page.rows) == limit
        cursor = Cursor.parse(str(page.next))
    assert found == expected


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    filters=FILTERS,
    limit=st.integers(1, 60),
    sort=st.builds(Sort, st.sampled_from([*SORTED]), st.booleans()),
    windows=st.sampled_from([(5000, 1000, 10_000), (0, 3, 7), (10, 5, 40)]),
)
def test_the_pages_of_a_sorted_list_join_without_gap(
    filled: Store, filters: dict[str, Any], limit: int, sort: Sort, windows: tuple[int, ...]
) -> None:
    few, first, window = windows
    matches = [(run, row) for run, row in shown(filled) if is_match(run, row, filters)]
    value = SORTED[sort.key]
    running = sort.key in RUNNING_SORTS and filters.get("state") == "RUNNING"
    known = [
        (value(*each), each[0].start, each[0].id) for each in matches if value(*each) is not None
    ]
    known.sort(reverse=sort.descending)
    unknown = [run.id for run, row in matches if value(run, row) is None]
    found: list[int] = []
    after = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "_FEW", few)
        patch.setattr(queries, "_FIRST_WINDOW", first)
        patch.setattr(queries, "_WINDOW", window)
        patch.setattr(queries, "_MAX_COMPARED", 4 * window)
        while True:
            page, _ = filled.page_of_runs(limit=limit, after=after, sort=sort, **filters)
            found += [run.id for run in page.runs]
            if page.next is None:
                break
            after = Cursor.parse(str(Cursor(run=page.next)), sort).run
    if running:
        # Sorted by what they have used so far.
        assert sorted(found) == sorted(run.id for run, _ in matches)
    else:
        assert found == [id for *_, id in known] + unknown


RUNNING_SORTS = {name for name, key in queries.SORTS.items() if key.running}


def test_running_runs_are_sorted_by_what_they_have_used_so_far(filled: Store) -> None:
    runs = filled.runs(limit=COUNT, state="RUNNING", sort=Sort("cpu_time"))
    times = [run.cpu_time for run in runs]
    known = [time for time in times if time is not None]
    assert len(known) > 10
    assert times[: len(known)] == sorted(known, reverse=True)
    elapsed = filled.runs(limit=COUNT, state="RUNNING", sort=Sort("elapsed"))
    assert [run.start for run in elapsed] == sorted(run.start for run in runs)


@pytest.mark.parametrize(
    ("text", "sort"),
    [
        ("5-7", Sort("cluster")),
        ("5-7.NQ", Sort("user")),
        ("5-7.NQ", Sort()),
        ("5-7.ImEi", Sort("cpus")),
        ("5-7.MTAwMDAwMDAwMDAwMDAwMDAwMDAwMDA", Sort("cpus")),
        ("5-7.!", Sort("cpus")),
        ("5-7.bnVsbA", Sort("job_id")),
        ("x", Sort()),
    ],
)
def test_a_cursor_of_another_list_is_refused(text: str, sort: Sort) -> None:
    with pytest.raises(ValueError, match="cursor"):
        Cursor.parse(text, sort)


def test_a_sort_by_no_column_is_refused() -> None:
    assert Sort.parse("-cpu_share") == Sort("cpu_share", descending=True)
    assert str(Sort.parse("user")) == "user"
    with pytest.raises(ValueError, match="'color' is no column to sort by; expected one of start"):
        Sort.parse("color")


# A text that many runs contain takes other ways through the tables than one that few contain.
@pytest.mark.parametrize(("few", "window"), [(0, 1), (0, 40), (0, 1000), (5, 20)])
def test_a_frequent_text_is_found_like_a_rare_one(
    filled: Store, monkeypatch: pytest.MonkeyPatch, few: int, window: int
) -> None:
    monkeypatch.setattr(queries, "_FEW", few)
    monkeypatch.setattr(queries, "_WINDOW", window)
    everything = shown(filled)
    for search in SEARCHES:
        for more in ({}, {"user": "anna"}, {"state": "RUNNING"}):
            filters = {"search": search, **more}
            expected = [run.id for run, row in everything if is_match(run, row, filters)]
            found = filled.runs(**filters, limit=10, offset=3)
            assert [run.id for run in found] == expected[3:13], filters
            page, count = filled.page_of_runs(**filters, limit=10, offset=3)
            assert page.runs == found
            # Without an index of the text, not more than the window are counted.
            assert count.number == len(expected) if count.exact else count.number <= len(expected)


def test_what_many_runs_have_is_found_among_the_newest(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_FIRST_WINDOW", 20)
    several: list[Filters] = [
        {"search": "prod"},
        {"user": "anna", "partition": "batch"},
        {"node": "n0"},
    ]
    for filters in several:
        filter = queries.run_filter(**filters)
        with recorded(filled) as recorder:
            found = queries.Found(recorder, filter)
            assert queries.list_runs(recorder, filter, 1, found=found)
            assert not found.is_known
            # Those of a rare combination are looked up, and then counted without a query.
            listed = queries.list_runs(recorder, filter, COUNT, found=found)
            assert found.is_known
            recorder.statements.clear()
            ids = found.look_up()
            assert ids is not None
            assert sorted(ids) == sorted(run.id for run in listed)
            assert queries.count_runs(recorder, filter, found=found) == (len(ids), True)
            assert not recorder.statements


# "1+" stood above ten runs.
def test_not_fewer_runs_are_counted_than_are_shown(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_FIRST_WINDOW", 120)
    monkeypatch.setattr(queries, "_COUNT_WINDOW", 1)
    page, count = filled.page_of_runs(search="prod", limit=10)
    assert len(page.runs) == 10
    assert count == (10, False)
    groups, count, _ = filled.page_of_groups(search="prod", limit=10)
    assert len(groups.runs) == 10
    assert count == (10, False)


# A run by its id was compared with the newest runs, and not found among many.
def test_a_run_is_found_by_its_id_however_old_it_is(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_FIRST_WINDOW", 1)
    monkeypatch.setattr(queries, "_WINDOW", 1)
    monkeypatch.setattr(queries, "_MAX_COMPARED", 2)
    oldest = filled.runs(limit=COUNT)[-1]
    found = filled.run_by_id(oldest.id)
    assert found is not None
    assert found.run == filled.find(RunReference.parse(str(oldest.run))).run == oldest.run
    largest = filled.largest_runs(newest=COUNT, limit=3)
    assert len(largest) == 3


@pytest.mark.parametrize("few", [0, 5000])
def test_runs_that_used_a_software(store: Store, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(queries, "_FEW", few)
    for job_id, path in ((7, b"/apps/gmx"), (8, b"/bin/true"), (9, b"/apps/gmx")):
        found = part(sighting(job_id), totals=totals(1, 1), executables=[use(path, 1)])
        store.write(batch(info(job_id), found))
    with store.database.write() as transaction:
        transaction.execute(
            "INSERT INTO software (id, name, version, local_version, user_provided, ignored) "
            "VALUES (1, 'gromacs', '1', '1', false, false)"
        )
        transaction.execute(
            "UPDATE paths SET software_id = 1 WHERE path = :path", {"path": b"/apps/gmx"}
        )
    for sort in (Sort(), Sort("cpu_time")):
        runs = store.runs(software="gromacs", sort=sort)
        assert [run.info.job_id for run in runs] == [9, 7]
    assert store.runs(software="vasp") == []
    assert store.count_runs(software="gromacs") == 2


def test_more_runs_than_are_counted(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "COUNT_LIMIT", COUNT - 1)
    page = list_page(filled, now=START, limit=5)
    assert (page.total, page.total_exact) == (COUNT - 1, False)


def test_the_search_follows_changes_of_a_run(store: Store) -> None:
    store.write(batch(info(7, name="first"), info(8, name="other")))
    assert [run.info.job_id for run in store.runs(search="first")] == [7]
    store.write(batch(info(7, name="second", user="anna")))
    assert store.runs(search="first") == []
    assert [run.info.job_id for run in store.runs(search="second")] == [7]
    with store.database.write() as transaction:
        transaction.execute("DELETE FROM runs WHERE job_id = 7")
    assert store.runs(search="second") == []
    with store.database.query() as transaction:
        search = parse_search("second")
        assert search is not None
        terms = {"terms": search.terms(transaction.postgresql)}
        found = transaction.execute(
            search.candidates(transaction.postgresql), {**search.parameters, **terms}
        )
        assert found.fetchall() == []


class _Recorder(transactions.Transaction):
    """Records the statements about runs that are executed."""

    def __init__(self, transaction: transactions.Transaction) -> None:
        super().__init__(transaction._connection, transaction.postgresql)
        self.statements: list[tuple[str, Mapping[str, Any]]] = []

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> transactions.Cursor:
        self.statements.append((sql, parameters or {}))
        return super().execute(sql, parameters)


@contextmanager
def recorded(store: Store) -> Iterator[_Recorder]:
    with store.database.query() as transaction:
        if transaction.postgresql:
            # So few rows are read fastest without an index.
            transaction.execute("SET LOCAL enable_seqscan = off")
            transaction.execute("SET LOCAL enable_bitmapscan = off")
        yield _Recorder(transaction)


def plan(
    transaction: transactions.Transaction, sql: str, parameters: Mapping[str, Any]
) -> list[str]:
    prefix = "EXPLAIN" if transaction.postgresql else "EXPLAIN QUERY PLAN"
    rows = transaction.execute(f"{prefix} {sql}", parameters).fetchall()
    return [str(row[-1]).strip() for row in rows]


PLANS = [
    ({}, "ix_runs_start_id"),
    ({"user": "anna"}, "ix_runs_user_start_id_shown_state"),
    ({"account": "physics"}, "ix_runs_account_start_id_shown_state"),
    *(({"state": state}, "ix_runs_shown_state_start_id") for state in STATES),
    ({"since": START}, "ix_runs_start_id"),
    ({"state": "RUNNING", "since": START}, "ix_runs_shown_state_start_id"),
    ({"user": "anna", "since": START}, "ix_runs_user_start_id_shown_state"),
    ({"partition": "batch"}, "ix_runs_partition_start_id"),
    ({"qos": "normal"}, "ix_runs_qos_start_id"),
    ({"cluster": "c1"}, "ix_runs_cluster_start_id"),
    ({"unused_gpus": True}, "ix_runs_unused_gpus"),
]


# Fault 22: a list by state read all runs, and looked at all nodes of those without a state.
@pytest.mark.parametrize(("filters", "index"), PLANS)
def test_every_filter_reads_the_index_of_its_order(
    filled: Store, filters: dict[str, Any], index: str
) -> None:
    with recorded(filled) as recorder:
        queries.list_runs(recorder, queries.run_filter(**filters), 50)
        steps = plan(recorder, *recorder.statements[0])
        assert any(index in step for step in steps), steps
        assert not any("TEMP B-TREE" in step or "Sort" in step for step in steps)
        recorder.statements.clear()
        queries.count_runs(recorder, queries.run_filter(**filters))
        steps = plan(recorder, *recorder.statements[0])
        assert any("INDEX" in step.upper() for step in steps), steps


@pytest.mark.parametrize("key", [*queries.SORTS])
def test_every_sort_reads_the_index_of_its_order(filled: Store, key: str) -> None:
    column = queries.SORTS[key].column
    with recorded(filled) as recorder:
        queries.list_runs(recorder, queries.run_filter(), 50, sort=Sort(key))
        steps = plan(recorder, *recorder.statements[0])
        assert any(f"ix_runs_{column}" in step for step in steps), steps
        # Those of the same job or end are few.
        whole = [step for step in steps if "TEMP B-TREE FOR ORDER" in step or step == "Sort"]
        assert not whole, steps


# Fault 22: a search read all runs, that by job id as well.
@pytest.mark.parametrize("search", ["md_prod", "4200", "62_9", "88+1", "a", "re", "nowhere"])
@pytest.mark.parametrize("more", [{}, {"user": "anna"}])
def test_a_search_reads_indices(
    filled: Store, monkeypatch: pytest.MonkeyPatch, search: str, more: dict[str, Any]
) -> None:
    monkeypatch.setattr(queries, "_FIRST_WINDOW", 5)
    with recorded(filled) as recorder:
        if recorder.postgresql:
            # A GIN index is read by bitmaps only.
            recorder.execute("SET LOCAL enable_bitmapscan = on")
        recorder.statements.clear()
        filter = queries.run_filter(search=search, **more)
        queries.list_runs(recorder, filter, 50)
        queries.count_runs(recorder, filter)
        # The newest runs are compared first, up to the end of a window.
        window = "SELECT start, id FROM runs"
        looked_up = [
            (sql, parameters)
            for sql, parameters in recorder.statements
            if sql.startswith("SELECT") and not sql.startswith(window)
        ]
        assert any(TABLE in sql for sql, _ in looked_up)
        for sql, parameters in looked_up:
            steps = plan(recorder, sql, parameters)
            assert not any("Seq Scan on run" in step for step in steps), steps
            assert not any(step.startswith("SCAN runs") for step in steps), steps


# Fault 22: of a frequent text and a user, PostgreSQL read the runs of all users by their start.
def test_a_search_of_a_user_reads_the_index_of_the_user(
    postgresql_server: postgresql.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_WINDOW", 1000)
    monkeypatch.setattr(queries, "_FEW", 0)
    with Store.open(postgresql_server.new_database()) as store:
        with store.database.alone() as connection:
            # Stored in the order of their start, as runs are; the index of the search is not read.
            connection.execute("ALTER TABLE runs DISABLE TRIGGER USER")
            connection.execute(
                'INSERT INTO runs (cluster, job_id, start, source, "user", name, command, '
                "provisional, stale, updated) "
                "SELECT 'test', n, n, 'sacct', 'user' || n * 7919 % 16, 'relax', "
                "repeat('/home', 60), false, false, 0 FROM generate_series(1, 30000) AS n"
            )
            connection.execute("ANALYZE runs")
        filter = queries.run_filter(search="relax", user="user3")
        with store.database.query() as transaction:
            recorder = _Recorder(transaction)
            found = queries.Found(recorder, filter)
            assert len(queries.list_runs(recorder, filter, 50, found=found)) == 50
            assert queries.count_runs(recorder, filter, 900, found=found).number == 900
            for sql, parameters in recorder.statements[:]:
                if sql.startswith("SELECT"):
                    steps = plan(recorder, sql, parameters)
                    assert not any("ix_runs_start_id" in step for step in steps), (sql, steps)
        with store.database.query() as transaction:
            # The setting of the planner ends with the transaction.
            assert transaction.execute("SHOW random_page_cost").fetchone() == ("4",)


@given(text=st.text("ab/", min_size=3, max_size=30))
def test_the_terms_of_a_search_cover_its_text(text: str) -> None:
    search = parse_search(text)
    assert search is not None
    terms = search.terms(postgresql=True)
    assert all(term in search.needle and len(term) == 3 for term in terms)
    covered = {
        place + offset
        for term in terms
        for place in range(len(search.needle))
        if search.needle.startswith(term, place)
        for offset in range(3)
    }
    assert covered == set(range(len(search.needle)))
