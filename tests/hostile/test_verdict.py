"""What a soak calls a fault: refused pages, executions without an excuse, silence, lost marks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random

import pytest

from jobsight.model import Coverage, ExecutableUse, JobInfo, JobPart, JobTotals, Sighting
from jobsight.store.store import Store
from tests.hostile.attacks.namespaces import FORGED
from tests.hostile.honest import Truth, differences
from tests.hostile.soak import HOSTILE, Reader, Silence, namespace_faults
from tests.store.sample import START, batch

STORM, SLEEP = b"/opt/storm", b"/usr/bin/sleep"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    # What is tested is no matter of the database.
    with Store.open(tmp_path / "store.db") as store:
        yield store


@pytest.fixture
def answering() -> Iterator[HTTPServer]:
    """A server that answers each request with the status that its path names."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(self.path.strip("/")))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["list", "usage", "health", "honest run", None])
def test_a_refusal_of_what_people_need_is_a_fault_and_no_fast_page(
    answering: HTTPServer, kind: str | None
) -> None:
    reader = Reader(answering.server_port, "token", Random(1))
    reader.get("/200", kind)
    assert reader.errors == []
    for status in (413, 429, 500, 502, 503):
        reader.get(f"/{status}", kind)
    assert [error.split(":")[0] for error in reader.errors] == [
        f"GET /{status} answered {status}" for status in (413, 429, 500, 502, 503)
    ]
    assert {name: len(seconds) for name, seconds in reader.seconds.items()} == (
        {kind: 1} if kind else {}
    )


def test_a_hostile_run_may_be_refused_in_a_sentence(answering: HTTPServer) -> None:
    reader = Reader(answering.server_port, "token", Random(1))
    for status in (200, 413, 503):
        reader.get(f"/{status}", "hostile run")
    assert reader.errors == []
    assert len(reader.seconds["hostile run"]) == 1
    reader.get("/500", "hostile run")
    assert len(reader.errors) == 1


def test_silence_is_a_fault_when_it_lasts() -> None:
    now = 0.0
    silence = Silence(60, lambda: now)
    assert not silence.note(answered=False)
    now = 60.0
    assert not silence.note(answered=False)
    now = 61.0
    assert silence.note(answered=False)
    assert not silence.note(answered=True)
    assert not silence.note(answered=False)


def write(store: Store, job: int, uses: list[ExecutableUse], coverage: Coverage) -> None:
    info = JobInfo(cluster=HOSTILE, job_id=job, source="prolog", start=START, end=START + 10)
    part = JobPart(
        sighting=Sighting(HOSTILE, job, "n1", "boot", START),
        epoch="one",
        totals=JobTotals(time=START + 10, cpu_source="cgroup v2", cpu_time=5),
        executables=uses,
        coverage={"executables": coverage},
        final=True,
    )
    assert store.write(batch(info, part, cluster=HOSTILE, written=START))


NAMED = Coverage(
    quality="estimate", reason="the processes of a short step (2) were not observed; and more"
)


@pytest.mark.parametrize(
    ("coverage", "seen", "allowed"),
    [
        (NAMED, {STORM: 1}, True),
        (Coverage(quality="exact"), {STORM: 1}, False),
        # For another reason, or of a step that is not named.
        (Coverage(quality="estimate", reason="events were lost"), {STORM: 1}, False),
        (NAMED, {SLEEP: 20}, False),
        # More than there was, or another program.
        (NAMED, {STORM: 3, SLEEP: 20}, False),
        (NAMED, {STORM: 1, b"/opt/xmrig": 1}, False),
    ],
)
def test_what_is_missing_must_be_of_a_step_that_the_coverage_names(
    store: Store, coverage: Coverage, seen: dict[bytes, int], allowed: bool
) -> None:
    uses = [ExecutableUse(path=path, executions=count) for path, count in seen.items()]
    write(store, 7, uses, coverage)
    truth = Truth(7, cpu_time=5, executions={STORM: 2, SLEEP: 20}, ended=True)
    truth.steps = {"1": {STORM: 1}, "2": {STORM: 1, SLEEP: 20}}
    found = differences(store, HOSTILE, truth)
    assert (bool(found.incomplete), bool(found.faults)) == (allowed, not allowed)


def test_namespaces_that_were_refused_or_not_marked_are_a_fault(store: Store) -> None:
    exact = Coverage(quality="exact")
    forged = FORGED[0].encode()
    ran = Counter({"forged": 3})
    assert "proves nothing" in namespace_faults(store, [1], Counter({"refused": 9}))[0]
    write(store, 1, [ExecutableUse(path=b"/usr/bin/sh", executions=1)], exact)
    assert "no path of a namespace was kept" in namespace_faults(store, [1, 99], ran)[0]
    write(store, 2, [ExecutableUse(path=forged, executions=1, own_namespace=True)], exact)
    assert namespace_faults(store, [1, 2, 99], ran) == []
    write(store, 3, [ExecutableUse(path=forged, executions=1)], exact)
    (fault,) = namespace_faults(store, [1, 2, 3], ran)
    assert "without a mark" in fault
