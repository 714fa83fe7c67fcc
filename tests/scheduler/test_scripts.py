"""Batch scripts: read by Slurm's commands, bounded, and stored once for new jobs."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from jobsight.model import JobInfo
from jobsight.scheduler.records import JobRecord, SourceError
from jobsight.scheduler.scripts import ScriptKeeper
from jobsight.scheduler.sources.scripts import ScriptReader
from jobsight.store.findings.works import find_script
from jobsight.store.history import script_of_run
from jobsight.store.store import Store
from jobsight.util.log_once import LogOnce
from jobsight.util.script_key import MAX_SCRIPT_SIZE, script_key
from tests.store.sample import START, find

SCRIPT = "#!/bin/sh\nsrun program\n"


class Commands:
    """Answers commands by their name, and counts them."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self._answers = answers
        self.names: list[str] = []

    def __call__(
        self, command: Sequence[str], timeout: float, *, given: bytes = b""
    ) -> Iterable[bytes]:
        self.names.append(command[0])
        if command[0] not in self._answers:
            raise SourceError(f"{command[0]} failed with 1")
        yield self._answers[command[0]]


def test_the_controller_is_asked_first() -> None:
    commands = Commands({"scontrol": SCRIPT.encode()})
    assert ScriptReader(commands, 5)(12) == SCRIPT
    assert commands.names == ["scontrol"]


@pytest.mark.parametrize(
    ("output", "script"),
    [
        (f"Batch Script for 12\n------\n{SCRIPT}", SCRIPT),
        ("Batch Script for 12\n------\nNONE\n", None),
        ("", None),
        ("Batch Script for 12", None),
        (f"something else\n------\n{SCRIPT}", None),
        # Whatever a script contains is part of it.
        (
            "Batch Script for 12\n------\nBatch Script for 13\n------\nx\n",
            "Batch Script for 13\n------\nx\n",
        ),
    ],
)
def test_the_accounting_has_scripts_of_past_jobs(output: str, script: str | None) -> None:
    assert ScriptReader(Commands({"sacct": output.encode()}), 5)(12) == script


def test_an_endless_script_is_cut() -> None:
    text = ScriptReader(Commands({"scontrol": b"x" * 10 * MAX_SCRIPT_SIZE}), 5)(12)
    assert text is not None
    assert len(text) == MAX_SCRIPT_SIZE


def test_bytes_that_are_no_text_and_commands_that_fail() -> None:
    assert ScriptReader(Commands({"scontrol": b"echo \xff\n"}), 5)(12) == "echo \\xff\n"
    with pytest.raises(SourceError, match="sacct"):
        ScriptReader(Commands({}), 5)(12)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def _record(store: Store, *job_ids: int, array: int | None = None) -> list[JobRecord]:
    infos = [
        JobInfo(cluster="c1", job_id=job_id, source="squeue", start=START, array_job_id=array)
        for job_id in job_ids
    ]
    store.record_jobs(infos)
    return [JobRecord(info=info) for info in infos]


def test_new_jobs_are_read_once_and_an_array_once(store: Store) -> None:
    records = _record(store, 7, 8, 9, array=7) + _record(store, 20)
    commands = Commands({"scontrol": SCRIPT.encode()})
    read = ScriptReader(commands, 5)
    log = LogOnce(logging.getLogger(__name__))
    keeper = ScriptKeeper(store.database, "c1", log)
    assert keeper.read_new(read, records) == 2
    assert keeper.read_new(read, records) == 0
    # A server that was restarted knows it from the store.
    assert ScriptKeeper(store.database, "c1", log).read_new(read, records) == 0
    key = script_key(SCRIPT)
    assert {script_of_run(store.database, find(store, str(id)).id) for id in (7, 8, 9, 20)} == {key}
    assert find_script(store.database, key) == SCRIPT


def test_a_job_without_script_and_a_failure_are_not_asked_again(store: Store) -> None:
    records = _record(store, 7, 8)
    commands = Commands({"sacct": b"Batch Script for 7\n-----\nNONE\n"})
    keeper = ScriptKeeper(store.database, "c1", LogOnce(logging.getLogger(__name__)))
    assert keeper.read_new(ScriptReader(commands, 5), records) == 2
    assert keeper.read_new(ScriptReader(commands, 5), records) == 0
    failing = ScriptKeeper(store.database, "c1", LogOnce(logging.getLogger(__name__)))
    assert failing.read_new(ScriptReader(Commands({}), 5), records) == 2
    assert failing.read_new(ScriptReader(Commands({}), 5), records) == 0
    assert script_of_run(store.database, find(store, "7").id) is None


def test_a_round_reads_a_bounded_number(store: Store) -> None:
    records = _record(store, *range(1, 151))
    read = ScriptReader(Commands({"scontrol": SCRIPT.encode()}), 5)
    keeper = ScriptKeeper(store.database, "c1", LogOnce(logging.getLogger(__name__)))
    assert keeper.read_new(read, records) == 100
    assert keeper.read_new(read, records) == 50
