"""Paths get names, history gets new ones, and the sums follow to the microsecond."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobsight.config.settings import SoftwareSettings
from jobsight.errors import JobsightError
from jobsight.model import SECOND, ExecutableUse, JobInfo, JobPart
from jobsight.software import naming
from jobsight.software.naming import software_names
from jobsight.software.preview import preview
from jobsight.software.rules import RuleSet
from jobsight.software.worker import Worker, update, updating
from jobsight.store import dead_letters
from jobsight.store.schema.tables import metadata, usage_by_day
from jobsight.store.store import Store
from tests.examples import examples
from tests.software.rule_sets import BETTER, JOINED, NONE, PLAIN
from tests.store.sample import START, batch, info, part, series, sighting, totals, use
from tests.store.sums import by_software, from_scratch, named, rows, sums
from tests.waiting import wait_until

ALPHA, BETA, TOOL = b"/opt/alpha/1.0/bin/a", b"/opt/beta/2.1/bin/b", b"/opt/tool/3/bin/t"
HOUR = 3600 * SECOND


def fill(store: Store, jobs: int = 4) -> None:
    """Jobs of an hour on four cores: two parts of alpha, one of beta and of tool, one of none."""
    for job in range(1, jobs + 1):
        uses = [use(ALPHA, 2 * HOUR), use(BETA, HOUR), use(TOOL, HOUR // 2), use(b"/x", HOUR // 2)]
        record = info(job, user=f"user{job % 2}", account="astro", cpus=4, end=START + HOUR)
        seen = part(sighting(job), executables=uses, totals=totals(3600, 4 * HOUR))
        store.write(batch(record, seen))


def core_hours(store: Store) -> dict[str, float]:
    return {name: time / 3.6e9 for name, time in by_software(store, "core_time").items()}


def test_a_changed_rule_moves_exactly_the_hours_it_should(store: Store) -> None:
    fill(store)
    assert update(store, PLAIN).runs == 4
    assert core_hours(store) == {"alpha": 8, "beta": 4, "tool": 2, "undetermined": 2}
    moves = preview(store.database, BETTER)
    said = [
        (move.before and move.before.software, move.after and move.after.software, move.paths,
         move.runs, move.core_time / 3.6e9, move.cpu_time / 3.6e9, move.examples)
        for move in moves
    ]  # fmt: skip
    # Of tool the name stays, but not that it counts.
    assert said == [
        ("alpha", "Alpha", 1, 4, 8, 8, [ALPHA]),
        ("tool", "tool", 1, 4, 2, 2, [TOOL]),
    ]
    assert moves[1].after is not None
    assert moves[1].after.ignored
    assert core_hours(store) == {"alpha": 8, "beta": 4, "tool": 2, "undetermined": 2}
    assert update(store, BETTER).changed == 4
    assert core_hours(store) == {"Alpha": 8, "beta": 4, "tool": 2, "undetermined": 2}
    assert preview(store.database, BETTER) == []
    assert update(store, BETTER).runs == 0
    assert sums(store) == from_scratch(store)


def test_only_runs_of_renamed_paths_are_summed_up_again(store: Store) -> None:
    fill(store, 2)
    record = info(9, cpus=1, end=START + HOUR)
    store.write(batch(record, part(sighting(9), executables=[use(BETA, HOUR)])))
    update(store, PLAIN)
    assert update(store, BETTER).runs == 2


def test_a_path_of_many_runs_is_renamed_in_parts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on where it was stopped, even when other rules come before it is done."""
    monkeypatch.setattr(naming, "MAX_NODES", 2)
    fill(store, 7)
    update(store, PLAIN)
    naming.adopt_rules(store.database, BETTER)
    steps = iter([False, True])
    assert not naming.rename_all(store.database, BETTER, stopped=lambda: next(steps))
    update(store, NONE)
    assert core_hours(store) == {"undetermined": 28}
    update(store, BETTER)
    assert core_hours(store) == {"Alpha": 14, "beta": 7, "tool": 3.5, "undetermined": 3.5}


def test_a_run_that_a_batch_holds_is_renamed_when_it_is_free(store: Store) -> None:
    fill(store)
    update(store, PLAIN)
    if not store.database.postgresql:
        assert update(store, BETTER).runs == 4
        return
    ended = threading.Event()
    with store.database.write() as writer:
        writer.execute("UPDATE runs SET archived = 'file' WHERE job_id = 2")
        thread = threading.Thread(target=lambda: (update(store, BETTER), ended.set()))
        thread.start()
        assert not ended.wait(0.3)
    thread.join(60)
    assert ended.is_set()
    assert core_hours(store)["Alpha"] == 8


def test_a_row_of_software_is_used_again(store: Store) -> None:
    fill(store, 1)
    for rules in (PLAIN, BETTER, PLAIN):
        update(store, rules)
    names = sorted(
        (name.software, name.ignored) for name in software_names(store.database).values()
    )
    assert names == [("Alpha", False), ("alpha", False), ("beta", False), ("tool", False),
                     ("tool", True)]  # fmt: skip


def test_hostile_paths_are_named_and_move(store: Store) -> None:
    hostile = [b"/opt/%(user)s/1/x", b"/opt/a\xff\n<&%/2/x", b"x" * 4096]
    seen = part(executables=[use(path, HOUR) for path in hostile])
    store.write(batch(info(cpus=1, end=START + HOUR), seen))
    update(store, PLAIN)
    assert sum(core_hours(store).values()) == 1
    assert core_hours(store)["undetermined"] == 1 / 3
    assert len(core_hours(store)) == 3


class TestWorker:
    def write(self, file: Path, name: str) -> None:
        file.write_text(
            f"rules: [{{match: '^/opt/alpha/', software: {name}, version: '1', versionstr: ''}}]"
        )

    def test_follows_the_files(self, store: Store, tmp_path: Path) -> None:
        file = tmp_path / "rules.yaml"
        self.write(file, "one")
        worker = Worker(store, SoftwareSettings(rules=[str(file)], ready_rules=False))
        fill(store)
        assert worker.once().runs == 4
        assert worker.once().runs == 0
        self.write(file, "another")
        assert worker.once().runs == 4
        assert core_hours(store)["another"] == 8
        file.write_text("rules: 7")
        fill(store, 5)
        # The rules cannot be read: the last ones that could name on, and the health says so.
        for _ in range(2):
            with pytest.raises(JobsightError, match="the rules are not loaded"):
                worker.once()
        assert core_hours(store)["another"] == 10
        self.write(file, "another")
        worker.once()

    def test_two_with_other_rules_do_not_fight(self, store: Store, tmp_path: Path) -> None:
        workers = []
        for name in ("one", "two"):
            self.write(tmp_path / name, name)
            settings = SoftwareSettings(rules=[str(tmp_path / name)], ready_rules=False)
            workers.append(Worker(store, settings))
        fill(store)
        for worker in (*workers, *workers):
            worker.once()
        assert core_hours(store)["two"] == 8
        assert "one" not in core_hours(store)

    def test_works_beside_a_server_and_outlives_a_fault(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        faults = iter([RuntimeError("a fault"), None])
        real = Worker.once

        def once(self: Worker, *more: object) -> object:
            fault = next(faults, None)
            if fault is not None:
                raise fault
            return real(self)

        monkeypatch.setattr(Worker, "once", once)
        fill(store)
        with updating(store, SoftwareSettings(interval=0.05)):
            wait_until(lambda: rows(store, usage_by_day))
        assert sum(core_hours(store).values()) == 16


#: Updates a store with one set of rules and the other until it is killed.
UPDATER = """
import sys
from jobsight.software.worker import update
from jobsight.store.store import Store
from tests.software.rule_sets import BETTER, PLAIN
with Store.open(sys.argv[1]) as store:
    print("ready", flush=True)
    while True:
        for rules in (PLAIN, BETTER):
            update(store, rules)
"""


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.long)])
@pytest.mark.timeout(300)
def test_kills_leave_the_sums_whole(location: str, kills: int) -> None:
    """Two processes at once, with rules that change all the time, killed at any point."""
    choose = random.Random(kills)
    with Store.open(location) as store:
        fill(store, 60)
        for _ in range(kills):
            command = [sys.executable, "-c", UPDATER, location]
            root = Path(__file__).parents[2]
            pair = [
                subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, text=True)
                for _ in range(2)
            ]
            for process in pair:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            fill(store, 10)
            time.sleep(choose.uniform(0.05, 0.6))
            for process in pair:
                assert process.poll() is None
                os.kill(process.pid, signal.SIGKILL)
                process.communicate()
        # A run in whose work a process was killed is set aside until somebody has it tried again.
        for name in dead_letters.all_names(store.database):
            dead_letters.retry(store.database, name)
        update(store, PLAIN)
        assert core_hours(store) == {"alpha": 120, "beta": 60, "tool": 30, "undetermined": 30}
        assert sums(store) == from_scratch(store)


PATHS = st.sampled_from([ALPHA, BETA, TOOL, b"/opt/alpha/1.1/bin/a", b"/x"])
USES = st.builds(use, PATHS, st.integers(0, 10**12))
JOBS = st.integers(1, 3)
SECONDS = st.integers(0, 200_000)


def _record(
    job: int, start: int, length: int | None, cpus: int, user: str, restart: int
) -> JobInfo:
    end = None if length is None else START + (start + length) * SECOND
    return info(
        job, START + start * SECOND, user=user, cpus=cpus, gpus=cpus % 3, end=end,
        memory=cpus << 28, restart_count=restart,
    )  # fmt: skip


def _seen(
    job: int,
    node: str,
    birth: int,
    second: int,
    cpu: int | None,
    uses: list[ExecutableUse],
    life: str,
    curve: bool,
) -> JobPart:
    # A path may stand once in a part.
    uses = list({one.path: one for one in uses}.values())
    return part(
        sighting(job, node, START + birth * SECOND),
        epoch=life,
        totals=totals(second, cpu),
        series=series(range(0, second, 5000), None) if curve and second else None,
        executables=uses,
    )


BATCHES = st.one_of(
    st.builds(_record, JOBS, st.sampled_from([0, 50, 90_000]),
              st.one_of(st.none(), st.integers(0, 300_000)), st.integers(0, 9),
              st.sampled_from(["anna", "bert"]), st.integers(0, 1)),
    st.builds(_seen, JOBS, st.sampled_from(["n1", "n2"]), st.sampled_from([1, 51, 90_001]),
              SECONDS, st.one_of(st.none(), st.integers(0, 10**13)), st.lists(USES, max_size=4),
              st.sampled_from(["life 1", "life 2"]), st.booleans()),
)  # fmt: skip
RULES = st.sampled_from([PLAIN, BETTER, JOINED, NONE])


def clear(store: Store) -> None:
    with store.database.write() as transaction:
        for table in reversed(metadata.sorted_tables):
            transaction.execute(f"DELETE FROM {table.name}")


def forget_names(store: Store) -> None:
    """No path has a name any more, and the rows of the names are numbered in another order."""
    names = ("name", "version", "local_version", "user_provided", "ignored")
    columns = ", ".join(names)
    with store.database.write() as transaction:
        transaction.execute("UPDATE paths SET software_id = NULL")
        found = transaction.execute(f"SELECT {columns} FROM software ORDER BY id DESC").fetchall()
        transaction.execute("DELETE FROM software")
        values = ", ".join(f":{name}" for name in names)
        transaction.execute_many(
            f"INSERT INTO software ({columns}) VALUES ({values})",
            [dict(zip(names, row, strict=True)) for row in found],
        )


@given(st.lists(st.one_of(BATCHES, RULES, st.none()), max_size=14), RULES)
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_order_of_events_gives_the_sums_of_a_fresh_start(
    store: Store, events: list[JobInfo | JobPart | RuleSet | None], last: RuleSet
) -> None:
    """Batches, late records, runs bound again, rules that change, and rounds between them."""
    clear(store)
    rules = NONE
    for event in events:
        if event is None:
            update(store, rules)
        elif isinstance(event, RuleSet):
            rules = event
        else:
            store.write(batch(event))
    update(store, last)
    usage, software = sums(store)
    whole: dict[object, list[int]] = {}
    for row in software:
        figures = whole.setdefault(row[:5], [0, 0, 0, 0])
        for place in range(4):
            figures[place] += row[7 + place]
    counted = {row[:5]: list(row[6:10]) for row in usage if any(row[6:10])}
    assert {key: figures for key, figures in whole.items() if any(figures)} == counted
    before = named(store, software)
    forget_names(store)
    again, software = from_scratch(store, last)
    assert (usage, before) == (again, named(store, software))
