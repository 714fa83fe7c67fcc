"""Clockwork's REST tests as scenarios: what each asks, and that our own routes and its routes
answer it with the same figures.

Each test is named as the test of Clockwork whose scenario it is. ``ours`` asks the documented API;
``theirs`` the routes of ``server.clockwork_routes``, with HTTP Basic as its client sends it.
"""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobsight.config.settings import ServerSettings
from jobsight.store.properties import MAX_SIZE
from jobsight.store.store import Store
from tests.server.conftest import TOKEN
from tests.server.site import ALICE, BOB, client_of, fill

#: All scenarios: the names of the tests in Clockwork's test_rest_*.py.
SCENARIOS = {
    *("test_no_authentication", "test_bad_user", "test_bad_key"),
    *("test_single_job_at_random", "test_single_job_missing", "test_single_job_no_id"),
    *("test_list_jobs_for_a_given_random_user", "test_api_list_invalid_username"),
    *("test_jobs_list_with_filter", "test_jobs_user_props_get"),
    *("test_jobs_user_props_get_unknown_cluster", "test_jobs_user_props_get_unknown_job_id"),
    *("test_jobs_user_props_set", "test_jobs_user_props_delete"),
    *("test_size_limit_for_jobs_user_props_set", "test_single_node_at_random"),
    *("test_single_node_missing", "test_node_list", "test_single_node_gpu_with_specs"),
    *("test_single_node_with_no_identified_gpu", "test_single_node_gpu_without_specs"),
    *("test_missing_node_gpu", "test_node_gpu_bad_request", "test_gpu_one_fail"),
    *("test_gpu_one_no_name", "test_gpu_one_success", "test_gpu_list_success"),
}
SETTINGS = ServerSettings(clockwork_routes=True)
PREFIX = "/api/v1/clusters"


def basic(key: str, name: str = "student06@mila.quebec") -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'{name}:{key}'.encode()).decode()}"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("site") / "store.db") as store:
        fill(store)
        yield store


@pytest.fixture(scope="module")
def ours(site: Store) -> TestClient:
    return client_of(site)


@pytest.fixture(scope="module")
def theirs(site: Store) -> TestClient:
    client = client_of(site, settings=SETTINGS)
    client.headers.update(basic(TOKEN))
    return client


def test_all_scenarios_are_here() -> None:
    assert len(SCENARIOS) == 27
    assert set(globals()) >= SCENARIOS


def test_without_the_setting_there_are_no_such_routes(site: Store, ours: TestClient) -> None:
    assert ours.get(f"{PREFIX}/jobs/list").status_code == 404
    # And HTTP Basic is no way in.
    refused = client_of(site).get("/api/v1/jobs", headers=basic(TOKEN))
    assert refused.status_code == 401


# Authentication.


@pytest.mark.parametrize("address", [f"{PREFIX}/jobs/list", "/api/v1/jobs", f"{PREFIX}/gpu/list"])
def test_no_authentication(theirs: TestClient, address: str) -> None:
    assert theirs.get(address, headers={"Authorization": ""}).status_code == 401


def test_bad_user(theirs: TestClient) -> None:
    headers = basic("password", "not_a_user")
    assert theirs.get(f"{PREFIX}/jobs/list", headers=headers).status_code == 401


@pytest.mark.parametrize("damage", ["Mg==", "\u00e9"])
def test_bad_key(theirs: TestClient, damage: str) -> None:
    headers = {"Authorization": (basic(TOKEN)["Authorization"] + damage).encode()}
    assert theirs.get(f"{PREFIX}/jobs/list", headers=headers).status_code == 401  # type: ignore[arg-type]


# Jobs.


def test_single_job_at_random(ours: TestClient, theirs: TestClient) -> None:
    job = theirs.get(f"{PREFIX}/jobs/one?job_id=12").json()
    report = ours.get("/api/v1/jobs/12").json()
    slurm = job["slurm"]
    assert slurm["job_id"] == str(report["job_id"]) == "12"
    assert (slurm["username"], slurm["account"]) == (report["user"], report["account"])
    assert (slurm["cluster_name"], slurm["job_state"]) == ("alpha", report["state"])
    assert (slurm["nodes"], slurm["exit_code"]) == ("n1", "SUCCESS:0")
    assert slurm["end_time"] - slurm["start_time"] == report["time"]["elapsed_seconds"] == 10
    assert job["jobsight"]["cpu_seconds"] == report["cpu"]["cpu_seconds"] == 10
    waiting = theirs.get(f"{PREFIX}/jobs/one?job_id=90&cluster_name=alpha").json()
    assert waiting["slurm"]["job_state"] == ours.get("/api/v1/jobs/90").json()["state"]


def test_single_job_missing(ours: TestClient, theirs: TestClient) -> None:
    for query in ("job_id=99", "job_id=12&cluster_name=beta", "job_id=no-id"):
        assert theirs.get(f"{PREFIX}/jobs/one?{query}").json() == {}
    assert ours.get("/api/v1/jobs/99").status_code == 404


def test_single_job_no_id(ours: TestClient, theirs: TestClient) -> None:
    answer = theirs.get(f"{PREFIX}/jobs/one")
    assert (answer.status_code, answer.json()) == (400, "Missing argument job_id.")
    assert ours.get("/api/v1/jobs/no-id").status_code == 400


def _ids(jobs: list[dict[str, Any]]) -> list[int]:
    return sorted(int(job["slurm"]["job_id"]) for job in jobs)


def test_list_jobs_for_a_given_random_user(ours: TestClient, theirs: TestClient) -> None:
    rows = ours.get("/api/v1/jobs?user=bob").json()["jobs"]
    jobs = theirs.get(f"{PREFIX}/jobs/list?username=bob").json()
    assert _ids(jobs) == sorted(row["job_id"] for row in rows) == [13, 71]
    assert theirs.get(f"{PREFIX}/jobs/list?username=bob@mila.quebec").json() == jobs


@pytest.mark.parametrize("username", ["yoshi", "koopatroopa"])
def test_api_list_invalid_username(ours: TestClient, theirs: TestClient, username: str) -> None:
    assert theirs.get(f"{PREFIX}/jobs/list?username={username}").json() == []
    assert ours.get(f"/api/v1/jobs?user={username}").json()["jobs"] == []


@pytest.mark.parametrize(("cluster", "count"), [("alpha", 5), ("sephiroth", 0)])
def test_jobs_list_with_filter(
    ours: TestClient, theirs: TestClient, cluster: str, count: int
) -> None:
    jobs = theirs.get(f"{PREFIX}/jobs/list?cluster_name={cluster}").json()
    rows = ours.get(f"/api/v1/jobs?cluster={cluster}").json()
    # Clockwork's list has the job that waits as well.
    waiting = [job for job in jobs if job["slurm"]["job_state"] == "PENDING"]
    assert len(jobs) - len(waiting) == rows["total"] == count


def test_the_other_parameters_of_a_search(theirs: TestClient) -> None:
    for query, ids in (
        ("aggregated_job_state=FAILED", [13]),
        ("aggregated_job_state=PENDING,FAILED", [13, 90]),
        ("job_state=COMPLETED&username=alice", [12, 62, 63]),
        ("job_array=62", [62, 63]),
        ("job_id=12,13", [12, 13]),
        ("user_prop_name=nobody-has-it", []),
    ):
        assert _ids(theirs.get(f"{PREFIX}/jobs/list?{query}").json()) == ids
    counted = theirs.get(f"{PREFIX}/jobs/list?want_count=True&page_num=2&nbr_items_per_page=4")
    assert counted.json()["nbr_total_jobs"] == 6
    assert len(counted.json()["jobs"]) == 2
    ascending = theirs.get(f"{PREFIX}/jobs/list?sort_by=job_id&sort_asc=1").json()
    assert [int(job["slurm"]["job_id"]) for job in ascending] == [12, 13, 62, 63, 71, 90]
    assert theirs.get(f"{PREFIX}/jobs/list?sort_by=nothing").status_code == 400
    assert theirs.get(f"{PREFIX}/jobs/list?page_num=x").status_code == 400


def test_a_user_gets_their_own_jobs(site: Store) -> None:
    client = client_of(site, BOB, SETTINGS)
    assert _ids(client.get(f"{PREFIX}/jobs/list").json()) == [13, 71]
    assert client.get(f"{PREFIX}/jobs/list?username=alice").json() == []
    assert client.get(f"{PREFIX}/jobs/one?job_id=12").json() == {}
    assert client.get(f"{PREFIX}/jobs/one?job_id=90").json() == {}


# Properties.

JOB = {"job_id": "12", "cluster_name": "alpha"}
GET = f"{PREFIX}/jobs/user_props/get?job_id=12&cluster_name=alpha"


@pytest.fixture
def own(site: Store) -> Iterator[TestClient]:
    """Alice, whose job has one property; it has the same afterwards."""
    client = client_of(site, ALICE, SETTINGS)
    address = "/api/v1/jobs/12/properties"
    client.patch(address, json={"name": "je suis une user prop 1"})
    yield client
    left = client.get(address).json()["properties"]
    client.patch(address, json=dict.fromkeys(left))


ORIGINAL = {"name": "je suis une user prop 1"}


def test_jobs_user_props_get(own: TestClient) -> None:
    assert own.get(GET).json() == ORIGINAL
    assert own.get("/api/v1/jobs/alpha:12/properties").json()["properties"] == ORIGINAL
    found = own.get(f"{PREFIX}/jobs/list?user_prop_name=name").json()
    assert _ids(found) == [12]


def test_jobs_user_props_get_unknown_cluster(own: TestClient) -> None:
    address = f"{PREFIX}/jobs/user_props/get?job_id=12&cluster_name=unknown_cluster"
    assert own.get(address).json() == {}
    assert own.get("/api/v1/jobs/unknown_cluster:12/properties").status_code == 404


def test_jobs_user_props_get_unknown_job_id(own: TestClient) -> None:
    address = f"{PREFIX}/jobs/user_props/get?job_id=unknown_job_id&cluster_name=alpha"
    assert own.get(address).json() == {}
    assert own.get(f"{PREFIX}/jobs/user_props/get?job_id=12").status_code == 400


def test_jobs_user_props_set(own: TestClient) -> None:
    updates = {"other name": "other value", "other name 2": "other value 2"}
    answer = own.put(f"{PREFIX}/jobs/user_props/set", json={**JOB, "updates": updates})
    assert answer.json() == {**ORIGINAL, **updates}
    changed = {"other name": "new value"}
    answer = own.put(f"{PREFIX}/jobs/user_props/set", json={**JOB, "updates": changed})
    assert answer.json() == {**ORIGINAL, **updates, **changed}
    assert own.get("/api/v1/jobs/12/properties").json()["properties"] == answer.json()
    refused = own.put(f"{PREFIX}/jobs/user_props/set", json={**JOB, "updates": "no dict"})
    assert refused.status_code == 500
    others = {"job_id": "13", "cluster_name": "alpha", "updates": changed}
    assert own.put(f"{PREFIX}/jobs/user_props/set", json=others).status_code == 404


def test_jobs_user_props_delete(own: TestClient) -> None:
    updates = {"dino": "saurus", "aa": "aa", "bb": "bb", "cc": "cc", "other name": "x"}
    own.put(f"{PREFIX}/jobs/user_props/set", json={**JOB, "updates": updates})
    delete = f"{PREFIX}/jobs/user_props/delete"
    assert own.put(delete, json={**JOB, "keys": ["dino"]}).json() == ""
    assert own.put(delete, json={**JOB, "keys": ["aa", "bb", "unknown", "cc"]}).json() == ""
    assert own.get(GET).json() == {**ORIGINAL, "other name": "x"}
    assert own.put(delete, json={**JOB, "keys": "other name"}).json() == ""
    assert own.get(GET).json() == ORIGINAL
    assert own.put(delete, json={**JOB, "keys": 5}).status_code == 500


def test_size_limit_for_jobs_user_props_set(own: TestClient) -> None:
    huge = {"other name": "x" * (MAX_SIZE + 1)}
    answer = own.put(f"{PREFIX}/jobs/user_props/set", json={**JOB, "updates": huge})
    assert answer.status_code == 500
    assert answer.json().startswith("Too huge job-user props: maximum 2.0 Mbytes")
    assert own.patch("/api/v1/jobs/12/properties", json=huge).status_code == 413
    assert own.get(GET).json() == ORIGINAL


# Nodes.


def test_single_node_at_random(ours: TestClient, theirs: TestClient) -> None:
    node = theirs.get(f"{PREFIX}/nodes/one?node_name=n1").json()
    own = ours.get("/api/v1/clusters/alpha/nodes/n1").json()
    assert (node["slurm"]["name"], node["slurm"]["cluster_name"]) == (own["name"], own["cluster"])
    assert node["slurm"]["cpus"] == own["cpus"] == 64
    assert node["slurm"]["memory"] * 2**20 == own["memory_bytes"]
    assert node["cw"]["gpu"] == {"name": "a100", "number": 4, "cw_name": "a100"}
    assert own["gpus"][0]["count"] == 4


def test_single_node_missing(ours: TestClient, theirs: TestClient) -> None:
    assert theirs.get(f"{PREFIX}/nodes/one?node_name=absent_node_7").json() == {}
    assert ours.get("/api/v1/clusters/alpha/nodes/absent_node_7").status_code == 404


def test_node_list(ours: TestClient, theirs: TestClient) -> None:
    names = [node["slurm"]["name"] for node in theirs.get(f"{PREFIX}/nodes/list").json()]
    assert names == [row["name"] for row in ours.get("/api/v1/nodes").json()["nodes"]]
    assert theirs.get(f"{PREFIX}/nodes/list?cluster_name=beta").json() == []


def test_single_node_gpu_with_specs(ours: TestClient, theirs: TestClient) -> None:
    gpu = theirs.get(f"{PREFIX}/nodes/one/gpu?node_name=n1").json()
    own = ours.get("/api/v1/gpus/a100").json()
    assert (gpu["name"], gpu["ram"], gpu["vendor"]) == ("a100", own["memory_gb"], "nvidia")
    assert gpu["tflops_fp32"] == own["tflops_fp32"] == 19.5


def test_single_node_with_no_identified_gpu(ours: TestClient, theirs: TestClient) -> None:
    assert theirs.get(f"{PREFIX}/nodes/one/gpu?node_name=n3").json() == {}
    assert ours.get("/api/v1/clusters/alpha/nodes/n3").json()["gpus"] == []


def test_single_node_gpu_without_specs(ours: TestClient, theirs: TestClient) -> None:
    assert theirs.get(f"{PREFIX}/nodes/one/gpu?node_name=n2").json() == {}
    assert ours.get("/api/v1/clusters/alpha/nodes/n2").json()["gpus"][0]["model"] is None


def test_missing_node_gpu(theirs: TestClient) -> None:
    assert theirs.get(f"{PREFIX}/nodes/one/gpu?node_name=missing-node").json() == {}


def test_node_gpu_bad_request(theirs: TestClient) -> None:
    assert theirs.get(f"{PREFIX}/nodes/one/gpu").status_code == 400


# GPUs.


def test_gpu_one_fail(ours: TestClient, theirs: TestClient) -> None:
    assert theirs.get(f"{PREFIX}/gpu/one?gpu_name=rtx").json() == {}
    assert ours.get("/api/v1/gpus/rtx").status_code == 404


def test_gpu_one_no_name(theirs: TestClient) -> None:
    assert theirs.get(f"{PREFIX}/gpu/one").status_code == 400


def test_gpu_one_success(ours: TestClient, theirs: TestClient) -> None:
    assert theirs.get(f"{PREFIX}/gpu/one?gpu_name=rtx8000").json() == {
        "name": "rtx8000",
        "vendor": "nvidia",
        "ram": 48,
        "cuda_cores": 4608,
        "tensor_cores": 576,
        "tflops_fp32": 16.3,
    }
    own = ours.get("/api/v1/gpus/rtx8000").json()
    assert (own["memory_gb"], own["cores"], own["tensor_cores"]) == (48, 4608, 576)


def test_gpu_list_success(ours: TestClient, theirs: TestClient) -> None:
    listed = theirs.get(f"{PREFIX}/gpu/list").json()
    own = ours.get("/api/v1/gpus").json()["gpus"]
    assert len(listed) == len(own)
    for gpu in listed:
        assert theirs.get(f"{PREFIX}/gpu/one?gpu_name={gpu['name']}").json() == gpu
