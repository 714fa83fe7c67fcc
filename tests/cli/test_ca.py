"""``jobsight ca``: certificates that OpenSSL accepts, a server that uses them, and one that is
revoked."""

from __future__ import annotations

import json
import re
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from jobsight.cli.main import main
from jobsight.config.settings import Settings
from jobsight.server.authority import Authority, CaError
from jobsight.server.serve import BackgroundServer
from jobsight.store.read.node_days import series_of_node
from jobsight.store.store import Store
from jobsight.transport import wire
from jobsight.transport.delivery import Answer, HttpTarget
from jobsight.transport.tls import ClientTls, certificate_end
from tests.server.batches import batch
from tests.store.node_sample import node_series
from tests.waiting import wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "ca"
    assert main(["ca", "create", "--directory", str(place)]) == 0
    return place


def ca(directory: Path, *arguments: str) -> int:
    return main(["ca", *arguments, "--directory", str(directory)])


def test_openssl_accepts_what_is_issued(directory: Path, tmp_path: Path) -> None:
    assert ca(directory, "issue", "server.test", "--server", "--host", "127.0.0.1") == 0
    assert ca(directory, "issue", "node1", "--output", str(tmp_path)) == 0
    for name, purpose in (("server.test", "sslserver"), ("node1", "sslclient")):
        command = ["openssl", "verify", "-purpose", purpose, "-x509_strict", "-crl_check"]
        command += ["-CRLfile", str(directory / "crl.pem"), "-CAfile", str(directory / "ca.pem")]
        checked = subprocess.run(
            [*command, str(directory / "issued" / f"{name}.pem")], capture_output=True, text=True
        )
        assert checked.returncode == 0, checked.stderr
    modes = {
        name: stat.S_IMODE((directory / name).stat().st_mode)
        for name in ("ca.key", "ca.pem", "crl.pem", "issued", "issued/node1.key", "issued.json")
    }
    assert modes == {
        "ca.key": 0o600, "ca.pem": 0o644, "crl.pem": 0o644,
        "issued": 0o700, "issued/node1.key": 0o600, "issued.json": 0o600,
    }  # fmt: skip
    assert (tmp_path / "node1.pem").read_bytes() == (directory / "issued/node1.pem").read_bytes()
    assert stat.S_IMODE((tmp_path / "node1.key").stat().st_mode) == 0o600
    # A node's certificate is no authority.
    forged = subprocess.run(
        ["openssl", "x509", "-in", str(directory / "issued/node1.pem"), "-noout", "-text"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "CA:FALSE" in forged.stdout


def test_what_is_refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ca(directory, "create") == 1
    assert "there is an authority in" in capsys.readouterr().err
    assert ca(directory, "issue", "../ca") == 1
    assert "is not a name for a certificate" in capsys.readouterr().err
    assert ca(directory, "issue", "node1") == 0
    assert ca(directory, "issue", "node1") == 1
    assert "`jobsight ca renew node1`" in capsys.readouterr().err
    assert ca(directory, "renew", "nod1") == 1
    assert "did you mean node1?" in capsys.readouterr().err
    assert ca(directory.parent / "nowhere", "list") == 1
    assert "`jobsight ca create` makes one" in capsys.readouterr().err


def test_the_list(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ca(directory, "issue", "node1", "--days", "10") == 0
    assert ca(directory, "renew", "node1") == 0
    capsys.readouterr()
    assert ca(directory, "list", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["name"] == second["name"] == "node1"
    assert first["ends"] < second["ends"]
    assert ca(directory, "revoke", first["serial"]) == 0
    capsys.readouterr()
    assert ca(directory, "list") == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "revoked", "valid",
    ]  # fmt: skip
    assert ca(directory, "show") == 0
    assert "BEGIN CERTIFICATE" in capsys.readouterr().out


def test_an_authority_that_has_ended_issues_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    authority.create("old", 1)
    later = Authority(tmp_path / "ca", lambda: datetime.now(UTC) + timedelta(days=2))
    with pytest.raises(CaError, match="the authority ended on"):
        later.issue("node1", "node")


def test_the_end_of_a_certificate_is_read_with_the_agents_packages(directory: Path) -> None:
    assert ca(directory, "issue", "node1", "--days", "10") == 0
    end = certificate_end(directory / "issued/node1.pem")
    assert end is not None
    assert 9 * 86400 < end - datetime.now(UTC).timestamp() < 11 * 86400
    assert certificate_end(directory / "ca.key") is None
    assert certificate_end(directory / "nothing") is None


def test_a_server_refuses_a_revoked_node(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real server with the authority's certificates; the revocation list is reloaded."""
    assert ca(directory, "issue", "server.test", "--server", "--host", "127.0.0.1") == 0
    for name in ("good", "stolen"):
        assert ca(directory, "issue", name) == 0
    monkeypatch.setattr("jobsight.server.serve._RENEWAL_TICKS", 1)
    settings = Settings(cluster="lab")
    settings.store.location = str(tmp_path / "store.db")
    settings.server.port = 0
    settings.server.tls_certificate = str(directory / "issued/server.test.pem")
    settings.server.tls_key = str(directory / "issued/server.test.key")
    settings.server.tls_client_ca = str(directory / "ca.pem")
    settings.server.tls_client_crl = str(directory / "crl.pem")

    def send(server: BackgroundServer, name: str, job: int) -> int | None:
        context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
        pair = directory / "issued" / name
        context.load_cert_chain(f"{pair}.pem", f"{pair}.key")
        try:
            with httpx2.Client(verify=context) as client:
                reply = client.post(
                    f"{server.url}/api/v1/batches",
                    content=wire.encode(batch(job)),
                    headers={"Authorization": f"Bearer {server.token}"},
                )
                return reply.status_code
        except httpx2.TransportError:
            return None

    with BackgroundServer(settings) as server:
        assert send(server, "good", 1) == 200
        assert send(server, "stolen", 2) == 200
        assert ca(directory, "revoke", "stolen") == 0
        wait_until(lambda: send(server, "stolen", 3) is None)
        assert send(server, "good", 4) == 200
    # And from the start.
    with BackgroundServer(settings) as server:
        assert send(server, "stolen", 5) is None
        assert send(server, "good", 6) == 200


def test_a_node_sends_its_own_time_series_only(directory: Path, tmp_path: Path) -> None:
    """Where nodes have certificates, one cannot write the series of another."""
    assert ca(directory, "issue", "server.test", "--server", "--host", "127.0.0.1") == 0
    for name in ("n1", "n2"):
        assert ca(directory, "issue", name) == 0
    settings = Settings(cluster="lab")
    settings.store.location = str(tmp_path / "store.db")
    settings.server.port = 0
    settings.server.tls_certificate = str(directory / "issued/server.test.pem")
    settings.server.tls_key = str(directory / "issued/server.test.key")
    settings.server.tls_client_ca = str(directory / "ca.pem")

    def send(server: BackgroundServer, name: str, node: str, job: int) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
        pair = directory / "issued" / name
        context.load_cert_chain(f"{pair}.pem", f"{pair}.key")
        sent = batch(job)
        sent.node, sent.spool = node, f"spool {name} {node}"
        sent.node_series = node_series(sent.written, 3)
        with httpx2.Client(verify=context) as client:
            reply = client.post(
                f"{server.url}/api/v1/batches",
                content=wire.encode(sent),
                headers={"Authorization": f"Bearer {server.token}"},
            )
        assert reply.status_code == 200
        answer: dict[str, Any] = reply.json()
        return answer

    with BackgroundServer(settings) as server:
        assert send(server, "n1", "n1", 1) == {"status": "stored"}
        # The jobs of the batch are stored; several slurmd may run on one machine.
        assert send(server, "n2", "n1", 2) == {
            "status": "stored",
            "left_out": 1,
            "reasons": ["series of node 'n1': the certificate of the sender is for 'n2'"],
        }
    with Store.open(settings.store.location) as store:
        assert store.count_runs() == 2
        series = series_of_node(store.database, "alpha", "n1", ("node.load.1m",), 0, 2**62)
        assert series is not None
        assert len(series.times) == 3
        with store.database.query() as transaction:
            rows = transaction.execute("SELECT node, stored_values FROM node_days").fetchall()
        assert len(rows) == 1
        sent = node_series(0, 3)
        assert tuple(rows[0]) == ("n1", 3 * (1 + len(sent.columns)))


def test_a_session_does_not_outlive_its_certificate(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents resume their TLS sessions, and a resumed one does not verify the certificate."""
    assert ca(directory, "issue", "server.test", "--server", "--host", "127.0.0.1") == 0
    for name in ("good", "stolen"):
        assert ca(directory, "issue", name) == 0
    # A certificate that ends in some seconds.
    now = datetime.now(UTC)
    short = Authority(directory, lambda: now - timedelta(days=1) + timedelta(seconds=8))
    short.issue("ending", "node", days=1)
    monkeypatch.setattr("jobsight.server.serve._RENEWAL_TICKS", 1)
    settings = Settings(cluster="lab")
    settings.store.location = str(tmp_path / "store.db")
    settings.server.port = 0
    settings.server.tls_certificate = str(directory / "issued/server.test.pem")
    settings.server.tls_key = str(directory / "issued/server.test.key")
    settings.server.tls_client_ca = str(directory / "ca.pem")
    settings.server.tls_client_crl = str(directory / "crl.pem")
    with BackgroundServer(settings) as server:
        agents = {
            name: HttpTarget(
                server.url,
                server.token_file,
                tls=ClientTls(
                    str(directory / "ca.pem"), *map(str, Authority(directory).files(name))
                ),
            )
            for name in ("good", "stolen", "ending")
        }

        def send(name: str) -> Answer:
            return agents[name].send(wire.encode(batch(1)))

        # Twice, so that the second one resumes the session of the first.
        for _ in range(2):
            for name in agents:
                assert send(name).stored
        assert ca(directory, "revoke", "stolen") == 0
        answer = wait_until(lambda: not (answer := send("stolen")).stored and answer)
        assert "refuse the certificate" in answer.reason or "certificate revoked" in answer.reason
        refused = wait_until(lambda: not (answer := send("ending")).stored and answer)
        assert not refused.refused
        assert re.search("client certificate ended on|certificate expired", refused.reason)
        assert send("good").stored
