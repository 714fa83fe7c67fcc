"""A real server on loopback: its socket, its record, its end, and what strangers get."""

import asyncio
import json
import logging
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.config.settings import Settings
from jobsight.errors import ConfigError, JobsightError
from jobsight.server.connections import HttpProtocol
from jobsight.server.serve import BackgroundServer, open_listener, run_server
from jobsight.store.store import Store
from jobsight.transport import wire
from jobsight.transport.running_server import RunningServer, announced, read_running_server
from tests.server.batches import batch


def _settings(folder: Path, port: int = 0) -> Settings:
    settings = Settings()
    settings.store.location = str(folder / "store.db")
    settings.server.port = port
    return settings


def _get(url: str, token: str | None = None, data: bytes | None = None) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, data, headers), timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_in_the_background(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    with BackgroundServer(_settings(tmp_path)) as server:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        record = read_running_server(file)
        assert record is not None
        assert (record.url, record.pid) == (server.url, os.getpid())
        data = wire.encode(batch())
        assert _get(f"{server.url}/api/v1/batches", server.token, data)[0] == 200
        assert _get(f"{server.url}/api/v1/jobs/12", server.token)[0] == 200
        assert _get(f"{server.url}/api/v1/jobs/12")[0] == 401
        with (
            pytest.raises(JobsightError, match=f"is already running: {server.url}"),
            BackgroundServer(_settings(tmp_path)),
        ):
            pass
        assert _get(f"{server.url}/healthz") == (200, b"ok\n")
    assert not file.exists()
    assert read_running_server(file) is None


def test_a_server_that_has_ended_limits_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("jobsight.server.ingest")
    with BackgroundServer(_settings(tmp_path)):
        pass
    caplog.clear()
    for _ in range(100):
        logger.warning("a client caused this")
    assert len(caplog.records) == 100


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(JobsightError, match=f"port {port} of 127.0.0.1 is in use; .*--port"),
            BackgroundServer(_settings(tmp_path, port)),
        ):
            pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("host", "sentence"),
    [("0.0.0.0", "not a loopback address"), ("no such name", "not an address")],
)
def test_addresses_that_are_refused(tmp_path: Path, host: str, sentence: str) -> None:
    settings = _settings(tmp_path)
    settings.server.host = host
    with pytest.raises(ConfigError, match=sentence):
        open_listener(settings)


def test_what_a_killed_server_left_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    record = RunningServer(url="http://127.0.0.1:1", token_file="/x", pid=os.getpid())
    with announced(file, record):
        left = file.read_bytes()
    file.write_bytes(left)
    assert read_running_server(file) is None
    with announced(file, record):
        assert read_running_server(file) == record


class Served:
    """``jobsight serve`` as a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "jobsight.cli.main", "serve", "--port", "0"]
        command += ["--store", str(folder / "store.db")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline() for _ in range(4)]
        self.record = json.loads((folder / "server.json").read_text())
        self.url = self.record["url"]
        self.token = Path(self.record["token_file"]).read_text().strip()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if _get(f"{self.url}/healthz")[0] == 200:
                    return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the server did not start")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    with Store.open(folder / "store.db") as store:
        store.write(batch())
    server = Served(folder)
    yield server
    if server.process.poll() is None:
        server.end(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(served: Served, tmp_path: Path, number: int) -> None:
    assert f"  open   {served.url}/\n" in served.lines
    assert f"  token  {tmp_path / 'data' / 'token'}\n" in served.lines
    assert served.end(number) == 0
    assert not (tmp_path / "data" / "server.json").exists()


#: Tries everything a curious user of the machine would try; prints what worked.
CURIOUS = """
import json, sys, urllib.request, urllib.error
url, folder = sys.argv[1:]
got = []
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for path in ("/", "/jobs/12", "/api/v1/jobs", "/api/v1/jobs/12", "/api/v1/jobs/12/series",
             "/api/v1/openapi.json", "/static/charts.js", "/?code=guess"):
    try:
        with opener.open(url + path, timeout=60) as answer:
            got.append([path, answer.status])
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        if error.code != 401 or "alice" in text or "multiply" in text:
            got.append([path, error.code])
for method in ("/api/v1/batches", "/sign-in"):
    try:
        with opener.open(url + method, b"token=guess", timeout=60) as answer:
            got.append([method, answer.status])
    except urllib.error.HTTPError as error:
        if error.code != 401:
            got.append([method, error.code])
for name in ("token", "server.json", "store.db", "store.db-wal", "server.lock"):
    try:
        open(folder + "/" + name, "rb").read()
        got.append(name)
    except (PermissionError, FileNotFoundError):
        pass
print(json.dumps(got))
"""


@pytest.fixture
def other_user() -> Iterator[int]:
    """A real second user of this machine, removed afterwards."""
    if not shutil.which("useradd"):
        pytest.skip("needs the command useradd to make a second user")
    name = f"jobsight-test-{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/false", name], check=True)
    try:
        yield pwd.getpwnam(name).pw_uid
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)


@pytest.mark.root
def test_another_user_of_the_machine_gets_nothing(
    served: Served, tmp_path: Path, other_user: int
) -> None:
    # The directories above may be entered: what protects is the mode of each file and the token.
    for folder in (tmp_path / "data", *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    tmp_path.chmod(0o755)
    interpreter = "/usr/bin/python3"
    if not Path(interpreter).exists():
        pytest.skip("needs the system's python3, which every user may run")
    answer = subprocess.run(
        [interpreter, "-c", CURIOUS, served.url, str(tmp_path / "data")],
        user=other_user,
        group=other_user,
        extra_groups=[],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.stderr == ""
    assert json.loads(answer.stdout) == []
    assert _get(f"{served.url}/api/v1/jobs/12", served.token)[0] == 200


def test_answers_are_sent_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is written in two pieces; the second must not wait until the first has arrived."""
    at_once: list[int] = []
    made = HttpProtocol.connection_made

    def noted(self: HttpProtocol, transport: asyncio.Transport) -> None:
        made(self, transport)
        connection = transport.get_extra_info("socket")
        at_once.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(HttpProtocol, "connection_made", noted)
    with BackgroundServer(_settings(tmp_path)) as server:
        assert _get(f"{server.url}/healthz") == (200, b"ok\n")
    assert at_once == [1]


@pytest.mark.root
@pytest.mark.parametrize("name", ["token", "store.db"])
def test_what_another_user_placed_in_advance_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mallory-knows-this-token\n" if name == "token" else "")
    (tmp_path / name).chmod(0o600)
    os.chown(tmp_path / name, 65534, 65534)
    with pytest.raises(JobsightError, match=r"belongs to user 65534; expected root"):
        BackgroundServer(_settings(tmp_path)).__enter__()
    assert not (tmp_path / "server.json").exists()


def test_a_signal_before_the_server_runs_is_not_lost(tmp_path: Path) -> None:
    def show(line: str) -> None:
        if "Ctrl-C" in line:
            os.kill(os.getpid(), signal.SIGTERM)

    # Returns instead of serving for ever.
    run_server(_settings(tmp_path), show)
