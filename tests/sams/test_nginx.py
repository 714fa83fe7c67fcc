"""SAMS 1.10's own output and ours through a real nginx: passwords and client certificates."""

import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsight.agent.outputs.http import HttpOptions, HttpOutput
from jobsight.agent.outputs.worker import RecordRefused
from jobsight.cli.compat.collector import view_of
from jobsight.model import RunReference
from jobsight.store.store import Store
from tests.peers.aggregator import Aggregator
from tests.sams.documents import EXECS, START, Site, booked, document, encode
from tests.sams.front import Front, running
from tests.sams.test_aggregator import aggregate

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def passwords(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with running(tmp_path_factory.mktemp("passwords")) as front:
        yield front


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with running(tmp_path_factory.mktemp("certificates"), certificates=True) as front:
        yield front


def post(
    front: Front, path: str, body: bytes, password: str | None = "secret", paper: str | None = None
) -> int:
    context = ssl.create_default_context(cafile=str(front.authority))
    if paper:
        context.load_cert_chain(*map(str, front.paper(paper)))
    headers = {"Content-Type": "application/json"}
    if password:
        headers["Authorization"] = "Basic " + b64encode(f"sams:{password}".encode()).decode()
    request = urllib.request.Request(
        f"https://127.0.0.1:{front.port}{path}", data=body, headers=headers
    )
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as reply:
            assert reply.read() == b"OK"
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


#: SAMS's output module as its collector uses it: documents in, one POST at the end.
_SAMS = """
import json, sys
import sams.core
from sams.output.Http import Output
options = {"options": {"jobid": int(sys.argv[2]), "node": sys.argv[3]}}
config = sams.core.Config(sys.argv[1], options)
output = Output("sams.output.Http", config)
for name, value in json.load(open(sys.argv[4])).items():
    output.store({name: value})
print(output.write())
"""


def sams_posts(sams: Path, front: Front, folder: Path, made: dict[str, Any], section: str) -> bool:
    core = made["sams.sampler.Core"]
    (folder / "document.json").write_bytes(encode(made))
    (folder / "collector.yaml").write_text(
        "sams.output.Http:\n"
        f"  uri: 'https://127.0.0.1:{front.port}/%(jobid)d/%(jobid)s.%(node)s.json'\n"
        f"  jobid_hash_size: 1000\n{section}"
    )
    arguments = [folder / "collector.yaml", str(core["jobid"]), core["node"]]
    done = subprocess.run(
        [sams / "python", "-c", _SAMS, *arguments, folder / "document.json"],
        env=os.environ | {"REQUESTS_CA_BUNDLE": str(front.authority)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "True"


def test_sams_posts_with_a_password_and_both_aggregators_book_the_same(
    passwords: Front, sams: Path, tmp_path: Path
) -> None:
    made = document(4_321_000, "sn1")
    basic = "  username: sams\n  password: secret\n"
    assert sams_posts(sams, passwords, tmp_path, made, basic)
    assert not sams_posts(sams, passwords, tmp_path, made, basic.replace("secret", "wrong"))
    file = passwords.incoming / "4321" / "4321000.sn1.json"
    assert json.loads(file.read_text()) == made

    site = Site(tmp_path)
    site.put(json.loads(file.read_text()))
    (tmp_path / "theirs").mkdir()
    theirs = Aggregator(sams, tmp_path / "theirs")
    (theirs.data / file.name).write_bytes(file.read_bytes())
    theirs.run()
    with Store.open(site.store) as store:
        aggregate(site, store)
        rows = booked(store)[4_321_000, START]
        run = store.find(RunReference(job_id=4_321_000))
    assert {path: use for (_, path), use in rows.items()} == theirs.booked(4_321_000)
    assert (run.cpu_time or 0) / 1e9 == pytest.approx(sum(theirs.totals(4_321_000)), abs=1e-8)
    assert (run.info.user, run.info.account) == theirs.owner(4_321_000)


def test_sams_posts_with_a_client_certificate(
    certificates: Front, sams: Path, tmp_path: Path
) -> None:
    paper, key = certificates.paper("node")
    section = f"  username: sams\n  password: secret\n  cert_file: {paper}\n  key_file: {key}\n"
    assert sams_posts(sams, certificates, tmp_path, document(55), section)
    assert "55.n1.json" in certificates.names()


def our_options(front: Front, spool: Path, paper: str | None) -> HttpOptions:
    certificate, key = map(str, front.paper(paper)) if paper else (None, None)
    return HttpOptions(
        uri=f"https://127.0.0.1:{front.port}/%(jobid)s/%(jobid)s.%(node)s.json",
        username="sams",
        password="secret",
        cert_file=certificate,
        key_file=key,
        ca_file=str(front.authority),
        spool=str(spool),
    )


def our_documents(job_id: int) -> dict[str, Any]:
    software = {"execs": EXECS, "start_time": START, "end_time": START + 60}
    core = {"jobid": job_id, "node": "on1"}
    return {"sams.sampler.Core": core, "sams.sampler.Software": software}


def test_our_collector_posts_with_both(certificates: Front, tmp_path: Path) -> None:
    view = view_of(77, "on1")
    HttpOutput(our_options(certificates, tmp_path / "spool", "node"), view).write(
        view, our_documents(77)
    )
    assert "77.on1.json" in certificates.names()


# Fault 16: nginx answers 400 where the client certificate is missing.
def test_a_record_waits_while_the_client_certificate_is_missing(
    certificates: Front, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    for job_id, paper in ((78, None), (79, "stranger")):
        view = view_of(job_id, "on1")
        with pytest.raises(ConnectionError, match="answered 400"):
            HttpOutput(our_options(certificates, spool, paper), view).write(
                view, our_documents(job_id)
            )
    assert not (spool / "refused").exists()
    view = view_of(80, "on1")
    HttpOutput(our_options(certificates, spool, "node"), view).write(view, our_documents(80))
    assert {"78.on1.json", "79.on1.json", "80.on1.json"} <= set(certificates.names())


def test_what_our_receiver_refuses_is_final_through_nginx(passwords: Front, tmp_path: Path) -> None:
    view = view_of(81, "on1")
    output = HttpOutput(our_options(passwords, tmp_path / "spool", None), view)
    with pytest.raises(RecordRefused):
        # The record of another job.
        output.write(view, our_documents(82))


def test_nobody_else_gets_in(passwords: Front, certificates: Front) -> None:
    body = encode(document(66))
    assert post(passwords, "/66/66.n1.json", body, password=None) == 401
    assert post(passwords, "/66/66.n1.json", body, password="guess") == 401
    assert post(certificates, "/66/66.n1.json", body) == 400
    assert post(certificates, "/66/66.n1.json", body, paper="stranger") == 400
    assert post(certificates, "/66/66.n1.json", body, password=None, paper="node") == 401
    assert "66.n1.json" not in passwords.names() + certificates.names()
    assert post(certificates, "/66/66.n1.json", body, paper="node") == 200


def test_what_is_refused_is_refused_through_nginx_too(passwords: Front) -> None:
    body = encode(document(67))
    before = passwords.names()
    assert post(passwords, "/67/.67.n1.json", body) == 400
    assert post(passwords, "/67/%2e%2e", body) in (400, 404)
    assert post(passwords, "/67/a%0Ab", body) == 400
    assert post(passwords, "/67/..%2F..%2Fetc", body) in (400, 404)
    assert post(passwords, "/67/67.n1.json", body[:-5]) == 400
    assert post(passwords, "/99999/67.n1.json", body) == 400
    assert post(passwords, "/67/67.n1.json", b" " * (65 * 2**20)) == 413
    assert passwords.names() == before
