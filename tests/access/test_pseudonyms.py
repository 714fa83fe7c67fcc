"""An auditor sees no name and no text of a user, by any route; strangers see nothing of it at all.

The site has the mark in everything that a user can name or write. Its routes are those of the
router: one that the table of addresses does not know fails the test.
"""

import base64
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from jobsight.access.rules import RULES, Rule
from jobsight.config.settings import MailSettings, ServerSettings
from jobsight.findings.finding import Evidence
from jobsight.findings.vocabulary import FigureSet
from jobsight.findings.worker import Measured, update_all
from jobsight.mail.subscriptions import Subscriptions
from jobsight.model import SECOND, ExecutableUse, JobInfo
from jobsight.scheduler.adapters.policy import AssociationInfo, ReservationInfo
from jobsight.scheduler.records import (
    JobDetails,
    JobRecord,
    NodeInfo,
    PartitionInfo,
    StepInfo,
)
from jobsight.server.app import create_app
from jobsight.software.rules import RuleSet
from jobsight.software.worker import update
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.audit import AuditLog
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.findings.shown import Shown, record_shown
from jobsight.store.findings.works import WorkKey, find_or_add_work
from jobsight.store.findings.write import set_reply
from jobsight.store.history import store_script
from jobsight.store.properties import JobKey, set_properties
from jobsight.store.read.filters import Sort
from jobsight.store.read.pseudonyms import shown_as_pseudonyms
from jobsight.store.read.queries import StoredRun
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store
from jobsight.store.write.scheduler import record_jobs
from tests.findings.judge import KIND, ToldJudge, fired
from tests.server.batches import START, batch
from tests.server.conftest import TOKEN
from tests.server.routes import routes

#: In every text of a user.
MARK = "zebra"
USER, ACCOUNT, NAME = f"{MARK}user", f"{MARK}account", f"{MARK}name"
#: Everybody sees it, as with `sinfo`; an auditor does not.
ADMIN = "giraffe"
SCRIPT_KEY = bytes(range(16))
DAY = 86400 * SECOND
PROGRAMS = [
    ExecutableUse(path=path, executions=3, cpu_time=SECOND, own_namespace=own, path_known=known)
    for path, own, known in (
        (f"/home/{USER}/{MARK}program".encode(), False, True),
        (f"/usr/bin/{MARK}image".encode(), True, True),
        (f"{MARK}bare".encode(), False, False),
        (f"/home/{USER}/miniconda3/envs/{MARK}env/bin/{MARK}tool".encode(), False, True),
        (f"/apps/users/{USER}/x".encode(), False, True),
        (b"/usr/bin/python3", False, True),
    )
]
#: Addresses of each path of the router that has parameters; KIND is a kind of finding.
PARAMETERS = {
    "run": "12",
    "job": "12",
    "reference": "alpha:62",
    "array": "62",
    "key": SCRIPT_KEY.hex(),
    "name": "cpu",
    "kind": KIND,
    "metric": "cpu",
    "cluster": "alpha",
    "node": "n1",
    "user": USER,
    "account": ACCOUNT,
    "gpu": "A100",
    "topic": "figures",
    "file": "style.css",
}
NAMED = {
    "/clusters/{name}": "/clusters/alpha",
    "/clusters/{name}/nodes": "/clusters/alpha/nodes",
    "/users/{name:path}": f"/users/{USER}",
    "/accounts/{name:path}": f"/accounts/{ACCOUNT}",
    "/software/{name:path}": "/software/software of users",
}
COLUMNS = "run,state,name,user,account,cluster,partition,start,elapsed,cpu,memory"
#: Further addresses of what a route shows.
MORE = (
    f"/jobs?columns={COLUMNS}",
    f"/jobs?columns={COLUMNS}&sort=name&group=0",
    "/jobs?state=PENDING",
    "/jobs?open=alpha:62",
    f"/jobs?user={USER}",
    f"/jobs?name={NAME}",
    f"/jobs?search={MARK}",
    f"/jobs.csv?search={MARK}",
    "/jobs/90",
    "/jobs/62_1",
    f"/software?search={MARK}",
    f"/software/{MARK}tool",
    f"/programs?path=/home/{USER}/{MARK}program",
    "/programs?path=/usr/bin/python3",
    "/compare?run=12&run=62_1",
    "/api/v1/jobs?state=PENDING",
    "/api/v1/jobs?sort=user",
    f"/api/v1/jobs?account={ACCOUNT}",
    f"/api/v1/jobs?software={MARK}tool",
    "/api/v1/usage?by=user,account",
    "/api/v1/usage?by=software,version,local_version",
    f"/api/v1/usage?by=software&software={MARK}tool",
    "/api/v1/findings/summary?by=user,account",
    f"/api/v1/findings/summary?user={USER}",
    f"/api/v1/findings?user={USER}",
    "/api/v1/findings?all=true",
    "/api/v1/jobs/90",
    "/api/v1/jobs/62_1",
    "/api/v1/clusters/jobs/one?job_id=12&cluster_name=alpha",
    "/api/v1/clusters/jobs/user_props/get?job_id=12&cluster_name=alpha",
    "/api/v1/clusters/nodes/one?node_name=n1",
    "/api/v1/clusters/nodes/one/gpu?node_name=n1",
)
#: Text in them is compressed, or they are pictures.
BINARY = ("application/pdf", "image/png")
ROLES = ("auditor", "user", "coordinator", "mentor", "staff")


class WorkJudge(ToldJudge):
    """Finds something with names in each run, all of one script."""

    def __init__(self, store: Store) -> None:
        text = f"{MARK} said {MARK}program"
        super().__init__(
            lambda figures: [
                fired(
                    text=text,
                    change=f"#SBATCH --job-name={NAME}",
                    figures={"programs.top": f"{MARK}program"},
                    evidence=Evidence(programs=(f"/home/{USER}/{MARK}program",)),
                )
            ]
        )
        self._store = store

    def measure(self, run: StoredRun, now: int) -> Measured:
        figures: FigureSet = super().measure(run, now).figures
        work = WorkKey("alpha", USER, ACCOUNT, "script", SCRIPT_KEY, NAME)
        return Measured(figures, find_or_add_work(self._store.database, work))


def fill(store: Store) -> None:
    own = {"user": USER, "account": ACCOUNT, "name": NAME}
    for number, more in ((12, {}), (63, {"array_job_id": 62, "array_task_id": 1})):
        sent = batch(number, command=f"/home/{USER}/{MARK}command --{MARK}", **own, **more)
        sent.parts[0].executables = PROGRAMS
        assert store.write(sent)
    details = JobDetails(
        accounted=True,
        comment=f"{MARK}comment",
        submit_line=f"sbatch {MARK}line",
        working_directory=f"/home/{USER}",
        wckey=f"{MARK}key",
        group=f"{MARK}group",
        container=f"{MARK}container",
        dependency=f"afterok:{MARK}",
        standard_output=f"/home/{USER}/out",
        cancelled_by=USER,
        steps=[StepInfo(step="0", name=f"{MARK}step", state="COMPLETED")],
        raw={"odd": MARK},
    )
    info = JobInfo(
        cluster="alpha", job_id=12, source="sacct", start=START, submit=START - SECOND, **own
    )
    record_jobs(store.database, [info], [details])
    store_script(store.database, "alpha", [12], SCRIPT_KEY, f"#!/bin/sh\n{MARK}text\n")
    update_all(store, WorkJudge(store))
    run = store.runs(limit=1)[0]
    record_shown(store.database, {Shown(run.id, KIND, USER, "page"): 1}, START)
    set_reply(store.database, run.id, KIND, "not helpful", USER, START)
    set_properties(store.database, JobKey("alpha", 12, USER), {f"{MARK}property": MARK})
    update(store, RuleSet.load([], ready=True))
    snapshot = Snapshot(store.database, "alpha")
    node = NodeInfo(
        cluster="alpha",
        name="n1",
        state="IDLE",
        partitions=("long",),
        gres={"gpu:a100": 1},
        reason="fan",
        reason_user=ADMIN,
        owner=ADMIN,
        comment=ADMIN,
        extra=ADMIN,
    )
    snapshot.replace("node", [("n1", node)])
    partition = PartitionInfo(cluster="alpha", name="long", accounts_allowed=(ADMIN,))
    snapshot.replace("partition", [("long", partition)])
    reserved = ReservationInfo(
        cluster="alpha", name="day", start=START, users=(ADMIN,), accounts=(ADMIN,)
    )
    snapshot.replace("reservation", [("day", reserved)])
    members = [
        AssociationInfo(cluster="alpha", account=ACCOUNT, parent=f"{MARK}parent", share=0.5),
        AssociationInfo(cluster="alpha", account=ACCOUNT, user=USER, fair_share=0.25),
    ]
    snapshot.replace("association", [(one.name, one) for one in members])
    waiting = msgspec.structs.replace(info, job_id=90, start=None, state="PENDING")
    pending = JobRecord(info=waiting, reason="Priority", submit_line=MARK, comment=MARK)
    snapshot.replace("pending", [("90", pending)])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("pseudonyms") / "store.db") as opened:
        fill(opened)
        accounts = UserAccounts(opened.database)
        for role in ROLES:
            of = ["biology"] if role in ("mentor", "coordinator") else ()
            accounts.add(f"a-{role}", role, accounts=of)
        yield opened


@pytest.fixture(scope="module")
def app(store: Store) -> Any:
    settings = ServerSettings(petricore_routes=True, clockwork_routes=True)
    mails = Subscriptions(MailSettings(url="http://127.0.0.1:8080"), b"key" * 11)
    clock = lambda: START + DAY  # noqa: E731
    return create_app(store, TOKEN, delay=0, settings=settings, subscriptions=mails, clock=clock)


@pytest.fixture(scope="module")
def clients(store: Store, app: Any) -> dict[str, TestClient]:
    tokens = UserTokens(store.database)
    made = {}
    for role in ROLES:
        client = TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)
        token = tokens.add(f"a-{role}", "read", 3600 * SECOND)[1]
        client.headers["Authorization"] = f"Bearer {token}"
        made[role] = client
    return made


def addresses(app: Any) -> list[str]:
    found = set(MORE)
    for path, method in routes(app):
        if method == "GET":
            found.add(NAMED.get(path) or re.sub(r"\{(\w+)[^}]*\}", _parameter, path))
    return sorted(found)


def _parameter(match: re.Match[str]) -> str:
    return PARAMETERS[match[1]]


def text_of(client: TestClient, address: str) -> str:
    """What a route answers, without what the request said itself."""
    answer = client.get(address)
    assert answer.status_code < 500, (address, answer.text)
    kind = answer.headers.get("content-type", "")
    if kind.startswith(BINARY):
        return ""
    text = answer.text
    # A cursor has the place in a list, which must not be that of a name.
    for part in re.findall(r"[A-Za-z0-9_-]{8,}", text):
        whole = part[: len(part) - len(part) % 4]
        text += base64.urlsafe_b64decode(whole).decode("latin-1")
    for given in re.findall(r"[=/]([^=/&?]+)", address):
        if MARK in given or given == SCRIPT_KEY.hex():
            text = text.replace(given, "")
    return text.replace(address, "")


def leaks(client: TestClient, asked: list[str], secrets: tuple[str, ...]) -> list[tuple[str, str]]:
    """The addresses that answer with a secret, and what stands around it."""
    found = []
    for address in asked:
        text = text_of(client, address)
        for secret in secrets:
            place = text.find(secret)
            if place >= 0:
                found.append((address, text[max(place - 150, 0) : place + 50]))
    return found


def test_the_mark_is_in_everything(clients: dict[str, TestClient], app: Any) -> None:
    """Staff sees all of it: otherwise the tests below prove nothing."""
    seen = "".join(
        answer.text for each in addresses(app) if (answer := clients["staff"].get(each)).is_success
    )
    for part in (
        *("user", "account", "name", "program", "image", "bare", "env", "tool", "command"),
        *("line", "step", "text", "property", "parent"),
    ):
        assert f"{MARK}{part}" in seen, part
    assert f"{MARK} said" in seen
    assert SCRIPT_KEY.hex() in seen
    assert ADMIN in seen


def test_an_auditor_sees_no_name_by_any_route(clients: dict[str, TestClient], app: Any) -> None:
    client = clients["auditor"]
    assert leaks(client, addresses(app), (MARK, ADMIN, SCRIPT_KEY.hex())) == []
    assert sum(client.get(address).is_success for address in addresses(app)) > 60


@pytest.mark.parametrize("role", ["user", "coordinator", "mentor"])
def test_others_see_nothing_of_it(clients: dict[str, TestClient], app: Any, role: str) -> None:
    assert leaks(clients[role], addresses(app), (MARK, SCRIPT_KEY.hex())) == []


def test_the_same_pseudonym_is_on_pages_and_in_replies_and_files(
    clients: dict[str, TestClient],
) -> None:
    client = clients["auditor"]
    row = client.get("/api/v1/jobs/12").json()
    assert re.fullmatch("user-[0-9a-f]{8}", row["user"])
    assert re.fullmatch("account-[0-9a-f]{8}", row["account"])
    assert re.fullmatch("job-[0-9a-f]{8}", row["name"])
    for address in ("/jobs", "/jobs/12", "/jobs.csv", "/jobs.json", "/api/v1/usage?by=user"):
        assert row["user"] in client.get(address).text, address
    paths = {each["path"] for each in client.get("/api/v1/jobs/12/programs").json()["programs"]}
    assert "/usr/bin/python3" in paths
    assert sum(bool(re.fullmatch("program-[0-9a-f]{8}", path)) for path in paths) == 5


def test_a_list_by_names_is_in_the_order_of_the_start(store: Store) -> None:
    with shown_as_pseudonyms(b"key"):
        page, _ = store.page_of_runs(limit=1, sort=Sort("name"))
        assert page.next is not None
        assert page.next.value is None
    page, _ = store.page_of_runs(limit=1, sort=Sort("name"))
    assert page.next is not None
    assert page.next.value == NAME


def test_a_route_about_names_is_not_for_auditors() -> None:
    named = {path for path, rule in RULES.items() if rule is Rule.NAMED}
    for path in ("/scripts/{key}", "/api/v1/users", "/jobs/{run}/findings/{kind}"):
        assert path in named


# The log had the pseudonym as its user, so that nobody was told.
def test_a_view_of_an_auditor_is_shown_to_the_user(
    clients: dict[str, TestClient], store: Store, app: Any
) -> None:
    clients["auditor"].get("/jobs/12")
    UserAccounts(store.database).add(USER, "user")
    token = UserTokens(store.database).add(USER, "read", 3600 * SECOND)[1]
    client = TestClient(app, base_url="http://127.0.0.1:8080")
    page = client.get("/settings", headers={"Authorization": f"Bearer {token}"}).text
    assert "a-auditor" in page
    assert "user-" not in {view.user for view in AuditLog(store.database).latest(100)}
