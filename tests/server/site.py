"""A small site for the tests of the API: runs of two users, an array, nodes, fair share."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from jobsight.access.viewer import VIEWER_IN_SCOPE, Role, Viewer
from jobsight.config.settings import ServerSettings
from jobsight.findings.worker import update_all
from jobsight.model import SECOND, JobInfo
from jobsight.scheduler.adapters.policy import AssociationInfo, QosInfo, ReservationInfo
from jobsight.scheduler.records import JobRecord, NodeInfo, PartitionInfo
from jobsight.server.app import create_app
from jobsight.software.rules import RuleSet
from jobsight.software.worker import update
from jobsight.store.read.visibility import Visibility, VisibleAccount, VisibleUser
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store
from tests.findings.judge import ToldJudge
from tests.server.batches import START, batch
from tests.server.conftest import TOKEN

HOST = "http://127.0.0.1:8080"

ALICE = Viewer(
    name="alice",
    role=Role.USER,
    visibility=Visibility(users=(VisibleUser("alice"),)),
    may_write=True,
)
BOB = Viewer(
    name="bob", role=Role.USER, visibility=Visibility(users=(VisibleUser("bob"),)), may_write=True
)
#: Coordinates the account since the day after the runs.
LATE_COORDINATOR = Viewer(
    name="carol",
    role=Role.COORDINATOR,
    visibility=Visibility(accounts=(VisibleAccount("physics", since=START + 86400 * SECOND),)),
)
COORDINATOR = Viewer(
    name="dora",
    role=Role.COORDINATOR,
    visibility=Visibility(accounts=(VisibleAccount("physics"),)),
)


def fill(store: Store) -> None:
    """Store the runs, the findings, the rollups and a snapshot of the scheduler."""
    assert store.write(batch(12))
    assert store.write(batch(13, name="[other]", user="bob", state="FAILED", exit_code=7))
    for task in (1, 2):
        assert store.write(batch(61 + task, array_job_id=62, array_task_id=task, name="sweep"))
    # Another user's array.
    assert store.write(batch(71, array_job_id=71, array_task_id=1, user="bob"))
    update_all(store, ToldJudge())
    update(store, RuleSet([]))
    snapshot = Snapshot(store.database, "alpha")
    snapshot.replace("node", [(node.name, node) for node in NODES])
    snapshot.replace("partition", [("long", PartitionInfo(cluster="alpha", name="long"))])
    snapshot.replace(
        "reservation",
        [("day", ReservationInfo(cluster="alpha", name="day", start=START, nodes=("n1",)))],
    )
    snapshot.replace(
        "qos", [("high", QosInfo(cluster="alpha", name="high", time_limit=3600 * SECOND))]
    )
    snapshot.replace("association", [(f"{one.account}/{one.user}", one) for one in ASSOCIATIONS])
    waiting = JobInfo(
        cluster="alpha", job_id=90, source="squeue", name="later", user="alice", state="PENDING"
    )
    snapshot.replace("pending", [("90", JobRecord(info=waiting, reason="Priority"))])


NODES = [
    NodeInfo(
        cluster="alpha",
        name="n1",
        state="MIXED",
        cpus=64,
        cpus_allocated=2,
        memory=2**38,
        partitions=("long",),
        features=("skylake",),
        gres={"gpu:a100": 4},
        gres_used={"gpu:a100": 1},
    ),
    NodeInfo(
        cluster="alpha",
        name="n2",
        state="IDLE",
        state_flags=("DRAIN",),
        reason="broken fan",
        partitions=("long",),
        gres={"gpu:odd": 2},
    ),
    NodeInfo(cluster="alpha", name="n3", state="IDLE", partitions=("short",)),
]
ASSOCIATIONS = [
    AssociationInfo(cluster="alpha", account="physics", parent="root", share=0.5),
    AssociationInfo(cluster="alpha", account="physics", user="alice", fair_share=0.25),
    AssociationInfo(cluster="alpha", account="physics", user="bob", fair_share=0.75),
]


def an_hour_later() -> int:
    return START + 3600 * SECOND


class _AsViewer:
    """Makes a request that of a viewer, behind the access control."""

    def __init__(self, app: ASGIApp, viewer: Viewer) -> None:
        self._app, self._viewer = app, viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[VIEWER_IN_SCOPE] = self._viewer
        await self._app(scope, receive, send)


def client_of(
    store: Store, viewer: Viewer | None = None, settings: ServerSettings | None = None
) -> TestClient:
    """A client with the server's token, whose requests are those of a viewer if one is given."""
    app = create_app(store, TOKEN, delay=0, clock=an_hour_later, settings=settings)
    if viewer is not None:
        app.user_middleware.append(Middleware(_AsViewer, viewer=viewer))
    client = TestClient(app, base_url=HOST, follow_redirects=False)
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    return client
