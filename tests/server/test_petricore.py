"""petricore's routes, which exist only with the setting."""

import json
from array import array
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from jobsight.access.viewer import Role, Viewer
from jobsight.config.settings import ServerSettings
from jobsight.model import SECOND, Batch, RunReference
from jobsight.reports.pending import find_report
from jobsight.reports.petricore import checks, read_usage
from jobsight.reports.petricore_plots import METRICS
from jobsight.server.app import create_app
from jobsight.server.auth import control
from jobsight.store.read.visibility import Visibility, VisibleUser
from jobsight.store.store import Store
from tests.server.batches import batch
from tests.server.conftest import TOKEN

JOB_ROUTES = (
    "/mail/12", "/plot/12/cpu_percent", "/pie/12/", "/pie/12", "/pdf/12", "/api/v1/jobs/12/usage"
)  # fmt: skip
ROUTES = (*JOB_ROUTES, "/api/v1/users/alice")
HOSTILE = "<b>x</b>\nWARNING=false\r\n\x1b[31m$\\frac{" + "y" * 4096


def measured(job_id: int = 12, *, cores: tuple[int, ...] = (5, 5), **info: object) -> Batch:
    """The job of the other tests with the metrics that petricore's answers need."""
    made = batch(job_id, **info)
    columns = made.parts[0].series.columns
    seconds = range(len(columns["cpu.time"]))
    for number, spent in enumerate(cores):
        columns[f"cores.{number}.time"] = array("q", [s * spent * SECOND // 10 for s in seconds])
    columns["cpu.user"] = array("q", [s * SECOND * 9 // 10 for s in seconds])
    columns["cpu.system"] = array("q", [s * SECOND // 10 for s in seconds])
    columns["io.read_bytes"] = array("q", [s * 2**20 for s in seconds])
    columns["io.written_bytes"] = array("q", [s * 2**21 for s in seconds])
    columns["tasks.threads"] = array("q", [2 for _ in seconds])
    columns["files.open"] = array("q", [20 for _ in seconds])
    columns["files.scratch"] = array("q", [0 for _ in seconds])
    return made


@pytest.fixture
def usage_file(tmp_path: Path) -> Path:
    return tmp_path / "usage.json"


@pytest.fixture
def petricore(store: Store, usage_file: Path) -> TestClient:
    usage_file.write_text("{}")
    store.write(measured(tres={"billing": 4, "cpu": 2, "mem": 2**30, "node": 1}, uid=1001))
    settings = ServerSettings(petricore_routes=True, petricore_usage=str(usage_file))
    app = create_app(store, TOKEN, delay=0, settings=settings)
    client = TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    return client


@pytest.mark.parametrize("route", ROUTES)
def test_without_the_setting_there_are_no_such_routes(client: TestClient, route: str) -> None:
    reply = client.get(route)
    if route.startswith("/api/v1/users/"):
        # The API has a route of its own there, with another reply.
        assert "file_usages" not in reply.json()
    else:
        assert reply.status_code == 404


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_asks_who_may_see_it(
    petricore: TestClient, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    assert petricore.get(route).status_code == 200
    bob = Viewer(name="bob", role=Role.USER, visibility=Visibility(users=(VisibleUser("bob"),)))
    monkeypatch.setattr(control, "SERVER_TOKEN", bob)
    assert petricore.get(route).status_code == 404
    petricore.headers.pop("Authorization")
    assert petricore.get(route).status_code == 401


def test_the_usage_of_a_job(petricore: TestClient) -> None:
    assert petricore.get("/api/v1/jobs/12/usage").json() == {
        "jobid": 12,
        "sponsor": "physics",
        "username": "alice",
        "runtime": "00:00:10",
        "uses_scratch": "False",
        "alloc_tres": {"billing": 4, "alloc_cpu": 2, "alloc_mem": "1024M", "alloc_nodes": 1},
        "threads": {"all programs": 2},
        "cpu": {
            "available": {"amount": 2, "unit": "cores"},
            "used": {"amount": 2, "unit": "cores"},
            "time_core": [
                {"core": "n1_core_0", "time": 5.0, "unit": "s", "percent_of_total": 50.0},
                {"core": "n1_core_1", "time": 5.0, "unit": "s", "percent_of_total": 50.0},
            ],
            "time_total": {"time": 10.0, "unit": "s"},
            "avg_usage_job": {"usage": 100.0, "lowest_expected_usage": 160, "unit": "%"},
            "max_usage_job": {"usage": 100.0, "unit": "%"},
        },
        "ram": {
            "used": {"amount": 10.0, "unit": "MB", "usage": 0.01},
            "available": {"amount": 1024.0, "unit": "MB"},
        },
        "gpu": {"alloc_gpu": {}, "metrics": {}},
        "io": {
            "opened_files": 20,
            "read": {"amount": None, "unit": "MB", "count": None},
            "write": {"amount": None, "unit": "MB", "count": None},
        },
    }


def test_the_mail_of_a_job(petricore: TestClient) -> None:
    reply = petricore.get("/mail/12")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    lines = reply.text.splitlines()
    assert lines[-1] == "WARNING=true"
    assert [line for line in lines if line in ("General", "I/O", "Usage", "Threads")] == [
        "General", "I/O", "Usage", "Threads"
    ]  # fmt: skip
    assert "Sponsor: physics" in lines
    assert "TRES: billing=4,cpu=2,mem=1073741824,node=1" in lines
    assert "Scratch: not measured." in lines
    # The page of CPUs of which some were used; cpu-not-used is about none.
    help_page = "http://127.0.0.1:8080/findings/cpu-cores-idle"
    assert (
        f"Warning: The CPUs were used to 50 %; at least 80 % is expected. See {help_page}"
    ) in lines
    assert petricore.get("/findings/cpu-cores-idle").status_code == 200
    assert "Plots: http://127.0.0.1:8080/pdf/12" in lines


def test_a_job_without_fault_has_no_warning(petricore: TestClient, store: Store) -> None:
    assert store.write(measured(15, cpus=1, cores=(10,), memory=11 * 2**20))
    assert petricore.get("/mail/15").text.splitlines()[-1] == "WARNING=false"


def test_thresholds(store: Store) -> None:
    store.write(measured(cores=(9, 1)))
    usage = read_usage(store, find_report(store, RunReference.parse("12")))
    names = ("scratch", "files", "cpu", "even", "memory", "cores", "threads")

    def warned() -> set[str]:
        return {name for name, check in zip(names, checks(usage), strict=True) if check.warns}

    assert warned() == {"cpu", "memory", "cores"}
    usage.mean_percent, usage.report.memory.share = 160.0, 0.9
    assert warned() == {"cores"}
    usage.cores = [core._replace(seconds=5.0) for core in usage.cores]
    usage.highest_percent, usage.threads = 214.0, 5
    assert warned() == {"even", "threads"}
    usage.highest_percent, usage.threads, usage.uses_scratch = 213.0, 4, False
    usage.report.io.storage_read_bytes, usage.opened_files = 2**30, 1000
    assert warned() == {"scratch", "files"}
    usage.uses_scratch, usage.opened_files = True, 999
    assert warned() == set()
    usage.cores, usage.mean_percent, usage.threads = [], None, None
    assert [check.warns for check in checks(usage)] == [
        False, False, None, None, False, None, None
    ]  # fmt: skip


@pytest.mark.parametrize("metric", [*METRICS, "jobs_rss"])
def test_plots(petricore: TestClient, metric: str) -> None:
    reply = petricore.get(f"/plot/12/{metric}")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "image/png"
    assert reply.content.startswith(b"\x89PNG")


def test_the_pie_and_the_pdf(petricore: TestClient) -> None:
    assert petricore.get("/pie/12/").content.startswith(b"\x89PNG")
    reply = petricore.get("/pdf/12")
    assert reply.headers["content-type"] == "application/pdf"
    assert reply.content.startswith(b"%PDF-")


@pytest.mark.parametrize("route", JOB_ROUTES)
def test_unknown_and_running_jobs(petricore: TestClient, store: Store, route: str) -> None:
    running = measured(16, state="RUNNING", end=None, exit_code=None)
    running.parts[0].final = False
    store.write(running)
    for job, sentence in (("99", "no run of job 99"), ("16", "job 16 is not finished")):
        reply = petricore.get(route.replace("12", job))
        assert reply.status_code == 404
        assert sentence[1:] in reply.text
        if route.startswith("/api/"):
            assert reply.json()["error"].startswith(sentence)
    assert petricore.get(route.replace("12", "x")).status_code == 400


def test_what_was_not_measured_has_no_plot(petricore: TestClient, store: Store) -> None:
    store.write(batch(17))
    assert petricore.get("/plot/17/thread_count").status_code == 404
    assert petricore.get("/plot/12/passwd").status_code == 404
    assert "expected one of rss, cpu_percent" in petricore.get("/plot/12/passwd").text


def test_hostile_names_are_text(petricore: TestClient, store: Store) -> None:
    store.write(measured(18, name=HOSTILE, user="a<b>", account="$x\nWARNING=false"))
    mail = petricore.get("/mail/18").text
    assert [line for line in mail.splitlines() if line.startswith("WARNING")] == ["WARNING=true"]
    assert "\x1b" not in mail
    assert petricore.get("/api/v1/jobs/18/usage").json()["username"] == "a<b>"
    for route in ("/plot/18/cpu_percent", "/pie/18/", "/pdf/18"):
        assert petricore.get(route).status_code == 200
    page = petricore.get("/plot/18/<script>").text
    assert "<script>" not in page


def test_values_that_are_no_numbers_are_not_known(petricore: TestClient, store: Store) -> None:
    odd = measured(19)
    columns = odd.parts[0].series.columns
    for name in ("files.open", "tasks.threads", "cores.0.time", "cpu.time", "memory.used"):
        columns[name] = array("d", [float("nan"), float("inf")] * 5 + [float("nan")])
    assert store.write(odd)
    usage = petricore.get("/api/v1/jobs/19/usage").json()
    assert usage["io"]["opened_files"] is None
    assert usage["cpu"]["max_usage_job"]["usage"] is None
    assert [core["core"] for core in usage["cpu"]["time_core"]] == ["n1_core_1"]
    assert "Threads: not measured." in petricore.get("/mail/19").text
    for metric in METRICS:
        assert petricore.get(f"/plot/19/{metric}").status_code == 200


def test_a_user(petricore: TestClient, usage_file: Path, store: Store) -> None:
    assert petricore.get("/api/v1/users/alice").json() == {
        "user": {"username": "alice", "uid": 1001},
        "jobs": [12],
        "projects": {},
        "project_usages": {"unit": "B"},
        "file_usages": {},
    }
    alice = {
        "projects": {"def-prof": "/project/def-prof"},
        "project_usages": {"def-prof": 123456},
        "file_usages": {"home": {"file_count": 250000}, "tape": {"file_count": 5, "limit": 10}},
    }
    usage_file.write_text(json.dumps({"alice": alice, "carol": {}}))
    reply = petricore.get("/api/v1/users/alice").json()
    assert reply["projects"] == {"def-prof": "/project/def-prof"}
    assert reply["project_usages"] == {"def-prof": 123456, "unit": "B"}
    assert reply["file_usages"] == {
        "home": {"file_count": 250000, "percentage": 0.5},
        "tape": {"file_count": 5, "percentage": 0.5},
    }
    assert petricore.get("/api/v1/users/carol").json()["jobs"] == []
    assert petricore.get("/api/v1/users/root").json()["user"] == {"username": "root", "uid": 0}
    reply = petricore.get("/api/v1/users/nobody-knows-them")
    assert reply.status_code == 404
    assert reply.json() == {"error": "no user 'nobody-knows-them' is known"}


@pytest.mark.parametrize("text", ["{", "[]", '{"alice": {"file_usages": {"home": 3}}}', "\xff"])
def test_a_wrong_usage_file_is_named(petricore: TestClient, usage_file: Path, text: str) -> None:
    usage_file.write_bytes(text.encode("latin-1"))
    reply = petricore.get("/api/v1/users/alice")
    assert reply.status_code == 500
    assert reply.json()["error"].startswith("server.petricore_usage: ")
    usage_file.write_text("{}")
    assert petricore.get("/api/v1/users/alice").status_code == 200
