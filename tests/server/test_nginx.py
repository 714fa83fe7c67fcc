"""Batches through a real nginx with the configuration that we ship."""

import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobsight.config.settings import Settings
from jobsight.server.serve import BackgroundServer
from jobsight.transport.delivery import Answer, HttpTarget
from jobsight.transport.tls import ClientTls
from jobsight.transport.wire import encode
from tests.ports import free_port
from tests.sams.front import PROJECT, adapted, nginx_for, wait_for
from tests.server.batches import batch
from tests.server.certificates import Papers
from tests.waiting import wait_until

pytestmark = pytest.mark.server

SHIPPED = PROJECT / "deploy" / "nginx" / "jobsight.conf"


class Site:
    """The server, and nginx before it."""

    def __init__(self, server: BackgroundServer, papers: Papers, port: int, folder: Path) -> None:
        self.folder = folder
        self.server = server
        self.papers = papers
        self.port = port

    def target(self, paper: str | None, timeout: float = 20) -> HttpTarget:
        pair = self.papers.pair(paper) if paper else ()
        tls = ClientTls(self.papers.authority, *pair)
        url = f"https://127.0.0.1:{self.port}"
        return HttpTarget(url, self.server.token_file, tls=tls, timeout=timeout)

    def get(self, path: str, **headers: str) -> tuple[int, bytes, str]:
        context = ssl.create_default_context(cafile=self.papers.authority)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.getheader("set-cookie") or ""
        finally:
            connection.close()


@contextmanager
def running(folder: Path, settings: Settings) -> Iterator[Site]:
    papers = Papers(folder)
    settings.store.location = str(folder / "data" / "store.db")
    settings.server.port = 0
    settings.server.trusted_proxies = ["127.0.0.1"]
    front = free_port()
    with BackgroundServer(settings) as server:
        changes = {
            "    listen       [::]:443 ssl;\n": "",
            "*:443": f"127.0.0.1:{front}",
            "/var/log/nginx/": f"{folder}/",
            "/etc/nginx/SERVER.cert.pem": papers.pair("server")[0],
            "/etc/nginx/SERVER.key.pem": papers.pair("server")[1],
            "/etc/nginx/NODES.ca.pem": papers.authority,
            "http://127.0.0.1:8080": server.url,
        }
        command = nginx_for(folder, adapted(SHIPPED, changes))
        with (folder / "programs.log").open("ab") as log:
            nginx = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(front, folder)
            yield Site(server, papers, front, folder)
        finally:
            nginx.terminate()
            nginx.wait(60)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("site"), Settings()) as made:
        yield made


def test_a_node_with_a_certificate_delivers(site: Site) -> None:
    target = site.target("node")
    data = encode(batch(21))
    assert target.send(data) == target.send(data) == Answer(stored=True)


@pytest.mark.parametrize("paper", [None, "stranger"])
def test_without_a_right_certificate_batches_are_kept(site: Site, paper: str | None) -> None:
    answer = site.target(paper).send(encode(batch(22)))
    assert (answer.stored, answer.refused) == (False, False)
    assert "403" in answer.reason
    assert "batches need a client certificate of an authority" in answer.reason


def test_the_server_s_own_refusals_come_through(site: Site) -> None:
    answer = site.target("node").send(b"nonsense")
    assert answer.refused
    assert "not a jobsight batch" in answer.reason


def test_pages_and_questions_need_no_certificate(site: Site) -> None:
    assert site.target("node").send(encode(batch(23))).stored
    bearer = {"Authorization": f"Bearer {site.server.token}"}
    status, body, _ = site.get("/api/v1/jobs/23", **bearer)
    assert (status, json.loads(body)["display_id"]) == (200, "23")
    assert site.get("/api/v1/jobs/23")[0] == 401
    # Through the trusted proxy the server knows that the browser speaks TLS.
    path = site.server.sign_in_url().removeprefix(site.server.url)
    status, _, cookie = site.get(path)
    assert status == 303
    assert "; Secure" in cookie


def test_the_log_of_nginx_has_no_query(site: Site) -> None:
    code = site.server.sign_in_url().partition("code=")[2]
    assert site.get(f"/jobs/23?code={code}&token={site.server.token}")[0] == 303
    log = site.folder / "jobsight.access.log"
    wait_until(lambda: "/jobs/23 HTTP" in log.read_text())
    assert code not in log.read_text()
    assert site.server.token not in log.read_text()


def test_a_batch_as_large_as_the_server_takes_passes_and_a_larger_one_does_not(site: Site) -> None:
    # Not a batch, but the server's word on that shows that all of it has come through.
    largest = site.target("node", 60).send(b"x" * 16 * 2**20)
    assert "not a jobsight batch" in largest.reason
    larger = site.target("node", 60).send(b"x" * (16 * 2**20 + 1))
    assert larger.refused
    assert "413" in larger.reason


def test_only_a_trusted_proxy_speaks_for_an_address(tmp_path: Path) -> None:
    settings = few_requests()
    settings.store.location = str(tmp_path / "store.db")
    settings.server.port = 0
    for proxies, statuses in ((["127.0.0.1"], [200, 200, 429]), ([], [200, 429, 429])):
        settings.server.trusted_proxies = proxies
        with BackgroundServer(settings) as server:
            host, port = server.url.removeprefix("http://").split(":")
            found = [
                post(http.client.HTTPConnection(host, int(port), timeout=60), server, address)
                for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1")
            ]
        assert found == statuses, proxies


def test_what_a_client_says_of_its_own_address_ends_at_nginx(tmp_path: Path) -> None:
    with running(tmp_path, few_requests()) as site:
        context = ssl.create_default_context(cafile=site.papers.authority)
        context.load_cert_chain(*site.papers.pair("node"))
        found = [
            post(
                http.client.HTTPSConnection("127.0.0.1", site.port, context=context),
                site.server,
                address,
            )
            for address in ("10.0.0.1", "10.0.0.2")
        ]
    assert found == [200, 429]


def few_requests() -> Settings:
    """One request in ten minutes an agent: its address shows in who is refused."""
    settings = Settings()
    settings.server.ingest.requests_per_second = 1 / 600
    return settings


def post(connection: http.client.HTTPConnection, server: BackgroundServer, address: str) -> int:
    headers = {"Authorization": f"Bearer {server.token}", "X-Forwarded-For": address}
    connection.request("POST", "/api/v1/batches", encode(batch(24)), headers)
    status = connection.getresponse().status
    connection.close()
    return status
