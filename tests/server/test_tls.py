"""The server's own TLS and the agent's side of it, with real certificates and connections."""

import http.client
import logging
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.cli.report import fetch_report
from jobsight.config.settings import Settings
from jobsight.errors import ConfigError, JobsightError
from jobsight.server.serve import BackgroundServer, ServerTls, open_listener
from jobsight.transport.delivery import Answer, HttpTarget, server_target
from jobsight.transport.tls import ClientTls
from jobsight.transport.wire import encode
from tests.server.batches import batch
from tests.server.certificates import Papers
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def settings(tmp_path: Path, papers: Papers) -> Settings:
    made = Settings()
    made.store.location = str(tmp_path / "store.db")
    made.server.port = 0
    # A copy, since some tests renew it.
    for name in papers.pair("server"):
        shutil.copy(name, tmp_path)
    made.server.tls_certificate = str(tmp_path / "server.pem")
    made.server.tls_key = str(tmp_path / "server.key")
    return made


@pytest.fixture
def server(settings: Settings) -> Iterator[BackgroundServer]:
    with BackgroundServer(settings) as running:
        yield running


@pytest.fixture
def strict(settings: Settings, papers: Papers) -> Iterator[BackgroundServer]:
    """A server that asks agents for certificates."""
    settings.server.tls_client_ca = papers.authority
    with BackgroundServer(settings) as running:
        yield running


def send(server: BackgroundServer, tls: ClientTls | None, job_id: int = 12) -> Answer:
    target = HttpTarget(server.url, server.token_file, tls=tls)
    return target.send(encode(batch(job_id)))


def test_an_agent_sends_over_tls(server: BackgroundServer, papers: Papers) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    assert send(server, ClientTls(papers.authority)) == Answer(stored=True)


def test_an_agent_trusts_nobody_else(server: BackgroundServer, papers: Papers) -> None:
    for tls in (None, ClientTls(papers.pair("stranger")[0])):
        answer = send(server, tls)
        assert not answer.stored
        assert not answer.refused
        assert "certificate verify failed" in answer.reason.lower()


def test_the_name_in_the_certificate_must_be_the_server_s(
    server: BackgroundServer, papers: Papers
) -> None:
    target = HttpTarget(
        server.url.replace("127.0.0.1", "localhost"),
        server.token_file,
        tls=ClientTls(papers.authority),
    )
    assert "localhost" in target.send(encode(batch())).reason


def test_plain_http_to_a_server_of_tls_is_no_receipt(server: BackgroundServer) -> None:
    target = HttpTarget(server.url.replace("https", "http"), server.token_file, timeout=2)
    assert target.send(encode(batch())).reason.startswith("the server does not answer")


def test_batches_need_a_certificate_where_the_server_asks_for_one(
    strict: BackgroundServer, papers: Papers
) -> None:
    answer = send(strict, ClientTls(papers.authority))
    assert not answer.refused
    assert "batches need a client certificate" in answer.reason
    tls = ClientTls(papers.authority, *papers.pair("node"))
    target = HttpTarget(strict.url, strict.token_file, tls=tls)
    assert target.send(encode(batch(13))).stored
    # The next connections resume the first, and its certificate still counts.
    assert resumes(strict, tls)
    assert target.send(encode(batch(14))).stored
    answer = send(strict, ClientTls(papers.authority, *papers.pair("stranger")))
    assert not answer.stored


def resumes(server: BackgroundServer, tls: ClientTls) -> bool:
    port = int(server.url.rpartition(":")[2])
    connection = tls.wrapping("127.0.0.1")(socket.create_connection(("127.0.0.1", port), 10))
    try:
        assert isinstance(connection, ssl.SSLSocket)
        return bool(connection.session_reused)
    finally:
        connection.close()


def test_pages_need_no_certificate(strict: BackgroundServer, papers: Papers) -> None:
    assert send(strict, ClientTls(papers.authority, *papers.pair("node"))).stored
    report = fetch_report(Path(strict.settings.store.location).parent / "server.json", "12", "x")
    assert report is not None
    assert report.display_id == "12"


def test_commands_of_this_machine_trust_the_very_certificate(
    server: BackgroundServer, settings: Settings, papers: Papers
) -> None:
    local = Settings()
    local.store.location = settings.store.location
    target = server_target(local, local.store.location)
    assert target is not None
    assert target.send(encode(batch())).stored
    # The same name, signed by the same authority, and yet another one.
    other = ClientTls(papers.pair("node")[0], pinned=True)
    assert "certificate verify failed" in send(server, other).reason


def test_the_settings_of_a_node_name_its_papers(strict: BackgroundServer, papers: Papers) -> None:
    node = Settings()
    node.server.url = strict.url
    node.server.token_file = str(strict.token_file)
    node.agent.tls_ca = papers.authority
    node.agent.tls_certificate, node.agent.tls_key = papers.pair("node")
    target = server_target(node, node.store.location)
    assert target is not None
    assert target.send(encode(batch())).stored


def shown(server: BackgroundServer) -> str:
    """The certificate that the server shows."""
    host, port = server.url.removeprefix("https://").split(":")
    return ssl.get_server_certificate((host, int(port)), timeout=60)


def renew(papers: Papers, folder: Path) -> None:
    """One more certificate of the same authority, with a key of its own."""
    shutil.copy(papers.pair("node")[1], folder / "server.key")
    shutil.copy(papers.pair("node")[0], folder / "server.pem")


def test_a_renewed_certificate_is_taken_up_without_a_restart(
    server: BackgroundServer,
    papers: Papers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = shown(server)
    renew(papers, tmp_path)
    monkeypatch.setattr("jobsight.server.serve._RENEWAL_TICKS", 1)
    now = wait_until(lambda: shown(server) != before and shown(server))
    assert now.split() == Path(papers.pair("node")[0]).read_text().split()
    assert send(server, ClientTls(papers.authority)).stored


def test_a_renewal_in_its_middle_changes_nothing(
    settings: Settings, papers: Papers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls.of(settings.server)
    assert tls is not None
    shutil.copy(papers.pair("node")[1], tmp_path / "server.key")
    with caplog.at_level(logging.INFO, "jobsight.server"):
        tls.renew()
        assert "cannot be loaded yet" in caplog.text
        (tmp_path / "server.pem").unlink()
        tls.renew()
        shutil.copy(papers.pair("node")[0], tmp_path / "server.pem")
        tls.renew()
        assert "reloaded the certificate" in caplog.text
        caplog.clear()
        tls.renew()
    assert caplog.text == ""


def test_an_agent_takes_up_renewed_papers(
    strict: BackgroundServer, papers: Papers, tmp_path: Path
) -> None:
    for source, name in zip(papers.pair("stranger"), ("mine.pem", "mine.key"), strict=True):
        shutil.copy(source, tmp_path / name)
    tls = ClientTls(papers.authority, str(tmp_path / "mine.pem"), str(tmp_path / "mine.key"))
    target = HttpTarget(strict.url, strict.token_file, tls=tls)
    assert not target.send(encode(batch())).stored
    shutil.copy(papers.pair("node")[1], tmp_path / "mine.key")
    # Half of a renewal leaves what was read before.
    assert not target.send(encode(batch())).stored
    shutil.copy(papers.pair("node")[0], tmp_path / "mine.pem")
    assert target.send(encode(batch())).stored


def wrong_settings(papers: Papers, folder: Path) -> dict[str, dict[str, str | None]]:
    certificate, key = papers.pair("server")
    locked = folder / "locked.key"
    if not locked.exists():
        command = ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", key]
        subprocess.run([*command, "-out", locked], check=True, capture_output=True)
    right: dict[str, str | None] = {"tls_certificate": certificate, "tls_key": key}
    return {
        r"server\.tls_key: is required with server\.tls_certificate": right | {"tls_key": None},
        r"server\.tls_certificate: is required with server\.tls_client_ca": {
            "tls_client_ca": papers.authority
        },
        r"tls_certificate: /none cannot be read: No such": right | {"tls_certificate": "/none"},
        r"cannot be used together: KEY_VALUES_MISMATCH": right
        | {"tls_key": papers.pair("node")[1]},
        r"cannot be used together: .*; expected a PEM": right | {"tls_key": certificate},
        r"server\.tls_key: has a passphrase": right | {"tls_key": str(locked)},
        r"tls_client_ca: .*server\.key holds no certificate": right | {"tls_client_ca": key},
    }


def test_wrong_certificates_and_keys_are_one_clear_line(papers: Papers, tmp_path: Path) -> None:
    for words, values in wrong_settings(papers, tmp_path).items():
        settings = Settings()
        settings.store.location = str(tmp_path / "new" / "store.db")
        for name, value in values.items():
            setattr(settings.server, name, value)
        with pytest.raises(ConfigError, match=words) as caught, BackgroundServer(settings):
            pass
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "new").exists()


def test_wrong_papers_of_an_agent_are_one_clear_line(papers: Papers) -> None:
    certificate, key = papers.pair("node")
    cases = {
        r"/none cannot be read: No such file": ("/none", None, None),
        r"node\.key holds no certificate \(PEM\)": (key, None, None),
        r"tls_key requires agent\.tls_certificate": (None, None, key),
        r"cannot be used together: KEY_VALUES": (None, certificate, papers.pair("server")[1]),
    }
    for words, given in cases.items():
        with pytest.raises(ConfigError, match=words):
            ClientTls(*given)


def test_with_tls_the_network_is_no_decision_of_its_own(settings: Settings) -> None:
    # An address that no machine has: with TLS it fails at the kernel only.
    settings.server.host = "192.0.2.1"
    with pytest.raises(JobsightError, match=r"cannot listen on 192\.0\.2\.1"):
        open_listener(settings)
    settings.server.tls_certificate = None
    with pytest.raises(ConfigError, match=r"set server\.tls_certificate and server\.tls_key"):
        open_listener(settings)


def test_the_cookie_stays_on_tls(server: BackgroundServer, papers: Papers) -> None:
    host, port = server.url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=papers.authority)
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
    connection.request("GET", server.sign_in_url().removeprefix(server.url))
    answer = connection.getresponse()
    assert answer.status == 303
    assert "; Secure" in (answer.getheader("set-cookie") or "")
    connection.close()


def test_an_agent_without_tls_carries_none_of_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("x" * 40)
    file.chmod(0o600)
    code = (
        "import sys; from pathlib import Path; from jobsight.transport.delivery import HttpTarget;"
        "HttpTarget('http://127.0.0.1:9', Path(sys.argv[1])).send(b'');"
        "print({'ssl', 'http.client', 'email', 'hashlib'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "set()\n"
