"""Batches that are damaged, hostile or from a confused agent: refused in words, or stored whole."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import func, select
from starlette.testclient import TestClient

from jobsight.config.settings import IngestSettings, ServerSettings
from jobsight.model import SECOND, Batch
from jobsight.server.app import create_app
from jobsight.store.schema.tables import agents, metadata
from jobsight.store.store import Store
from jobsight.transport import wire
from tests.server import damage
from tests.server.batches import START, batch
from tests.server.conftest import TOKEN
from tests.server.damage import YEAR


class Receiving:
    """The API over a store, without a bound on the number of requests."""

    def __init__(self, store: Store, client: TestClient) -> None:
        self.store = store
        self.client = client

    def send(self, data: bytes | Batch) -> tuple[int, str]:
        content = wire.encode(data) if isinstance(data, Batch) else data
        answer = self.client.post("/api/v1/batches", content=content)
        return answer.status_code, answer.json().get("detail") or answer.json()["status"]

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def contents(self) -> list[Any]:
        """How much there is of everything, and what is known of the agents."""
        with self.store.database.read() as connection:
            counts: list[Any] = [
                connection.scalar(select(func.count()).select_from(table))
                for table in metadata.sorted_tables
            ]
            return counts + list(connection.execute(select(agents)).all())

    def refuses(self, data: bytes | Batch, status: int, words: str) -> None:
        before = self.contents()
        found, sentence = self.send(data)
        assert (found, words in sentence) == (status, True), sentence
        assert self.contents() == before

    def reads(self, runs: int) -> None:
        """The reports and time series of the latest runs are there, whatever was accepted."""
        for row in self.get(f"/api/v1/jobs?limit={runs}")["jobs"]:
            run = row["run"]
            assert self.get(f"/api/v1/jobs/{run}")["run"] == run
            assert self.get(f"/api/v1/jobs/{run}/series")["run"] == run

    def judges(self, data: bytes) -> int:
        """Send anything: a refusal is a sentence and changes nothing, the rest can be read."""
        before = self.contents()
        status, sentence = self.send(data)
        if status == 200:
            assert self.send(data) == (200, "duplicate")
            self.reads(2)
            return status
        assert status in (400, 422), sentence
        assert 10 < len(sentence) < 2000
        assert "\n" not in sentence
        assert self.contents() == before
        return status


@pytest.fixture
def receiving(location: str) -> Iterator[Receiving]:
    with running(location) as made:
        yield made


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Receiving]:
    """For what never gets as far as the store."""
    with running(str(tmp_path / "store.db")) as made:
        yield made


@contextmanager
def running(location: str) -> Iterator[Receiving]:
    # A disk that stands still for seconds is not what is tried here.
    unbounded = ServerSettings(
        ingest=IngestSettings(requests_per_second=0, bytes_per_second=0, queue_timeout=600)
    )
    with Store.open(location) as store:
        app = create_app(store, TOKEN, delay=0, settings=unbounded)
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        with TestClient(app, base_url="http://127.0.0.1", headers=bearer) as client:
            yield Receiving(store, client)


def try_damage(receiving: Receiving, cases: int, *, derandomize: bool) -> None:
    seen: dict[int, int] = {}

    @given(damage.DAMAGED)
    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=derandomize,
        suppress_health_check=list(HealthCheck),
    )
    def judge(data: bytes) -> None:
        status = receiving.judges(data)
        seen[status] = seen.get(status, 0) + 1

    judge()
    receiving.reads(1000)
    # Each kind of answer has been there, else the cases are too tame or too wild.
    assert seen.keys() == {200, 400, 422}
    assert sum(seen.values()) >= cases


def test_whatever_is_damaged_is_refused_in_words_or_stored_whole(receiving: Receiving) -> None:
    try_damage(receiving, 150, derandomize=True)


@pytest.mark.parametrize("value", [2**63 - 1, 2**63 - 2, -(2**63), 2**63])
@pytest.mark.long
def test_the_largest_numbers_in_every_place(receiving: Receiving, value: int) -> None:
    for number, way in enumerate(damage.places(damage.opened(batch())[0])):
        tree, columns = damage.opened(batch(sequence=number, spool=f"at {way}"))
        damage.holder(tree, way)[way[-1]] = value
        receiving.judges(damage.packed(tree, columns))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_ten_thousand_damaged_batches(receiving: Receiving) -> None:
    try_damage(receiving, 10_000, derandomize=False)


def test_a_batch_cut_at_every_byte(on_sqlite: Receiving) -> None:
    data = wire.encode(batch())
    before = on_sqlite.contents()
    for length in range(len(data)):
        status, sentence = on_sqlite.send(data[:length])
        assert status == 400, length
        assert sentence.startswith("the ")
    assert on_sqlite.contents() == before
    assert on_sqlite.send(data) == (200, "stored")


@pytest.mark.parametrize(
    "bits",
    [
        slice(0, None, 97),
        pytest.param(slice(0, None), marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
def test_a_batch_with_a_bit_flipped(on_sqlite: Receiving, bits: slice) -> None:
    data = wire.encode(batch())
    for bit in range(len(data) * 8)[bits]:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        on_sqlite.judges(bytes(damaged))


def test_repeated_and_reordered_batches_give_what_the_right_order_gives(
    receiving: Receiving,
) -> None:
    def sent(spool: str, job_id: int) -> list[Batch]:
        made = [batch(job_id, spool=spool, sequence=number) for number in range(6)]
        for number, one in enumerate(made):
            damage.moved(one, number * 20 * SECOND)
            one.parts[0].final = number == 5
            one.parts[0].sighting = batch(job_id).parts[0].sighting
            one.jobs = batch(job_id, end=START + 110 * SECOND).jobs
        return made

    for one in sent("in order", 1):
        assert receiving.send(one) == (200, "stored")
    shuffled = sent("shuffled", 2)
    for number in (5, 2, 2, 0, 5, 4, 1, 0, 3, 3):
        receiving.send(shuffled[number])
    ordered, mixed = (receiving.get(f"/api/v1/jobs/{job_id}/series")["nodes"] for job_id in (1, 2))
    assert ordered == mixed
    assert [len(receiving.store.series(run)[0].times) for run in (1, 2)] == [66, 66]
    right, other = (receiving.get(f"/api/v1/jobs/{job_id}") for job_id in (1, 2))
    assert right["cpu"] == other["cpu"]
    assert right["executables"] == other["executables"]


@pytest.mark.parametrize("off", [-YEAR, YEAR])
def test_a_clock_a_year_off_is_stored_and_shown(receiving: Receiving, off: int) -> None:
    sent = damage.moved(batch(), time.time_ns() - START + off)
    assert receiving.send(sent) == (200, "stored")
    report = receiving.get("/api/v1/jobs/12")
    skew = report["node_rows"][0]["clock_skew_seconds"]
    assert skew == pytest.approx(off / SECOND, abs=600)
    assert any("Clocks: n1 differs" in note for note in report["coverage_notes"])


def test_a_clock_centuries_off_is_refused(on_sqlite: Receiving) -> None:
    on_sqlite.refuses(damage.moved(batch(), 200 * YEAR), 422, "not between 1990 and 2200")


def test_readings_that_are_no_numbers_are_stored_and_shown_as_missing(
    receiving: Receiving,
) -> None:
    values = [1.0, math.nan, math.inf, -math.inf, 2.0, 3.0]
    assert receiving.send(damage.with_values("d", values)) == (200, "stored")
    (node,) = receiving.get("/api/v1/jobs/12/series")["nodes"]
    curve = node["metrics"]["load"]
    assert curve["mean"][0] == 1.0
    assert curve["mean"][1] is None
    assert curve["mean"][4:] == [2.0, 3.0]
    (found,) = receiving.store.series(1)
    assert [str(value) for value in found.columns["load"]] == [str(value) for value in values]


def wide(metrics: int) -> Batch:
    sent = batch()
    series = sent.parts[0].series
    assert series is not None
    series.columns = {f"metric.{number}": series.times for number in range(metrics)}
    return sent


def hostile() -> dict[str, tuple[bytes | Batch, int, str]]:
    deep = b"\x91" * 50_000 + b"\xc0"
    tree, columns = damage.opened(batch())
    body = msgspec.msgpack.encode(tree)
    deep_columns, lying = damage.opened(batch())[0], damage.opened(batch())[0]
    deep_columns["parts"][0]["series"] = [11, nested(300)]
    lying["parts"][0]["series"][0] = 1_000_000
    bomb = damage.sealed(b"\0" * (wire.MAX_UNPACKED + 1))
    return {
        "10,000 metrics": (wide(10_000), 400, "10000 columns is refused; 4096 are allowed"),
        "a zstd bomb": (bomb, 400, "would unpack to 67108865 bytes; 67108864 are allowed"),
        "a bomb within bounds": (damage.sealed(b"\0" * wire.MAX_UNPACKED), 400, "header"),
        "deep nesting next to the fields": (damage.with_field(b"x", deep), 400, "header"),
        "deep nesting in a field": (damage.with_field(b"jobs", deep), 400, "header"),
        "deep nesting in the columns": (damage.packed(deep_columns, columns), 400, "header"),
        "deep maps": (damage.with_field(b"x", b"\x81\xa1a" * 50_000 + b"\xc0"), 400, "header"),
        "an array of 4 billion": (
            damage.with_field(b"parts", b"\xdd\xff\xff\xff\xff"),
            400,
            "truncated",
        ),
        "a text of 4 GB": (damage.with_field(b"x", b"\xdb\xff\xff\xff\xff"), 400, "truncated"),
        "a million rows announced": (damage.packed(lying, columns), 400, "cut short"),
        "a header of 4 GB": (damage.sealed(b"\xff\xff\xff\xff" + body), 400, "ends before"),
        "another cluster's run": (batch(cluster="beta"), 422, "speaks for cluster 'beta'"),
    }


def nested(depth: int) -> list[Any]:
    tree: list[Any] = []
    for _ in range(depth):
        tree = [tree]
    return tree


def test_hostile_batches_are_refused_in_words(on_sqlite: Receiving) -> None:
    for data, status, words in hostile().values():
        on_sqlite.refuses(data, status, words)


def test_as_many_metrics_as_are_allowed(on_sqlite: Receiving) -> None:
    assert on_sqlite.send(wide(wire.MAX_COLUMNS)) == (200, "stored")
    assert len(on_sqlite.get("/api/v1/jobs/12/series")["nodes"][0]["metrics"]) > 0
