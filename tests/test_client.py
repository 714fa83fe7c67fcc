"""The Python client against a real server, and the examples of its document."""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from jobsight.client import Client, ClientError, Job, NotFound, own_job
from jobsight.server.app import create_app
from jobsight.store.store import Store
from jobsight.transport.login import Login, write_login
from tests.server.batches import batch
from tests.server.conftest import TOKEN
from tests.server.site import fill
from tests.waiting import wait_until

DOCUMENT = Path(__file__).parents[1] / "docs" / "client.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on a port that the system picks."""
    with Store.open(tmp_path_factory.mktemp("client") / "store.db") as store:
        fill(store)
        for number in range(100, 112):
            store.write(batch(number, user="carol", account="many"))
        listener = socket.create_server(("127.0.0.1", 0))
        app = create_app(store, TOKEN, delay=0)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, TOKEN) as made:
        yield made


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Not in a job, and without the server of this user."""
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "JOBSIGHT_")):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("inside", [False, True])
def test_the_examples_of_the_document(
    url: str,
    outside: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    inside: bool,
) -> None:
    outside.setenv("JOBSIGHT_URL", url)
    outside.setenv("JOBSIGHT_TOKEN", TOKEN)
    if inside:
        outside.setenv("SLURM_JOB_ID", "12")
        outside.setenv("SLURM_CLUSTER_NAME", "alpha")
    assert len(BLOCKS) >= 9
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, str(DOCUMENT), "exec"), names)
    printed = capsys.readouterr().out
    assert "alpha:12:20261115T043312Z multiply 10.0 0.5" in printed
    assert "('13', 'failed with exit code 7')" in printed
    assert "did you mean user?" in printed
    assert ("of 1073741824" in printed) is inside
    assert "'dataset': 'cifar-10'" in printed
    names["client"].set_properties(12, **dict.fromkeys(names["client"].properties(12)))


def test_pages_iterate_by_themselves(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    request = client.request

    def count(method: str, path: str, *arguments: Any) -> Any:
        asked.append(arguments[0].get("cursor"))
        # Small pages, whatever the list requests.
        return request(method, path, {**arguments[0], "limit": 5})

    monkeypatch.setattr(client, "request", count)
    rows = client.jobs(user="carol")
    assert len({job.run for job in rows}) == 12
    assert asked[0] is None
    assert len(set(asked)) == 3
    assert len(list(client.jobs(user="carol", limit=5))) == 5


def test_rows_are_typed(client: Client) -> None:
    (job,) = client.jobs(search="[other]")
    assert isinstance(job, Job)
    assert job.start == datetime(2026, 11, 15, 4, 33, 12, tzinfo=UTC)
    assert (job.state, job.exit_code, job.cpu_share) == ("FAILED", 7, 0.5)
    one = client.job(job.run)
    for name in Job.__struct_fields__:
        assert getattr(one, name) == getattr(job, name), name
    (selected,) = client.jobs(search="[other]", fields="state")
    assert (selected.state, selected.user) == ("FAILED", None)


def test_parts_of_a_job(client: Client) -> None:
    programs = client.programs(12)
    assert [program.kind for program in programs] == ["executable", "remainder"]
    (series,) = client.series(12, "cpu.time")
    assert series.metrics["cpu.time"].mean[-1] == 1.0
    assert client.steps(12) == []
    assert client.gpus(12) == []
    assert [node.name for node in client.nodes(state="idle")] == ["n2", "n3"]
    assert client.clusters()[0]["cluster"] == "alpha"
    assert client.page_url(12) == f"{client.url}/jobs/12"


def test_records_keep_every_field(client: Client) -> None:
    (record,) = client.jobs(search="[other]").records()
    assert record["gpu_measure"] is None


@pytest.mark.parametrize(
    ("environment", "cgroup", "expected"),
    [
        ({}, "0::/user.slice\n", None),
        ({"SLURM_JOB_ID": "12"}, "", "12"),
        ({"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "alpha"}, "", "alpha:12"),
        ({"SLURM_JOBID": "12"}, "", "12"),
        ({"SLURM_ARRAY_JOB_ID": "62", "SLURM_ARRAY_TASK_ID": "3"}, "", "62_3"),
        ({"JOBSIGHT_JOB": "a:1:20261115T043312Z"}, "", "a:1:20261115T043312Z"),
        ({}, "5:memory:/slurm/uid_0/job_77/step_0\n", "77"),
        ({}, "0::/system.slice/slurmstepd.scope/job_78/step_batch/user/task_0\n", "78"),
        ({}, "0::/a/job_x/job_/b\n", None),
    ],
)
def test_the_own_job(
    environment: dict[str, str], cgroup: str, expected: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "cgroup"
    file.write_text(cgroup)
    assert own_job(environment, file) == expected
    assert own_job({}, tmp_path / "missing") is None


def test_outside_of_a_job_a_job_must_be_named(client: Client, outside: Any) -> None:
    with pytest.raises(ClientError, match="name one, such as 12"):
        client.job()


def test_errors_say_what_the_server_says(url: str) -> None:
    with pytest.raises(ClientError, match="the token is invalid") as caught:
        Client(url, "another-token-that-is-wrong").job(12)
    assert caught.value.status == 401
    with pytest.raises(NotFound, match="99"):
        Client(url, TOKEN).job(99)
    with pytest.raises(ClientError, match="expected https://HOST"):
        Client("ftp://example.org", TOKEN)


def test_a_token_file_that_others_can_read_is_refused(url: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    with pytest.raises(Exception, match="can be used by others"):
        Client(url, token_file=file)
    file.chmod(0o600)
    assert Client(url, token_file=file).job(12).job_id == 12


def test_the_server_of_a_login(url: str, outside: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outside.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_login(Login(url=url, token=TOKEN))
    assert Client().job(12).job_id == 12


def test_without_a_server_or_token_the_error_says_what_to_set(
    outside: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outside.setenv("XDG_DATA_HOME", str(tmp_path))
    outside.setenv("XDG_CONFIG_HOME", str(tmp_path))
    outside.setattr("jobsight.config.paths.is_root", lambda: False)
    with pytest.raises(ClientError, match="set JOBSIGHT_URL"):
        Client()
    with pytest.raises(ClientError, match="set JOBSIGHT_TOKEN"):
        Client("http://127.0.0.1:1")


class _Busy(BaseHTTPRequestHandler):
    """Answers as the test says, then with a page."""

    answers: list[int]
    #: In place of a document.
    body: bytes | None = None

    def do_GET(self) -> None:
        status = self.answers.pop(0) if self.answers else 200
        body = b"[]" if status == 200 else b'{"detail": "busy"}'
        body = body if self.body is None else self.body
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[float]]]:
    """A server whose answers the test sets, and the pauses that the client makes."""
    pauses: list[float] = []
    monkeypatch.setattr("jobsight.client.time.sleep", pauses.append)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Busy)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", pauses
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_busy_server_is_tried_again(busy: tuple[str, list[float]]) -> None:
    url, pauses = busy
    _Busy.answers = [503, 429, 503]
    assert Client(url, TOKEN).request("GET", "jobs") == []
    assert pauses[1] == 0.0
    assert 0.25 <= pauses[0] <= 0.5
    assert 1.0 <= pauses[2] <= 2.0
    _Busy.answers = [503] * 9
    with pytest.raises(ClientError, match="busy") as caught:
        Client(url, TOKEN, tries=3).request("GET", "jobs")
    assert caught.value.status == 503
    assert len(_Busy.answers) == 6
    # What is wrong is not tried again.
    _Busy.answers = [422, 200]
    with pytest.raises(ClientError, match="busy"):
        Client(url, TOKEN).request("GET", "jobs")


@pytest.mark.parametrize("body", [b"[" * 100_000, b'"\xff"'], ids=["nested", "not UTF-8"])
def test_a_reply_that_is_none(
    busy: tuple[str, list[float]], monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    url, _ = busy
    monkeypatch.setattr(_Busy, "body", body)
    _Busy.answers = [200, 404]
    with pytest.raises(ClientError, match="its reply is not JSON"):
        Client(url, TOKEN).request("GET", "jobs")
    with pytest.raises(ClientError, match="answered 404"):
        Client(url, TOKEN).request("GET", "jobs")


def test_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobsight.client.time.sleep", lambda seconds: None)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ClientError, match="does not answer"):
        Client(f"http://127.0.0.1:{port}", TOKEN, tries=2).job(12)


def test_it_needs_only_the_packages_of_the_agent() -> None:
    code = "import sys, jobsight.client; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "msgspec" in loaded
    assert not loaded & {
        "fastapi",
        "starlette",
        "sqlalchemy",
        "httpx2",
        "pydantic",
        "numpy",
        "rich",
    }
