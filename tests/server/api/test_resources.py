"""The resources of the API next to the list and the report of runs."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from jobsight.access.rules import Rule, rule_of
from jobsight.model import SECOND, RunReference
from jobsight.reports.gpu_models import find_model, gpu_models
from jobsight.store.findings.works import WorkKey
from jobsight.store.store import Store
from tests.server.batches import batch
from tests.server.site import ALICE, BOB, COORDINATOR, LATE_COORDINATOR, client_of, fill
from tests.store.findings.sample import add_findings
from tests.store.node_sample import DAY, write_day

#: The beginning of a day.
MIDNIGHT = 20_700 * DAY


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("site") / "store.db") as store:
        fill(store)
        yield store


@pytest.fixture(scope="module")
def client(site: Store) -> TestClient:
    return client_of(site)


def test_the_parts_of_a_run_are_those_of_its_report(client: TestClient) -> None:
    report = client.get("/api/v1/jobs/12").json()
    for part, name, rows in (
        ("programs", "programs", "executables"),
        ("nodes", "nodes", "node_rows"),
        ("steps", "steps", "steps"),
        ("gpus", "gpus", "gpus"),
        ("findings", "findings", "findings"),
    ):
        reply = client.get(f"/api/v1/jobs/12/{part}").json()
        assert reply["run"] == report["run"]
        assert reply[name] == report[rows]
    assert len(report["executables"]) == 2
    assert len(client.get("/api/v1/jobs/12/findings").json()["findings"]) > 0


def test_the_queries_on_both_engines(location: str) -> None:
    with Store.open(location) as store:
        fill(store)
        client = client_of(store)
        (row,) = client.get("/api/v1/jobs/12/software").json()["software"]
        assert (row["software"], row["executions"], row["cpu_seconds"]) == (None, 3, 9.0)
        assert [one["cluster"] for one in client.get("/api/v1/clusters").json()["clusters"]] == [
            "alpha"
        ]
        for viewer, users in ((BOB, {"bob"}), (COORDINATOR, {"alice", "bob"})):
            own = client_of(store, viewer)
            for path in ("jobs", "findings", "jobs?sort=-user", "scripts"):
                reply = own.get(f"/api/v1/{path}")
                assert reply.status_code == 200
                rows = reply.json()[path.partition("?")[0]]
                assert {row["user"] for row in rows} == (users if path != "scripts" else set())


def test_an_array_is_one_report(client: TestClient) -> None:
    for name in ("62", "alpha:62"):
        report = client.get(f"/api/v1/arrays/{name}").json()
        assert (report["kind"], report["runs"], report["user"]) == ("array", 2, "alice")
        assert report["states"] == {"COMPLETED": 2}
    assert client.get("/api/v1/arrays/99").status_code == 404
    assert client.get("/api/v1/arrays/beta:62").status_code == 404
    assert client.get("/api/v1/arrays/62_1").status_code == 400
    assert client.get("/api/v1/jobs?array=62").json()["total"] == 2


def test_scripts(store: Store) -> None:
    keys = {}
    for job_id, user in ((12, "alice"), (13, "alice"), (14, "bob")):
        store.write(batch(job_id, user=user))
        keys[user] = (user.encode() * 4)[:8]
        same = WorkKey("alpha", user, "physics", "script", keys[user], "train.sh")
        add_findings(store, store.find(RunReference(job_id=job_id)), work=same)
    listed = client_of(store).get("/api/v1/scripts").json()["scripts"]
    assert [(row["user"], row["runs"]) for row in listed] == [("alice", 2), ("bob", 1)]
    own = client_of(store, BOB)
    (row,) = own.get("/api/v1/scripts").json()["scripts"]
    assert (row["user"], row["key"]) == ("bob", keys["bob"].hex())
    report = own.get(f"/api/v1/scripts/{row['key']}").json()
    assert (report["kind"], report["user"], report["runs"]) == ("script", "bob", 1)
    assert own.get(f"/api/v1/scripts/{row['key'][:8]}").json()["subject"] == row["key"]
    hidden = own.get(f"/api/v1/scripts/{keys['alice'].hex()}").json()["detail"]
    unknown = own.get(f"/api/v1/scripts/{'00' * 8}").json()["detail"]
    assert hidden == unknown.replace("00" * 8, keys["alice"].hex())
    # Who coordinates the account since later does not see the earlier runs of the work.
    address = f"/api/v1/scripts/{keys['alice'].hex()}"
    assert client_of(store, COORDINATOR).get(address).status_code == 200
    assert client_of(store, LATE_COORDINATOR).get(address).status_code == 404
    assert own.get("/api/v1/scripts/xyz").status_code == 422


def test_sums_are_those_of_the_viewer(site: Store) -> None:
    own = client_of(site, BOB)
    rows = own.get("/api/v1/usage?by=user").json()["rows"]
    assert [row["user"] for row in rows] == ["bob"]
    assert own.get("/api/v1/usage?by=user&user=alice").status_code == 404
    assert own.get("/api/v1/usage?by=user&account=physics&user=bob").status_code == 200
    found = own.get("/api/v1/findings").json()["findings"]
    assert {row["user"] for row in found} == {"bob"}
    assert {row["finding"]["audience"] for row in found} == {"user"}
    assert own.get("/api/v1/findings?user=alice").json()["findings"] == []
    sums = own.get("/api/v1/findings/summary?by=user").json()["rows"]
    assert {row["user"] for row in sums} == {"bob"}
    assert own.get("/api/v1/findings/summary?user=alice").status_code == 404
    account = client_of(site, COORDINATOR)
    rows = account.get("/api/v1/usage?by=user&account=physics").json()["rows"]
    assert {row["user"] for row in rows} == {"alice", "bob"}
    assert account.get("/api/v1/usage?by=user&account=chemistry").status_code == 404
    late = client_of(site, LATE_COORDINATOR)
    assert late.get("/api/v1/usage?by=user&account=physics").status_code == 404
    assert late.get("/api/v1/findings").json()["findings"] == []


def test_nodes_are_filtered_and_have_pages(client: TestClient) -> None:
    first = client.get("/api/v1/nodes?limit=2&fields=state")
    assert [row["name"] for row in first.json()["nodes"]] == ["n1", "n2"]
    assert first.json()["nodes"][1] == {"cluster": "alpha", "name": "n2", "state": "idle+drain"}
    address = first.headers["Link"].partition(">")[0].strip("<")
    second = client.get(address).json()
    assert ([row["name"] for row in second["nodes"]], second["next"]) == (["n3"], None)
    for query, names in (
        ("cluster=beta", []),
        ("partition=long", ["n1", "n2"]),
        ("state=drain", ["n2"]),
        ("state=idle", ["n2", "n3"]),
        ("feature=skylake", ["n1"]),
        ("gpu=a100", ["n1"]),
        ("gpu=any", ["n1", "n2"]),
    ):
        reply = client.get(f"/api/v1/nodes?{query}").json()
        assert [row["name"] for row in reply["nodes"]] == names
    assert client.get("/api/v1/nodes?cursor=WzFd").status_code == 422
    assert client.get("/api/v1/nodes?cursor=%C3%BC").status_code == 422


def test_one_node(client: TestClient) -> None:
    node = client.get("/api/v1/clusters/alpha/nodes/n1").json()
    assert (node["cpus"], node["memory_bytes"], node["usable"]) == (64, 2**38, True)
    assert node["gpus"] == [{"type": "a100", "model": "A100 40GB", "count": 4, "allocated": 1}]
    drained = client.get("/api/v1/clusters/alpha/nodes/n2").json()
    assert (drained["usable"], drained["reason"]) == (False, "broken fan")
    assert drained["gpus"][0]["model"] is None
    assert client.get("/api/v1/clusters/alpha/nodes/n9").status_code == 404
    assert client.get("/api/v1/clusters/beta/nodes/n1").status_code == 404


def test_clusters_and_what_belongs_to_them(client: TestClient) -> None:
    cluster = client.get("/api/v1/clusters/alpha").json()
    assert cluster["pending"] == 1
    assert cluster["cpus"]["total"] == 64
    assert client.get("/api/v1/clusters/beta").status_code == 404
    (partition,) = client.get("/api/v1/partitions").json()["partitions"]
    assert (partition["cluster"], partition["name"], partition["nodes"]) == ("alpha", "long", 2)
    assert client.get("/api/v1/partitions?cluster=beta").json() == {"partitions": []}
    (reservation,) = client.get("/api/v1/reservations").json()["reservations"]
    assert reservation["start"] == "2026-11-15T04:33:12.000000000Z"
    (qos,) = client.get("/api/v1/qos").json()["qos"]
    assert qos["time_limit_seconds"] == 3600


def test_gpus_have_a_specification_and_a_count(client: TestClient) -> None:
    reply = client.get("/api/v1/gpus").json()
    assert reply["unknown_types"] == {"odd": 2}
    assert len(reply["gpus"]) == len(gpu_models())
    by_type = client.get("/api/v1/gpus/a100").json()
    assert by_type == client.get("/api/v1/gpus/A100 40GB").json()
    assert (by_type["vendor"], by_type["memory_gb"], by_type["count"]) == ("NVIDIA", 40, 4)
    assert by_type["types"] == ["a100"]
    assert client.get("/api/v1/gpus/odd").status_code == 404


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("Tesla V100-SXM2-32GB", "Tesla V100 SXM2 32GB"),
        ("Quadro RTX 8000", "Quadro RTX 8000"),
        ("rtx8000", "Quadro RTX 8000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("AMD Instinct MI250X", "Instinct MI250X"),
    ],
)
def test_names_of_drivers_and_sites_mean_a_model(name: str, model: str) -> None:
    found = find_model(name)
    assert found is not None
    assert found.name == model


def test_models_differ_by_their_words() -> None:
    words = [frozenset(model.words) for model in gpu_models()]
    assert len(set(words)) == len(words)
    assert find_model("gpu") is None


def test_users_and_accounts(client: TestClient) -> None:
    listed = client.get("/api/v1/users").json()
    assert [(row["user"], row["jobs"]) for row in listed["users"]] == [("alice", 3), ("bob", 2)]
    assert client.get("/api/v1/users?since=2026-11-17T00:00:00Z").json()["users"] == []
    user = client.get("/api/v1/users/alice").json()
    assert [row["fair_share"] for row in user["associations"]] == [0.25]
    assert [(row["account"], row["jobs"]) for row in user["usage"]] == [("physics", 3)]
    accounts = client.get("/api/v1/accounts").json()["accounts"]
    assert [(row["account"], row["users"]) for row in accounts] == [("physics", 2)]
    account = client.get("/api/v1/accounts/physics").json()
    assert len(account["associations"]) == 3
    assert {row["user"] for row in account["usage"]} == {"alice", "bob"}
    assert client.get("/api/v1/users/nobody").status_code == 404
    assert client.get("/api/v1/accounts/none").status_code == 404


def test_a_user_sees_their_own(site: Store) -> None:
    client = client_of(site, BOB)
    assert {row["user"] for row in client.get("/api/v1/jobs").json()["jobs"]} == {"bob"}
    assert [row["user"] for row in client.get("/api/v1/users").json()["users"]] == ["bob"]
    assert client.get("/api/v1/users/bob").status_code == 200
    assert client.get("/api/v1/accounts").json()["accounts"] == []
    assert client.get("/api/v1/jobs/71/programs").status_code == 200
    # Nodes and models are no secret of anybody.
    assert client.get("/api/v1/nodes").json()["total"] == 3


@pytest.mark.parametrize(
    ("hidden", "unknown"),
    [
        ("/api/v1/users/alice", "/api/v1/users/nobody"),
        ("/api/v1/accounts/physics", "/api/v1/accounts/none"),
        ("/api/v1/arrays/62", "/api/v1/arrays/99"),
        *(
            (f"/api/v1/jobs/12/{part}", f"/api/v1/jobs/99/{part}")
            for part in ("programs", "software", "steps", "nodes", "gpus", "findings")
        ),
    ],
)
def test_what_may_not_be_seen_is_like_what_is_not(site: Store, hidden: str, unknown: str) -> None:
    client = client_of(site, BOB)
    replies = [client.get(address).json() for address in (hidden, unknown)]
    names = [address.rpartition("jobs/")[2].split("/")[-1] for address in (hidden, unknown)]
    assert [reply["status"] for reply in replies] == [404, 404]
    texts = {
        reply["detail"].replace(name, "").replace("12", "").replace("99", "")
        for reply, name in zip(replies, names, strict=True)
    }
    assert len(texts) == 1


def test_a_coordinator_sees_the_account_for_as_long(site: Store) -> None:
    account = client_of(site, COORDINATOR).get("/api/v1/accounts/physics").json()
    assert {row["user"] for row in account["usage"]} == {"alice", "bob"}
    late = client_of(site, LATE_COORDINATOR).get("/api/v1/accounts/physics").json()
    assert late["usage"] == []
    assert client_of(site, LATE_COORDINATOR).get("/api/v1/accounts").json()["accounts"] == []
    assert client_of(site, ALICE).get("/api/v1/accounts/physics").status_code == 404


def test_a_user_replies_to_findings_as_themselves(store: Store) -> None:
    fill(store)
    kind = client_of(store).get("/api/v1/jobs/13/findings").json()["findings"][0]["kind"]
    address = f"/api/v1/jobs/13/findings/{kind}/acknowledge"
    assert client_of(store, ALICE).post(address, json={"user": "alice"}).status_code == 404
    own = client_of(store, BOB)
    assert own.post(address, json={"user": "alice"}).status_code == 403
    reply = own.post(address, json={"user": "bob"}).json()
    assert (reply["finding"]["state"], reply["finding"]["reply_user"]) == ("acknowledged", "bob")
    assert client_of(store, COORDINATOR).post(address, json={"user": "dora"}).status_code == 403


def test_the_series_of_a_node(location: str) -> None:
    with Store.open(location) as store:
        write_day(store, MIDNIGHT, hours=24)
        client = client_of(store)
        address = "/api/v1/nodes/c1/n1/series"
        reply = client.get(
            address, params={"since": MIDNIGHT // SECOND, "until": MIDNIGHT // SECOND + 86_399}
        ).json()
        assert (reply["cluster"], reply["node"], reply["absent"]) == ("c1", "n1", [])
        # Downsampled, and counters as rates.
        assert 500 < len(reply["times_seconds"]) <= 600
        user, load = (reply["metrics"][name] for name in ("node.cpu.user", "node.load.1m"))
        assert (user["unit"], load["unit"]) == ("cores", "count")
        assert user["mean"][1:] == pytest.approx([6.0] * (len(user["mean"]) - 1))
        assert load["maximum"] == pytest.approx([8.5] * len(load["maximum"]))
        assert reply["metrics"]["node.pressure.io"]["unit"] == "share"
        assert reply["metrics"]["node.pressure.io"]["mean"][-1] == pytest.approx(0.1)
        some = client.get(
            address,
            params={
                "metrics": "node.load.1m,node.gpu.power",
                "since": MIDNIGHT // SECOND,
                "until": MIDNIGHT // SECOND + 600,
            },
        ).json()
        assert some["absent"] == ["node.gpu.power"]
        assert (list(some["metrics"]), len(some["times_seconds"])) == (["node.load.1m"], 11)
        # A day that it has nothing of, and a node that is not there.
        empty = client.get(address, params={"since": 0, "until": 600}).json()
        assert (empty["times_seconds"], empty["metrics"]) == ([], {})
        assert client.get("/api/v1/nodes/c1/n2/series").status_code == 404
        assert client.get(address, params={"since": 600, "until": 0}).status_code == 422
        assert client.get(address, params={"since": 0, "until": 10**9}).status_code == 422


def test_the_series_of_a_node_are_for_staff_and_auditors() -> None:
    """On a node with one job, they are what that job did."""
    assert rule_of("/api/v1/nodes/c1/n1/series") is Rule.OVERSIGHT
