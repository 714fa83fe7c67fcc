"""Remote write: the format, real receivers, and answers of every kind."""

from __future__ import annotations

import math
import socket
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.model import SECOND, Batch, JobPart, Series, Sighting
from jobsight.prometheus import names
from jobsight.prometheus.remote_write import (
    STALE,
    BatchSeries,
    RemoteWriteTarget,
    best_snappy,
    frames,
    label,
    sample,
    series,
    snappy_literals,
)
from jobsight.transport.spool import Spool
from tests.prometheus.batches import NOW, batch, deliver
from tests.prometheus.servers import Prometheus, VictoriaMetrics, with_flush
from tests.prometheus.wire_format import parse, unpack


def read(message: bytes) -> dict[str, list[tuple[float, int]]]:
    """Name with labels -> values, of a message whose labels are in order."""
    found = {}
    for one in parse(message):
        assert one.labels == sorted(one.labels)
        name = dict(one.labels)["__name__"]
        rest = ",".join(f"{key}={value}" for key, value in one.labels if key != "__name__")
        found[f"{name}{{{rest}}}"] = one.values
    return found


JOB = "cluster=c,node=n1,slurm_job=42"


def test_samples_keep_their_times() -> None:
    encoded = BatchSeries().encode(batch())
    found = read(encoded.message)
    times = [NOW // 10**6 + 1000 * place for place in (3, 4, 5)]
    assert found[f"jobsight_job_cpu_seconds_total{{{JOB}}}"] == list(
        zip([3.0, 4.0, 5.0], times, strict=True)
    )
    assert found[f"jobsight_job_memory_used_bytes{{{JOB}}}"] == [
        (2**20, times[1]),
        (2**20, times[2]),
    ]
    watts = "jobsight_job_gpu_power_watts{cluster=c,gpu=1,node=n1,slurm_job=42}"
    assert found[watts][0] == (250.0, times[0])
    info = r"jobsight_job_info{cluster=c,node=n1,slurm_job=42,user=ann\x0a}"
    assert found[info] == [(1.0, times[-1])]
    assert encoded.samples == sum(map(len, found.values())) == 3 + 2 + 3 + 1 + 1


def test_petricore_s_names_where_they_are_wanted() -> None:
    found = read(BatchSeries(petricore_names=True).encode(batch()).message)
    assert found["jobs_rss{instance=n1,slurm_job=42}"][0][0] == 1.0


def test_every_label_stands_in_its_place() -> None:
    everything = Batch(
        cluster="c", node="n1", spool="s", sequence=1, written=0, monotonic=0, agent="test",
        parts=[
            JobPart(
                sighting=Sighting("c", 1, "n1", "b", NOW),
                epoch="e",
                series=Series(
                    array("q", [NOW]),
                    {name.replace("*", "x"): array("q", [1]) for name in names.OF_METRIC},
                ),
            )
        ],
    )  # fmt: skip
    found = read(BatchSeries(petricore_names=True).encode(everything).message)
    wanted = {*names.OF_METRIC.values(), *(one for one in names.PETRICORE.values() if one.metric)}
    assert len(found) == len(wanted)


def test_the_end_of_a_job_ends_its_series() -> None:
    made = BatchSeries()
    made.encode(batch(1))
    # A batch that has to be sent again says the same again.
    for _ in range(2):
        last = parse(made.encode(batch(2, final=True)).message)
        stale = [one for one in last if one.samples[-1][0] == STALE]
        assert len(stale) == len(last) == 6 - 1
        cpu = next(
            one for one in last if ("__name__", "jobsight_job_cpu_seconds_total") in one.labels
        )
        assert cpu.values[0][0] == 99.0
        assert math.isnan(cpu.values[1][0])
        assert cpu.values[1][1] == cpu.values[0][1] + 1
    made.acknowledge(batch(2, final=True))
    assert len(parse(made.encode(batch(2, final=True)).message)) == 1


@given(st.binary(max_size=5000))
def test_a_block_of_snappy_holds_what_was_put_in(data: bytes) -> None:
    assert unpack(snappy_literals(data)) == data
    assert unpack(best_snappy()(data)) == data


@given(
    st.lists(st.tuples(st.floats(allow_nan=False), st.integers(0, 2**62)), min_size=1, max_size=20),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=300),
)
def test_any_sample_and_label_can_be_read_back(samples: list[tuple[float, int]], text: str) -> None:
    around = frames(time for _, time in samples)
    written = [sample(value, frame) for (value, _), frame in zip(samples, around, strict=True)]
    (found,) = parse(series(label("a", text), written))
    assert found.labels == [("a", text)]
    assert found.values == samples


@pytest.mark.server
@pytest.mark.parametrize("kind", ["prometheus", "victoria"])
def test_a_real_receiver_has_every_sample(tmp_path: Path, kind: str) -> None:
    server: Prometheus | VictoriaMetrics
    if kind == "prometheus":
        server = Prometheus(tmp_path / "server", "global: {}\n")
    else:
        server = VictoriaMetrics(tmp_path / "server")
    try:
        delivery = deliver(
            tmp_path, f"{server.url}/api/v1/write", [batch(1), batch(2), batch(3, final=True)]
        )
        assert delivery.deliver(), delivery.reason
        assert len(delivery.spool) == 0
        target = delivery.target
        assert isinstance(target, RemoteWriteTarget)
        assert target.dropped == 0
        end = NOW / SECOND + 60
        if kind == "victoria":
            with_flush(server)
        question = 'jobsight_job_cpu_seconds_total{slurm_job="42"}[5m]'
        (found,) = server.query(question, end)
        # VictoriaMetrics shows the mark of the end as well.
        values = [(at, float(value)) for at, value in found["values"] if value != "NaN"]
        wanted = [(NOW / SECOND + place, float(place)) for place in range(3, 9)]
        wanted.append((NOW / SECOND + 8.5 + 3, 99.0))
        assert values == wanted
        # The series has ended: nothing of it is taken for the present.
        assert server.query('jobsight_job_cpu_seconds_total{slurm_job="42"}', end - 45) == []
        assert server.query('jobsight_job_info{user="ann\\\\x0a"}', NOW / SECOND + 8) != []
        delivery.spool.close()
    finally:
        server.stop()


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives one answer after the other; gives its address and what came."""
    server = socket.create_server(("127.0.0.1", 0))
    bodies: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            client, _ = server.accept()
            with client:
                data = b""
                while b"\r\n\r\n" not in data:
                    data += client.recv(65536)
                head, _, body = data.partition(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                while len(body) < length:
                    body += client.recv(65536)
                bodies.append(head + b"\r\n\r\n" + body)
                client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/write", bodies
    finally:
        thread.join(60)
        server.close()


OK = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_what_is_refused_for_good_is_dropped_and_counted(tmp_path: Path, status: int) -> None:
    refusal = f"HTTP/1.1 {status} no\r\n\r\nout of order".encode()
    with answering(refusal, OK) as (url, _):
        delivery = deliver(tmp_path, url, [batch(1), batch(2)])
        assert delivery.deliver()
        target = delivery.target
        assert isinstance(target, RemoteWriteTarget)
        assert (target.dropped, target.samples) == (10, 10)
        assert len(delivery.spool) == 0
        delivery.spool.close()


@pytest.mark.parametrize("status", [429, 500, 503, 401, 404, 302])
def test_what_may_pass_is_tried_again_when_the_server_says(tmp_path: Path, status: int) -> None:
    refusal = f"HTTP/1.1 {status} later\r\nRetry-After: 7\r\n\r\n".encode()
    with answering(refusal, OK, OK) as (url, bodies):
        delivery = deliver(tmp_path, url, [batch(1), batch(2)])
        assert not delivery.deliver()
        assert delivery.wait == 7.0
        assert len(delivery.spool) == 2
        assert delivery.deliver()
        assert bodies[0] == bodies[1]
        assert len(delivery.spool) == 0
        delivery.spool.close()


def test_who_we_are_and_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with answering(OK) as (url, bodies):
        delivery = deliver(
            tmp_path, url, [batch(1)], token_file=str(tmp_path / "token"),
            headers={"X-Scope-OrgID": "site"},
        )  # fmt: skip
        assert delivery.deliver()
        delivery.spool.close()
    head = bodies[0].partition(b"\r\n\r\n")[0].decode().lower().splitlines()
    for line in (
        "content-encoding: snappy",
        "content-type: application/x-protobuf",
        "x-prometheus-remote-write-version: 0.1.0",
        "authorization: bearer secret",
        "x-scope-orgid: site",
    ):
        assert line in head


def test_a_spool_gives_copies_to_others(tmp_path: Path) -> None:
    spool, copy = Spool(tmp_path / "spool"), Spool(tmp_path / "copy", sync=False)
    spool.copies.append(copy.put_encoded)
    assert spool.put(batch(1))
    (own,), (other,) = list(spool.pending()), list(copy.pending())
    assert own[1] == other[1]
    spool.done(own[0])
    assert (len(spool), len(copy)) == (0, 1)
    copy.close()
    spool.close()


def test_an_empty_batch_is_not_sent(tmp_path: Path) -> None:
    nothing = msgspec.structs.replace(batch(1), parts=[])
    delivery = deliver(tmp_path, "http://127.0.0.1:9/", [nothing])
    assert delivery.deliver()
    delivery.spool.close()
