"""Simulated agents against a real server: what they wrote and what is stored are equal."""

import sqlite3
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import msgspec
import pytest

from jobsight.cli.main import main
from jobsight.config.settings import Settings
from jobsight.errors import JobsightError
from jobsight.server.serve import BackgroundServer
from jobsight.simulation.agents import (
    LEDGER,
    Result,
    Where,
    _Fleet,
    _Timed,
    check_server,
    simulate,
)
from jobsight.simulation.check import check, read_ledger
from jobsight.simulation.nodes import (
    FIRST_LARGE_ID,
    MAX_NODES,
    Load,
    Node,
    Written,
    WrittenSpool,
    large_jobs_of,
)
from jobsight.store.store import Store
from jobsight.transport.delivery import Answer
from tests.store.sample import START

LOAD = Load(
    nodes=12, jobs=3, every=0.4, duration=2.5, restarts=0.2, storms=0.2, storm_size=5,
    large_jobs=2, large_nodes=5, outages=0.2,
)  # fmt: skip


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulated") / "store.db"


@pytest.fixture(scope="module")
def server(location: Path) -> Iterator[BackgroundServer]:
    settings = Settings()
    settings.store.location = str(location)
    settings.server.port = 0
    with BackgroundServer(settings) as running:
        yield running


@pytest.fixture(scope="module")
def result(server: BackgroundServer, location: Path) -> Iterator[Result]:
    where = Where(
        url=server.url,
        token_file=str(server.token_file),
        directory=str(location.parent / "agents"),
    )
    yield simulate(LOAD, where)
    # Python's process for queues lives as long as this one, in which further tests run.
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


def test_all_batches_are_accepted(result: Result) -> None:
    counts = result.counts
    assert counts.written == counts.accepted > 0
    assert (counts.refused, counts.pending) == (0, 0)
    assert counts.restarts > 0
    assert result.median_s is not None
    assert result.p99_s is not None
    assert result.median_s <= result.p99_s
    # Of the processes that played the nodes.
    assert result.cpu_s > 0
    assert result.peak_memory_bytes > 2**20


def test_both_ends_are_equal(result: Result, location: Path) -> None:
    with Store.open(location) as store:
        checked = check(location.parent / "agents", store)
    assert checked.differences == {}
    assert checked.batches == result.counts.written
    assert checked.jobs == result.jobs


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("UPDATE batches SET last = last - 1", "batches lost"),
        ("UPDATE batches SET last = last + 1", "batches unknown"),
        ("UPDATE executables SET cpu_time = cpu_time * 2", "CPU time of programs doubled"),
        ("UPDATE executables SET executions = 0", "executions lost"),
        ("DELETE FROM chunks WHERE run_node_id = 1", "samples lost"),
        ("UPDATE run_nodes SET final = 0", "ends lost"),
    ],
)
def test_a_difference_is_found(
    result: Result, location: Path, tmp_path: Path, statement: str, kind: str
) -> None:
    copied = tmp_path / "store.db"
    with sqlite3.connect(location) as source, sqlite3.connect(copied) as target:
        source.backup(target)
        target.execute(statement)
    with Store.open(copied) as store:
        assert kind in check(location.parent / "agents", store).differences


def test_the_command_checks_a_store(
    result: Result, location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(location.parent / "agents")
    assert main(["simulate", "check", directory, "--store", str(location)]) == 0
    assert "nothing is lost, nothing is doubled" in capsys.readouterr().out
    assert main(["simulate", "check", "/nowhere", "--store", str(location)]) == 1
    assert "expected the directory of a simulation" in capsys.readouterr().err


def test_the_short_form_of_the_command(
    server: BackgroundServer, location: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--nodes", "2", "--jobs", "1", "--every", "0.3", "--minutes", "0.02", "--seed", "5"]
    options += ["--server", server.url, "--store", str(location), "--json"]
    # The store has the nodes of the other simulation as well, whose spools are unknown to this.
    assert main(["simulate", *options]) == 1
    reply = msgspec.json.decode(capsys.readouterr().out)
    assert reply["result"]["counts"]["accepted"] == reply["result"]["counts"]["written"] > 0
    assert reply["check"]["differences"].keys() <= {"unknown spools", "jobs unknown"} | {
        f"{name} {what}"
        for name in ("samples", "CPU time", "CPU time of programs", "executions", "ends", "jobs")
        for what in ("lost", "doubled")
    }


def test_a_directory_is_used_once(result: Result, server: BackgroundServer, location: Path) -> None:
    where = Where(
        url=server.url,
        token_file=str(server.token_file),
        directory=str(location.parent / "agents"),
    )
    with pytest.raises(JobsightError, match="of another simulation"):
        simulate(LOAD, where)


def test_a_remote_server_is_refused() -> None:
    with pytest.raises(JobsightError, match="not on loopback"):
        check_server("https://jobsight.example:8080", remote=False)
    check_server("https://jobsight.example:8080", remote=True)
    check_server("http://127.0.0.1:8080", remote=False)
    check_server("http://localhost:8080", remote=False)


def test_large_jobs_are_on_many_nodes() -> None:
    by_node = large_jobs_of(LOAD)
    assert sum(len(numbers) for numbers in by_node.values()) == 10


def test_a_full_spool_is_counted(tmp_path: Path) -> None:
    load = msgspec.structs.replace(LOAD, spool_limit=20_000, restarts=0.0)
    node = Node(1, load, tmp_path)
    node.start(10**18, ())
    for second in range(60):
        node.tick(10**18 + second * 10**9)
    closed = node.close()
    assert closed.last == 60
    assert closed.dropped + closed.pending == 60
    assert closed.dropped


def test_a_damaged_ledger_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_text('{"node": "sim1", "job_id": "x"}\n')
    with pytest.raises(JobsightError, match=r"written\.jsonl:1: "):
        list(read_ledger(tmp_path))


def test_the_ledger_has_jobs_and_spools(result: Result, location: Path) -> None:
    rows = list(read_ledger(location.parent / "agents"))
    assert sum(isinstance(row, WrittenSpool) for row in rows) == LOAD.nodes
    assert {row.job_id for row in rows if isinstance(row, Written)}


def test_no_job_on_one_node_has_the_id_of_one_on_many(tmp_path: Path) -> None:
    """Those of node 8,990 had: its first ids were those of the jobs on many nodes."""
    load = msgspec.structs.replace(LOAD, nodes=MAX_NODES, jobs=2)
    ids: list[set[int]] = []
    for index in (8_989, 8_990, 8_991, MAX_NODES - 1):
        node = Node(index, load, tmp_path)
        node.start(START, ())
        ids.append({written.job_id for written in node.running()})
        node.start(START, range(4))
        assert {written.job_id for written in node.running()} >= {
            FIRST_LARGE_ID + number for number in range(4)
        }
        node.close()
    assert sum(map(len, ids)) == len(set.union(*ids)) == 8
    assert max(set.union(*ids)) < FIRST_LARGE_ID


def test_the_command_allows_as_many_nodes_as_have_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--nodes", str(MAX_NODES + 1)]) == 2
    assert f"expected 1 to {MAX_NODES:,}" in capsys.readouterr().err


def test_the_latency_of_a_batch_begins_in_the_queue(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o600)
    where = Where(url="http://127.0.0.1:9", token_file=str(token), directory=str(tmp_path))
    fleet = _Fleet(LOAD, where, [0])

    class Accepting:
        def send(self, data: bytes) -> Answer:
            return Answer(stored=True)

    timed = _Timed(Accepting(), fleet)  # type: ignore[arg-type]
    timed.queued = time.monotonic() - 1000
    assert timed.send(b"").stored
    assert fleet.latencies[0] >= 1000
    fleet.close()
