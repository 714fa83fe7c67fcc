"""What open pages of running jobs cost the server.

A page requests itself and its time series as often as its job is sampled, with the tag of the last
reply. Here they are of jobs on one node that have run for two hours: 200 pages, a request of each
every 30 s, and new samples of each job every 30 s. Measured again without new samples, as with jobs
whose agent is silent: most of those requests are answered with 304.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.figures import Figures
from bench.peer_venv import PROJECT, scratch_directory
from jobsight.model import SECOND, Batch, JobInfo, JobPart, JobTotals, Series, Sighting
from jobsight.store.store import Store

PAGES: Final = int(os.environ.get("BENCH_PAGES", "200"))
#: Seconds between the requests of a page, and of one measurement.
PERIOD, MEASURED = 30.0, float(os.environ.get("BENCH_SECONDS", "30"))
GOAL: Final = 0.10
TOKEN: Final = "a-token-of-the-benchmark"
METRICS: Final = (
    *("cpu.time", "cpu.system", "memory.used", "memory.current", "io.read_characters"),
    *("io.written_characters", "io.read_bytes", "io.written_bytes", "tasks.processes"),
    "tasks.threads",
)
_ELAPSED: Final = 7200 * SECOND
_SERVER: Final = """
import sys, uvicorn
from jobsight.server.app import create_app
from jobsight.store.store import Store
with Store.open(sys.argv[1]) as store:
    app = create_app(store, sys.argv[2], delay=0)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[3]), log_level="warning", lifespan="off")
"""


def fill(store: Store, start: int) -> None:
    """Jobs that have run for two hours, with samples every 30 s."""
    for job in range(1, PAGES + 1):
        info = JobInfo(
            cluster="bench", job_id=job, source="slurm", start=start, name=f"job-{job}",
            user=f"user{job % 20}", cpus=16, memory=64 * 2**30, time_limit=4 * _ELAPSED,
            nodes=("n1",), state="RUNNING",
        )  # fmt: skip
        store.write(_batch(job, [info, _part(job, start, 0, 240)], 1))


def _part(job: int, start: int, first: int, last: int) -> JobPart:
    seconds = [30 * number for number in range(first, last)]
    times = array("q", [start + second * SECOND for second in seconds])
    columns: dict[str, array[int] | array[float]] = {
        name: array("q", [(second + 1) * 10**9 for second in seconds]) for name in METRICS
    }
    used = times[-1] - start
    totals = JobTotals(
        time=times[-1], cpu_source="cgroup v2", cpu_time=16 * used, memory_used_peak=2**34,
        memory_peak=2**34,
    )  # fmt: skip
    return JobPart(
        sighting=Sighting("bench", job, "n1", "boot", start),
        epoch="epoch",
        series=Series(times, columns),
        totals=totals,
    )


def _batch(job: int, content: list[JobInfo | JobPart], sequence: int) -> Batch:
    return Batch(
        cluster="bench",
        node="n1",
        spool=f"spool-{job}",
        sequence=sequence,
        written=time.time_ns(),
        monotonic=1,
        agent="bench",
        jobs=[each for each in content if isinstance(each, JobInfo)],
        parts=[each for each in content if isinstance(each, JobPart)],
    )


@contextmanager
def server(file: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server as a process of its own."""
    command = [sys.executable, "-c", _SERVER, str(file), TOKEN, str(port)]
    with subprocess.Popen(command, cwd=PROJECT) as process:
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                try:
                    _get(http.client.HTTPConnection("127.0.0.1", port, timeout=10), "/healthz", {})
                    break
                except OSError:
                    time.sleep(0.1)
            yield process
        finally:
            process.terminate()


def _get(connection: http.client.HTTPConnection, path: str, tags: dict[str, str]) -> int:
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/html"}
    if path in tags:
        headers["If-None-Match"] = tags[path]
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    reply.read()
    if tag := reply.getheader("ETag"):
        tags[path] = tag
    return reply.status


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(store: Store, process: int, port: int, start: int, new_samples: bool) -> list[float]:
    """The share of a core, the share of replies with content, and milliseconds of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    tags: dict[str, str] = {}
    series = "?metrics=" + ",".join(METRICS[:8])
    paths = [(f"/jobs/bench:{job}", f"/api/v1/jobs/bench:{job}/series{series}")
             for job in range(1, PAGES + 1)]  # fmt: skip
    for page, curves in paths:
        _get(connection, page, tags)
        _get(connection, curves, tags)
    rounds = max(int(PAGES * MEASURED / PERIOD), 1)
    pause = PERIOD / PAGES
    full = 0
    # Samples are written here, by this process: what is measured are the pages.
    if new_samples:
        for job in range(1, PAGES + 1):
            store.write(_batch(job, [_part(job, start, 240, 241)], 2))
    begun, spent = time.monotonic(), cpu_seconds(process)
    for number in range(rounds):
        for path in paths[number % PAGES]:
            full += _get(connection, path, tags) == 200
        time.sleep(max(begun + (number + 1) * pause - time.monotonic(), 0))
    elapsed = time.monotonic() - begun
    used = cpu_seconds(process) - spent
    return [used / elapsed, full / (2 * rounds), 1000 * used / rounds]


def main() -> None:
    figures = Figures()
    with scratch_directory() as name:
        file = Path(name) / "store.db"
        start = time.time_ns() - _ELAPSED
        port = int(os.environ.get("BENCH_PORT", "18471"))
        with Store.open(file) as store:
            fill(store, start)
            with server(file, port) as process:
                for text, new_samples in (("new samples", True), ("no news", False)):
                    share, full, each = measure(store, process.pid, port, start, new_samples)
                    figures.row(
                        f"{PAGES} open pages of running jobs, {text} every 30 s",
                        "-",
                        f"{share:.1%} of a core ({full:.0%} of the replies with content, "
                        f"{each:.1f} ms a page with its series)",
                        f"{GOAL:.0%}",
                        reached=share <= GOAL,
                    )
    figures.end()


if __name__ == "__main__":
    main()
