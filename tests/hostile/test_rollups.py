"""A real server under the memory limit of its unit, with batches that are small on the wire and
large in the rollups and pages."""

from __future__ import annotations

import http.client
import resource
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from jobsight.transport import wire
from tests.hostile.attacks.batches import DAY, Sender
from tests.hostile.soak import UNITS, _memory_limit
from tests.server.processes import ServerProcess, Spawner
from tests.waiting import wait_until

#: Each of them killed a server, or stopped its rollups, at every start.
KINDS = (
    *("long-run-in-bounds", "huge-numbers", "many-names", "many-nodes", "many-resources"),
    *("midnights", "large-series", "long-texts", "not-finite"),
    *("node-series",) * 4,
)
TIMEOUT = 600.0


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


class LimitedServer(ServerProcess):
    """A server whose address space has the size of the memory limit in its unit."""

    def start(self) -> None:
        super().start()
        limit = _memory_limit(UNITS / "jobsight-server.service")
        resource.prlimit(self.pid, resource.RLIMIT_AS, (limit, limit))

    def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {self.token}"})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, body = self.request("GET", path)
        assert status == 200, (path, status, body[:300])
        return msgspec.json.decode(body)

    def waiting(self) -> int:
        """Runs that are not in the rollups yet and are not set aside."""
        return int(self.get("/api/v1/usage?by=user")["pending_runs"])


@pytest.mark.parametrize(
    "location",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)],
    indirect=True,
)
def test_no_batch_ends_the_server_or_its_rollups(
    spawner: Spawner, tmp_path: Path, location: str
) -> None:
    """S-01, S-02, S-03, S-07, S-30."""
    server = LimitedServer(spawner, tmp_path / "server", location)
    server._variables |= {"JOBSIGHT_SOFTWARE__INTERVAL": "1"}
    honest = Sender(Random(1), "beta")
    with server:
        sender = Sender(Random(7), "alpha", jobs=40)
        for number in range(3 * len(KINDS)):
            data = sender.next(KINDS[number % len(KINDS)])
            status, reply = server.request("POST", "/api/v1/batches", data)
            assert status in (200, 400, 422, 429, 503), (status, reply[:300])
            assert server.lives(), (server.folder / "server.log").read_text()[-3000:]
        sent = honest.batch(job_id=5, user="carol", cpus=4, start=honest.now - DAY // 24)
        assert server.request("POST", "/api/v1/batches", wire.encode(sent))[0] == 200
        for path in ("/", "/jobs/1000000", "/api/v1/jobs?limit=1000", "/api/v1/jobs/1000000"):
            assert server.request("GET", path)[0] in (200, 404, 413), path
            assert server.lives(), (path, (server.folder / "server.log").read_text()[-3000:])
        wait_until(lambda: _carol(server), TIMEOUT)
        assert server.lives(), (server.folder / "server.log").read_text()[-3000:]
    # Nothing of it ends the next start.
    with server:
        assert _carol(server) == pytest.approx(4.0)
        wait_until(lambda: server.waiting() == 0, TIMEOUT)
        assert server.lives(), (server.folder / "server.log").read_text()[-3000:]
        assert "Traceback" not in (server.folder / "server.log").read_text()


def _carol(server: LimitedServer) -> float | None:
    """The core hours of the honest run, once they are in the rollups."""
    rows = server.get("/api/v1/usage?by=user&cluster=beta")["rows"]
    return next((row["core_hours"] for row in rows if row["user"] == "carol"), None)
