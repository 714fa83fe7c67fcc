"""``jobsight doctor`` from a node to its server and on the server's host: each fault is found, and
what to type is said."""

from __future__ import annotations

import http.server
import ssl
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

import jobsight
from jobsight.cli import connection_checks as connection
from jobsight.cli.checks import Check
from jobsight.cli.connection_checks import connection_checks
from jobsight.cli.server_checks import _private_data, server_checks
from jobsight.config.settings import Settings
from jobsight.server.authority import Authority
from jobsight.server.serve import BackgroundServer
from jobsight.store.store import Store
from jobsight.store.tokens import Tokens
from tests.waiting import wait_until

pytestmark = pytest.mark.server


class Fake:
    """A server that answers as jobsight does, with a chosen clock, version and certificate."""

    def __init__(self, pair: tuple[Path, Path] | None = None) -> None:
        self.skew = 0.0
        self.version = jobsight.__version__
        self.refusal: tuple[int, bytes] = (400, b"")
        self.alive = b"ok\n"
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate(time.time() + outer.skew, usegmt=True)

            def do_GET(self) -> None:
                self._answer(200, outer.alive)

            def do_POST(self) -> None:
                self._answer(*outer.refusal)

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Jobsight-Version", outer.version)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        scheme = "http"
        if pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*pair)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(cluster="alpha")
    token = tmp_path / "token"
    token.write_text("a-token-of-the-cluster-alpha\n")
    token.chmod(0o600)
    made.server.token_file = str(token)
    made.store.location = str(tmp_path / "store.db")
    return made


@pytest.fixture
def fake(settings: Settings) -> Iterator[Fake]:
    made = Fake()
    settings.server.url = made.url
    yield made
    made.close()


def fault(checks: list[Check]) -> Check:
    (found,) = [check for check in checks if check.verdict == "fault"]
    assert found.todo, "a fault says what to type"
    return found


def test_all_is_well(settings: Settings, fake: Fake) -> None:
    checks = connection_checks(settings)
    assert {check.name: check.verdict for check in checks} == dict.fromkeys(
        ("address", "certificate", "clock", "token", "version"), "good"
    )


def test_a_clock_that_differs(settings: Settings, fake: Fake) -> None:
    fake.skew = 120
    found = fault(connection_checks(settings))
    assert (found.name, "behind the server's" in found.found) == ("clock", True)
    fake.skew = -120
    assert "ahead of the server's" in fault(connection_checks(settings)).found


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [("0.1.9", "good"), ("0.2.0", "good"), ("0.3.0", "fault"), ("1.1.0", "fault"), ("x", "partly")],
)
def test_versions(theirs: str, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobsight, "__version__", "0.1.0")
    assert connection._version(theirs).verdict == verdict


def test_what_is_not_jobsight(settings: Settings, fake: Fake) -> None:
    fake.alive = b"<html>It works!</html>"
    found = fault(connection_checks(settings))
    assert "not as jobsight does" in found.found


def test_nothing_listens(settings: Settings, fake: Fake) -> None:
    fake.close()
    found = fault(connection_checks(settings))
    assert found.name == "address"
    assert "systemctl status jobsight-server" in found.todo


@pytest.mark.parametrize("url", ["https://", "ftp://server", "https://server:x", "server"])
def test_an_address_that_is_none(settings: Settings, url: str) -> None:
    settings.server.url = url
    assert "server.url" in fault(connection_checks(settings)).found


def test_certificates(settings: Settings, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    for each in (authority, other):
        each.create("test")
    authority.issue("localhost", "server", days=7)
    authority.issue("elsewhere", "server")
    fake = Fake(authority.files("localhost"))
    settings.server.url = fake.url
    try:
        settings.agent.tls_ca = str(authority.certificate_file)
        checks = {check.name: check for check in connection_checks(settings)}
        assert checks["certificate"].verdict == "partly"
        assert "ends on" in checks["certificate"].found
        assert checks["token"].verdict == "good"
        settings.agent.tls_ca = str(other.certificate_file)
        assert "agent.tls_ca" in fault(connection_checks(settings)).todo
        settings.agent.tls_ca = str(tmp_path / "nothing.pem")
        assert "nothing.pem" in fault(connection_checks(settings)).found
    finally:
        fake.close()
    foreign = Fake(authority.files("elsewhere"))
    settings.server.url = foreign.url
    settings.agent.tls_ca = str(authority.certificate_file)
    try:
        assert "not for localhost" in fault(connection_checks(settings)).todo
    finally:
        foreign.close()


def test_a_real_server_and_its_tokens(settings: Settings, tmp_path: Path) -> None:
    file = Path(str(settings.server.token_file))
    own = Settings(cluster="alpha")
    own.store.location = str(tmp_path / "server" / "store.db")
    own.server.port = 0
    (tmp_path / "server").mkdir(mode=0o700)
    with Store.open(own.store.location) as store, BackgroundServer(own, store) as server:
        settings.server.url = server.url
        found = fault(connection_checks(settings))
        assert (found.name, "401" in found.found) == ("token", True)
        number, secret = Tokens(store.database).add("alpha", "", None)
        file.write_text(secret)
        checks = {check.name: check for check in connection_checks(settings)}
        assert (checks["token"].verdict, checks["version"].verdict) == ("good", "good")
        settings.cluster = "beta"
        found = fault(connection_checks(settings))
        assert "is of the cluster alpha, the settings are for beta" in found.found
        assert 'cluster = "alpha"' in found.todo
        settings.cluster = "alpha"
        Tokens(store.database).revoke(number)
        wait_until(lambda: any(check.verdict == "fault" for check in connection_checks(settings)))
        assert "jobsight token add" in fault(connection_checks(settings)).todo
        # The check itself counts as nothing.
        health = {check.name: check.verdict for check in server_checks(own)}
        assert health["server"] == "good"


def test_the_parts_of_a_server(tmp_path: Path) -> None:
    """Everything that the settings of a server name, and nothing of it works."""
    settings = Settings(cluster="alpha")
    settings.store.location = str(tmp_path / "store.db")
    settings.server.port = 0
    settings.server.tls_certificate = str(tmp_path / "server.pem")
    settings.scheduler.interval = 60
    settings.scheduler.slurm_directory = str(tmp_path)
    settings.sinks.opensearch.url = "http://127.0.0.1:1"
    settings.mail.interval = 60
    settings.mail.port = 1
    settings.mail.queue = str(tmp_path / "no-queue")
    settings.archive.location = "/proc/no-archive"
    checks = {check.name: check for check in server_checks(settings)}
    assert {name for name, check in checks.items() if check.verdict == "fault"} == {
        "certificate", "scrape alpha", "sink opensearch", "mail", "archive",
    }  # fmt: skip
    assert {name for name, check in checks.items() if check.verdict == "missing"} == {
        "store", "server",
    }  # fmt: skip
    assert all(check.todo for check in checks.values() if check.verdict == "fault")


def test_a_running_server_with_a_part_that_fails(tmp_path: Path) -> None:
    settings = Settings(cluster="alpha")
    settings.store.location = str(tmp_path / "store.db")
    settings.server.port = 0
    settings.server.remote_write.url = "http://127.0.0.1:1/write"
    settings.sinks.opensearch.url = "http://127.0.0.1:1"
    with BackgroundServer(settings):
        wait_until(
            lambda: any(check.name == "sink opensearch" for check in server_checks(settings))
        )
        wait_until(
            lambda: any(
                check.name == "worker sink-opensearch" and check.verdict == "fault"
                for check in server_checks(settings)
            )
        )


def test_a_slurm_that_hides_the_jobs_of_others(tmp_path: Path) -> None:
    settings = Settings(cluster="alpha")
    settings.store.location = "postgresql://db.example.org/jobsight"
    settings.scheduler.slurm_directory = str(tmp_path)
    config = tmp_path / "scontrol"
    levels = tmp_path / "sacctmgr"
    for file in (config, levels):
        file.write_text("#!/bin/sh\nexit 1\n")
        file.chmod(0o755)
    assert _private_data(settings) == []
    config.write_text(
        "#!/bin/sh\necho 'PrivateData = jobs,users'; echo 'SlurmUser = slurm(64030)'\n"
    )
    levels.write_text("#!/bin/sh\necho None\n")
    (found,) = _private_data(settings)
    assert found.found.startswith("jobs of others is hidden from jobsight")
    assert "adminlevel=Operator" in found.todo
    levels.write_text("#!/bin/sh\necho Operator\n")
    assert _private_data(settings) == []
    levels.write_text("#!/bin/sh\nexit 1\n")
    config.write_text("#!/bin/sh\necho 'PrivateData = none'\n")
    assert _private_data(settings) == []
