"""`jobsight top`: rates between samples that differ, three sources, the screen and plain text."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.widgets import DataTable, Input, Static

from jobsight.cli.main import main
from jobsight.cli.top.app import TopApp
from jobsight.cli.top.readings import RateTable, Reading, select, summary
from jobsight.cli.top.sources import NodeSource, StoreSource, parse_metrics
from jobsight.errors import JobsightError
from jobsight.model import SECOND
from jobsight.store.store import Store
from tests.web import sample

START = 1_700_000_000 * SECOND
HOSTILE = "a\x1b[31m[bold]b\u202e\nc"
METRICS = """\
# HELP jobsight_job_cpu_seconds_total CPU time
# TYPE jobsight_job_cpu_seconds_total counter
jobsight_job_cpu_seconds_total{cluster="c",node="n1",slurm_job="12"} 100
jobsight_job_cpu_seconds_total{cluster="c",node="n1",slurm_job="13"} NaN
jobsight_job_info{cluster="c",node="n1",slurm_job="12",user="ada",name="a\\"b\\\\\\nc}"} 1
jobsight_job_start_time_seconds{cluster="c",node="n1",slurm_job="12"} 1700000000
jobsight_job_requested_cpus{cluster="c",node="n1",slurm_job="12"} 8
jobsight_job_memory_used_bytes{cluster="c",node="n1",slurm_job="12"} 1073741824
jobsight_job_io_read_bytes_total{cluster="c",node="n1",slurm_job="12"} 5000
jobsight_job_gpu_utilization_ratio{cluster="c",node="n1",slurm_job="12",gpu="0"} 0.5
jobsight_job_gpu_utilization_ratio{cluster="c",node="n1",slurm_job="12",gpu="1"} 0.25
this is no sample
jobsight_job_cpu_seconds_total{cluster="c",node="n1",slurm_job="14"} x
"""


def reading(key: str = "c:1", at: int = 100, cpu: int = 200, **values: object) -> Reading:
    fields: dict[str, object] = {
        "job": key.partition(":")[2], "user": "ada", "name": "train", "cpus": 4,
        "elapsed": at * SECOND, "cpu_time": cpu * SECOND, "read": 0, "written": 0,
    }  # fmt: skip
    return Reading(key=key, as_of=START + at * SECOND, **(fields | values))  # type: ignore[arg-type]


def test_a_rate_is_between_two_samples_that_differ() -> None:
    rates = RateTable()
    (first,) = rates.update([reading(at=100, cpu=200)])
    assert (first.cores.value, first.cores.is_mean) == (2.0, True)
    # The same sample again, also if it is read later.
    (again,) = rates.update([reading(at=105, cpu=200)])
    assert again.cores == first.cores
    (second,) = rates.update([reading(at=110, cpu=240, read=10 * 2**20)])
    assert second.cores.value == pytest.approx(4.0)
    assert not second.cores.is_mean
    assert second.read.value == pytest.approx(2**20)
    (third,) = rates.update([reading(at=115, cpu=240, read=10 * 2**20)])
    assert third.cores == second.cores
    # A job that was requeued begins again.
    (requeued,) = rates.update([reading(at=120, cpu=1, elapsed=2 * SECOND)])
    assert (requeued.cores.value, requeued.cores.is_mean) == (0.5, True)
    assert rates.update([]) == []
    (forgotten,) = rates.update([reading(at=130, cpu=260)])
    assert forgotten.cores.is_mean


def test_what_is_not_known_is_no_zero() -> None:
    (row,) = RateTable().update([reading(cpu_time=None, elapsed=None, cpus=None)])
    assert row.cores.value is None
    assert row.core_share is None
    assert row.memory_share is None
    assert row.gpus.value is None


def test_rows_are_selected_and_sorted() -> None:
    rows = RateTable().update(
        [
            reading("c:1", cpu=100, user="ada"),
            reading("c:2", cpu=300, user="Bob", gpus=4, gpus_busy=3.5),
            reading("c:3", cpu=200, user="eve", name="bobsled"),
        ]
    )

    def jobs(**options: object) -> list[str]:
        given = {"text": "", "sort": "cores", "reverse": False, **options}
        return [row.reading.job for row in select(rows, **given)]  # type: ignore[arg-type]

    assert jobs() == ["2", "3", "1"]
    assert jobs(reverse=True) == ["1", "3", "2"]
    assert jobs(text="bob") == ["2", "3"]
    assert jobs(sort="user") == ["2", "1", "3"]
    assert jobs(text="nothing") == []
    assert summary(rows) == "3 jobs, 6.0 of 12 CPUs busy, 0 B, 3.5 of 4 GPUs busy"


def test_the_metrics_of_an_agent_are_read() -> None:
    one, two = parse_metrics(METRICS, START + 50 * SECOND)
    assert (one.job, one.user, one.name) == ("12", "ada", 'a"b\\\nc}')
    assert (one.cpu_time, one.cpus, one.elapsed) == (100 * SECOND, 8, 50 * SECOND)
    assert (one.memory, one.read, one.written) == (2**30, 5000, None)
    assert (one.gpus, one.gpus_busy) == (2, 0.75)
    assert (two.job, two.cpu_time) == ("13", None)


@given(st.text(max_size=300))
def test_no_text_breaks_the_parser(text: str) -> None:
    parse_metrics(text, START)
    parse_metrics(f"jobsight_job_info{{{text}}} 1", START)


@pytest.fixture
def agent() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = METRICS.encode() if self.path == "/metrics" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_node_as_plain_text(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--node", agent, "--once"]) == 0
    shown = capsys.readouterr().out
    assert "0.75 of 2" in shown
    assert "1.00 GiB" in shown
    assert "mean since the start" in shown
    assert main(["top", "--node", agent, "--json", "--match", "ada"]) == 0
    (row,) = msgspec.json.decode(capsys.readouterr().out)
    assert (row["job"], row["gpus_used"], row["is_mean"]) == ("12", 0.75, True)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--node", "127.0.0.1:1", "--once"], 1, "does not answer"),
        (["--node", "https://x", "--once"], 1, "expected HOST:PORT"),
        (["--node", "127.0.0.1:99999", "--once"], 1, "expected HOST:PORT"),
        (["--store", "/nowhere/store.db", "--once"], 1, "no store"),
        (["--sort", "luck", "--once"], 2, "expected one of"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", *arguments]) == code
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error


def test_a_pipe_is_told_to_use_once(tmp_path: Path) -> None:
    Store.open(tmp_path / "store.db").close()
    command = [sys.executable, "-m", "jobsight.cli.main", "top", "--store"]
    done = subprocess.run(
        [*command, str(tmp_path / "store.db")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "expected --once" in done.stderr


def test_the_running_jobs_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(tmp_path / "store.db") as store:
        sample.fill(store)
        source = StoreSource(store, clock=lambda: sample.NOW)
        readings = source.read()
        running = store.runs(limit=100, state="RUNNING")
        assert {each.key for each in readings} == {str(run.run) for run in running}
        measured = next(each for each in readings if each.cpu_time)
        assert measured.as_of <= sample.NOW
        (row,) = [row for row in RateTable().update(readings) if row.reading is measured]
        assert row.cores.is_mean
        assert row.reading.details[0].startswith("run ")
    assert main(["top", "--once", "--store", str(tmp_path / "store.db")]) == 0
    assert measured.job in capsys.readouterr().out


class Told:
    """A source that a test tells what to say."""

    where = "test"

    def __init__(self, *readings: list[Reading] | JobsightError) -> None:
        self.left = list(readings)

    def read(self) -> list[Reading]:
        said = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(said, JobsightError):
            raise said
        return said

    def close(self) -> None:
        pass


def test_the_screen_sorts_filters_pauses_and_shows_details() -> None:
    jobs = [
        reading("c:1", cpu=100, name="low", details=("nodes n1",)),
        reading("c:2", cpu=300, name=HOSTILE, user="[red]bob"),
    ]
    later = [each._replace(as_of=each.as_of + SECOND, cpu_time=310 * SECOND) for each in jobs]
    app = TopApp(Told(jobs, later), interval=3600)

    async def drive() -> None:
        async with app.run_test(size=(140, 30)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            table = app.query_one(DataTable)
            head = app.query_one("#head", Static)
            assert [str(table.get_row_at(n)[0]) for n in range(2)] == ["2", "1"]
            assert str(table.get_row_at(0)[1]) == "[red]bob"
            assert "\x1b" not in str(table.get_row_at(0)[2])
            assert "dim" in str(table.get_row_at(0)[5].style)
            await pilot.press("r")
            assert str(table.get_row_at(0)[0]) == "1"
            await pilot.press("r", "d")
            await pilot.press("down")
            await pilot.pause()
            assert "nodes n1" in str(app.query_one("#details", Static).render())
            await pilot.press("p")
            assert "paused" in str(head.render())
            await pilot.press("p", "slash", "l", "o", "w", "enter")
            await pilot.pause()
            assert table.row_count == 1
            await pilot.press("escape")
            await pilot.pause()
            assert table.row_count == 2
            assert not app.query_one("#filter", Input).display
            app.refresh_rows()
            await app.workers.wait_for_complete()
            await pilot.pause()
            rates = {str(table.get_row_at(n)[0]): table.get_row_at(n)[5] for n in range(2)}
            assert str(rates["1"]) == "210.00"
            assert "dim" not in str(rates["1"].style)
            await pilot.press("s")
            assert "sorted by cpu" in str(head.render())

    asyncio.run(drive())


def test_a_source_that_fails_is_said_and_asked_again() -> None:
    app = TopApp(Told([reading()], JobsightError("no answer \x1b"), [reading()]), interval=3600)

    async def drive() -> None:
        async with app.run_test(size=(120, 20)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            message = app.query_one("#message", Static)
            assert not message.display
            app.refresh_rows()
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert message.display
            assert "no answer" in str(message.render())
            assert app.query_one(DataTable).row_count == 1
            app.refresh_rows()
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert not message.display

    asyncio.run(drive())


def test_a_node_source_needs_an_address() -> None:
    with pytest.raises(JobsightError, match="expected HOST:PORT"):
        NodeSource("ftp://x:1")
