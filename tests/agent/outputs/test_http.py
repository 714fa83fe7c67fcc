"""Records over HTTP and HTTPS to real servers that answer, refuse, hang, and hang up."""

import base64
import contextlib
import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobsight.agent.exporter.exporter import AgentMetrics, Exporter
from jobsight.agent.job import JobView
from jobsight.agent.outputs.http import HttpOptions, HttpOutput
from jobsight.agent.outputs.sams_record import REFUSED_HEADER
from jobsight.agent.outputs.worker import OutputPlan, OutputWorker, RecordRefused, stop_all
from jobsight.errors import ConfigError
from tests.agent.outputs.conftest import HOSTILE
from tests.prometheus.test_dashboards import STATUS

DOCUMENTS = {"sams.sampler.Core": {"jobid": 1234, "node": "n1"}}


class Receiver(ThreadingHTTPServer):
    """Keeps what it is sent and answers with the next of its answers, at last with 200."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[int | str] = []
        #: Sent with the next answers, as the receiver of jobsight or a proxy does.
        self.headers: dict[str, str] = {}
        self.got: list[tuple[str, bytes, dict[str, str]]] = []
        self.ended = threading.Event()
        #: Whether one that hung is done; it is not as long as the test runs.
        self.let_go: bool | None = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.server.answers.pop(0) if self.server.answers else 200
        if answer == "hang":
            self.server.let_go = self.server.ended.wait(100)
            return
        if answer == "close":
            self.connection.close()
            return
        if answer == "drip":
            with contextlib.suppress(OSError):
                while not self.server.ended.wait(0.05):
                    self.wfile.write(b"H")
            return
        if answer == 200:
            self.server.got.append((self.path, body, dict(self.headers)))
        self.send_response(int(answer))
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"no\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.ended.set()
        server.shutdown()


@pytest.fixture
def output(tmp_path: Path, receiver: Receiver, view: JobView) -> Callable[..., HttpOutput]:
    def make(**more: Any) -> HttpOutput:
        given = {
            "uri": f"http://{receiver.address}/%(jobid_hash)d/%(jobid)s.%(node)s.json",
            "jobid_hash_size": 1000,
            "spool": str(tmp_path / "spool"),
        } | more
        return HttpOutput(HttpOptions(**given), view)

    return make


def kept(tmp_path: Path, folder: str = "spool") -> list[Path]:
    return sorted((tmp_path / folder).glob("*.kept"))


def test_the_record_is_posted(
    tmp_path: Path, receiver: Receiver, view: JobView, output: Callable[..., HttpOutput]
) -> None:
    one = output(username="sams", password="p:ä", exclude=["x"])
    one.store(view, "x", {"secret": 1})
    one.write(view, DOCUMENTS)
    ((path, body, headers),) = receiver.got
    assert path == "/1/1234.n1.json"
    assert json.loads(body) == DOCUMENTS
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Basic " + base64.b64encode("sams:p:ä".encode()).decode()
    assert kept(tmp_path) == []


def test_a_requeued_run_gets_its_start_into_the_name(
    receiver: Receiver, view: JobView, output: Callable[..., HttpOutput]
) -> None:
    view.sighting = msgspec.structs.replace(view.sighting, restart_count=1)
    output().write(view, DOCUMENTS)
    assert receiver.got[0][0] == "/1/1234.n1.20261115T043312Z.json"


@pytest.mark.parametrize("node", HOSTILE)
def test_a_node_cannot_change_the_address(
    receiver: Receiver, view: JobView, output: Callable[..., HttpOutput], node: str
) -> None:
    view.sighting = msgspec.structs.replace(view.sighting, node=node)
    output().write(view, DOCUMENTS)
    path = receiver.got[0][0]
    assert path.startswith("/1/1234.")
    assert path.count("/") == 2


@pytest.mark.parametrize(
    "answer", [500, 503, 429, 401, 302, 400, 404, 413, "close", "hang", "drip"]
)
def test_what_cannot_be_sent_now_is_sent_later(
    tmp_path: Path,
    receiver: Receiver,
    view: JobView,
    output: Callable[..., HttpOutput],
    answer: int | str,
) -> None:
    receiver.answers = [answer]
    one = output(timeout=0.4)
    with pytest.raises(ConnectionError):
        one.write(view, DOCUMENTS)
    assert receiver.let_go is None
    assert len(kept(tmp_path)) == 1
    one.options.timeout = 60
    one.write(view, DOCUMENTS)
    assert len(receiver.got) == 1
    assert kept(tmp_path) == []


def test_a_record_outlives_its_collector(
    tmp_path: Path, receiver: Receiver, view: JobView, output: Callable[..., HttpOutput]
) -> None:
    receiver.answers = [503] * 3
    options = output().options
    worker = OutputWorker(OutputPlan("http", lambda view: HttpOutput(options, view), 3, 0.01))
    worker.job(view).write(view, DOCUMENTS)
    assert worker.stop(60)
    assert (worker.counts.written, worker.counts.saved) == (0, 1)
    assert len(kept(tmp_path)) == 1
    # The next collector on this node sends it with its first sample.
    view.sighting = msgspec.structs.replace(view.sighting, job_id=1235)
    output().store(view, "s", {})
    assert [path for path, _, _ in receiver.got] == ["/1/1234.n1.json"]
    assert kept(tmp_path) == []


def test_what_is_refused_is_put_aside(
    tmp_path: Path, receiver: Receiver, view: JobView, output: Callable[..., HttpOutput]
) -> None:
    receiver.answers, receiver.headers = [422], {REFUSED_HEADER: "record"}
    with pytest.raises(RecordRefused, match="refused"):
        output().write(view, DOCUMENTS)
    (aside,) = kept(tmp_path, "spool/refused")
    assert "answered 422" in aside.with_suffix(".reason").read_text()
    assert kept(tmp_path) == []
    # Moved back, it goes out again.
    aside.rename(tmp_path / "spool" / aside.name)
    output().store(view, "s", {})
    assert len(receiver.got) == 1


# Fault 16: a client error of a proxy does not concern the record.
def test_a_record_that_a_proxy_refuses_for_its_size_does_not_hold_up_others(
    tmp_path: Path, receiver: Receiver, view: JobView, output: Callable[..., HttpOutput]
) -> None:
    receiver.answers = [413, 413]
    with pytest.raises(ConnectionError, match="413"):
        output().write(view, DOCUMENTS)
    view.sighting = msgspec.structs.replace(view.sighting, job_id=1235)
    output().write(view, DOCUMENTS)
    assert [path for path, _, _ in receiver.got] == ["/1/1235.n1.json"]
    assert len(kept(tmp_path)) == 1
    assert kept(tmp_path, "spool/refused") == []


def test_a_damaged_kept_record_is_put_aside(
    tmp_path: Path, receiver: Receiver, view: JobView, output: Callable[..., HttpOutput]
) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "0-cut.kept").write_bytes(b'{"job_id":1')
    output().write(view, DOCUMENTS)
    assert len(receiver.got) == 1
    assert len(kept(tmp_path, "spool/refused")) == 1


def test_the_kept_records_are_bounded(
    tmp_path: Path, view: JobView, output: Callable[..., HttpOutput]
) -> None:
    one = output(uri="http://127.0.0.1:1/%(jobid)s", spool_limit=2**16)
    for number in range(5):
        each = HttpOutput(one.options, view)
        with pytest.raises(ConnectionError, match="does not answer"):
            each.write(view, {"s": {"n": number, "x": "x" * 20_000}})
    assert len(kept(tmp_path)) == 3
    assert each.spool.dropped == 1


def test_a_record_that_makes_room_for_another_is_counted_as_lost(
    tmp_path: Path, view: JobView, output: Callable[..., HttpOutput]
) -> None:
    options = output(uri="http://127.0.0.1:1/%(jobid)s", spool_limit=2**16).options
    worker = OutputWorker(OutputPlan("site", lambda view: HttpOutput(options, view), 1))
    own = AgentMetrics(Exporter(), lambda: STATUS)
    own.outputs = [worker, OutputWorker(OutputPlan("site", lambda view: HttpOutput(options, view)))]
    for number in range(5):
        worker.job(view).write(view, {"s": {"n": number, "x": "x" * 20_000}})
    assert not stop_all(own.outputs)
    assert len(kept(tmp_path)) == 3
    assert (worker.counts.saved, worker.counts.lost) == (5, 2)
    own.refresh()
    text = "".join(lines.text for lines in own())
    labels = 'cluster="c",node="n1",output="site"'
    assert f"jobsight_agent_output_lost_records_total{{{labels}}} 2\n" in text
    assert f"jobsight_agent_output_refused_records_total{{{labels}}} 0\n" in text
    assert f"jobsight_agent_output_lost_samples_total{{{labels}}} 0\n" in text


def test_without_room_it_is_sent_all_the_same(
    tmp_path: Path, receiver: Receiver, view: JobView, output: Callable[..., HttpOutput]
) -> None:
    (tmp_path / "file").write_text("")
    one = output(spool=str(tmp_path / "file" / "spool"))
    one.write(view, DOCUMENTS)
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"uri": "ftp://x/%(jobid)s"}, "is not a URL; expected https://HOST"),
        ({"uri": "http://x:many/"}, "is not a URL"),
        ({"uri": "http://[::1/"}, "is not a URL"),
        ({"uri": "http://x/%(jobid_hash)d"}, "needs jobid_hash_size"),
        ({"uri": "http://x/%(user)s"}, "is not known"),
        ({"uri": "http://x", "username": "u"}, "username and password are required together"),
        ({"uri": "https://x", "key_file": "/k"}, "key_file requires cert_file"),
        ({"uri": "https://x", "ca_file": "/nosuch"}, "ca_file: /nosuch cannot be read"),
        ({"uri": "http://x", "ca_file": "/dev/null"}, "require an uri that starts with https"),
        ({"uri": "http://x", "spool": ""}, "spool: '' is not absolute"),
        ({"uri": "http://x", "spool": "http"}, "spool: 'http' is not absolute"),
    ],
)
def test_options_are_checked_at_the_start(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        HttpOptions(**more)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's and a client's certificate, and another authority's client."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for name in ("ca", "other"):
        subject = ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        openssl("req", "-x509", *key, *subject, "-days", "2")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name, issuer in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "csr")
        signer = ["-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key", "-CAcreateserial"]
        openssl(
            "x509",
            "-req",
            "-in",
            "csr",
            *signer,
            "-days",
            "2",
            "-extfile",
            "names",
            "-out",
            f"{name}.pem",
        )
    return folder


@pytest.fixture
def secure(receiver: Receiver, certificates: Path) -> Receiver:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    receiver.socket = context.wrap_socket(
        receiver.socket, server_side=True, do_handshake_on_connect=False
    )
    return receiver


def test_client_certificates(
    secure: Receiver, certificates: Path, view: JobView, output: Callable[..., HttpOutput]
) -> None:
    def post(client: str | None, authority: str) -> None:
        files = {"ca_file": str(certificates / f"{authority}.pem")}
        if client:
            files["cert_file"] = str(certificates / f"{client}.pem")
            files["key_file"] = str(certificates / f"{client}.key")
        output(uri=f"https://{secure.address}/%(jobid)s", timeout=60, **files).write(
            view, DOCUMENTS
        )

    with pytest.raises(ConnectionError, match="certificate verify failed"):
        post("client", "other")
    for client in (None, "stranger"):
        with pytest.raises(ConnectionError, match="does not answer"):
            post(client, "ca")
    assert secure.got == []
    post("client", "ca")
    # The three that waited went with the last one.
    assert len(secure.got) == 4


def test_a_tls_server_that_hangs_is_left_in_time(
    secure: Receiver, certificates: Path, view: JobView, output: Callable[..., HttpOutput]
) -> None:
    secure.answers = ["hang"]
    files = {
        "ca_file": str(certificates / "ca.pem"),
        "cert_file": str(certificates / "client.pem"),
        "key_file": str(certificates / "client.key"),
    }
    one = output(uri=f"https://{secure.address}/%(jobid)s", timeout=0.5, **files)
    with pytest.raises(ConnectionError):
        one.write(view, DOCUMENTS)
    assert secure.let_go is None
