"""Batches of a node that has the token of its cluster: small on the wire, large in their effect.

:data:`KINDS` are the batches; the number of the threat in docs/security.md stands at each. They
claim job ids from :data:`FIRST_JOB` on, so that they meet no honest job of the same cluster: what a
node says of a job of its own cluster is believed, as far as a node can know it.
"""

from __future__ import annotations

import copy
import http.client
import math
import sys
import time
import uuid
from array import array
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from jobsight.metrics import NODE_METRICS
from jobsight.model import (
    MISSING,
    SECOND,
    Batch,
    Coverage,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
)
from jobsight.transport import wire
from tests.hostile.attacks.common import Attack, Pace, add_address, main, parser
from tests.server.damage import holder, opened, packed, places

DAY = 86400 * SECOND
FIRST_JOB = 1_000_000
EXACT = Coverage(quality="exact")
#: A job of which the scheduler has spoken, and whose record hostile nodes want to change.
SCHEDULED_JOB = 99


class Sender:
    """A hostile node: who it says it is, and what it sends next."""

    def __init__(self, random: Random, cluster: str, jobs: int = 200, now: int = 0) -> None:
        self.random = random
        self.cluster = cluster
        self.jobs = jobs
        self.now = now or time.time_ns()
        self._spool = str(uuid.UUID(int=random.getrandbits(128)))
        self._sequence = 0

    def batch(self, *, job_id: int | None = None, **info: Any) -> Batch:
        """A batch of one job that ran for a minute until now, changed by what a kind wants."""
        random = self.random
        self._sequence += 1
        job = job_id if job_id is not None else FIRST_JOB + random.randrange(self.jobs)
        node = f"h{random.randrange(8)}"
        start = self.now - 60 * SECOND
        fields: dict[str, Any] = {
            "name": "hostile",
            "user": "mallory",
            "account": "physics",
            "nodes": (node,),
            "cpus": 4,
            "start": start,
            "end": self.now,
            "state": "COMPLETED",
            "source": "prolog",
        }
        part = JobPart(
            sighting=Sighting(self.cluster, job, node, "boot", start),
            epoch=f"epoch{random.randrange(3)}",
            series=Series(
                array("q", [start, self.now]), {"cpu.time": array("q", [0, 60 * SECOND])}
            ),
            totals=JobTotals(time=self.now, cpu_source="cgroup v1", cpu_time=60 * SECOND),
            executables=[ExecutableUse(path=b"/usr/bin/sleep", executions=1, cpu_time=SECOND)],
            coverage={"cpu": EXACT, "executables": EXACT},
            final=random.random() < 0.5,
        )
        return Batch(
            cluster=self.cluster,
            node=node,
            spool=self._spool,
            sequence=self._sequence,
            written=self.now,
            monotonic=self._sequence,
            agent="hostile",
            jobs=[JobInfo(cluster=self.cluster, job_id=job, **(fields | info))],
            parts=[part],
        )

    def next(self, kind: str) -> bytes:
        """An encoded batch of a kind."""
        made = KINDS[kind](self)
        return made if isinstance(made, bytes) else wire.encode(made)


def _uses(count: int, path: str) -> list[ExecutableUse]:
    return [
        ExecutableUse(path=path.format(number).encode(), executions=1, cpu_time=SECOND + number)
        for number in range(count)
    ]


def long_run(sender: Sender) -> Batch:
    """S-01: ten years with 10,000 executables."""
    made = sender.batch(start=sender.now - 3659 * DAY, end=sender.now)
    made.parts[0].executables = _uses(10_000, "/opt/p{}")
    return made


def long_run_in_bounds(sender: Sender) -> Batch:
    """S-01: as long as any limit on the start may allow, again and again."""
    made = sender.batch(start=sender.now - sender.random.randrange(30, 400) * DAY)
    made.parts[0].executables = _uses(10_000, "/opt/p{}")
    return made


def huge_numbers(sender: Sender) -> Batch:
    """S-02: sums over days or runs exceed 63 bits."""
    random = sender.random
    made = sender.batch(
        cpus=random.choice((2**24, 2**31, 2**62, 2**63 - 1, -1)),
        memory=random.choice((2**50, 2**63 - 1)),
        gpus=random.choice((None, 2**24)),
        start=sender.now - random.choice((1, 12)) * DAY,
    )
    part = made.parts[0]
    assert part.totals is not None
    part.totals.cpu_time = random.choice((2**62, 2**63 - 1, MISSING))
    part.executables[0].cpu_time = random.choice((2**62, 2**63 - 1))
    return made


def long_texts(sender: Sender) -> Batch:
    """S-02, S-07: texts that do not fit an index, or that a list shows."""
    size = sender.random.choice((300, 2_000, 2 * 2**20))
    letter = sender.random.choice(("a", "é", "\U0001f680"))
    field = sender.random.choice(("name", "user", "account", "partition", "command", "qos"))
    return sender.batch(**{field: letter * size})


def many_names(sender: Sender) -> Batch:
    """S-03: 10,000 names of software in one job."""
    made = sender.batch(start=sender.now - 7 * DAY)
    first = sender.random.randrange(100) * 10_000
    made.parts[0].executables = [
        ExecutableUse(
            path=f"/home/m/miniconda3/envs/e{first + number:06}/bin/p".encode(),
            executions=1,
            cpu_time=SECOND,
        )
        for number in range(10_000)
    ]
    return made


def many_nodes(sender: Sender) -> Batch:
    """S-07: a list of nodes without end."""
    count = sender.random.choice((16_384, 100_000))
    return sender.batch(nodes=tuple(f"n{number}" for number in range(count)))


def many_resources(sender: Sender) -> Batch:
    """S-07: resources without end."""
    return sender.batch(tres={f"gres/g{number}": number for number in range(20_000)})


def large_series(sender: Sender) -> Batch:
    """S-07: megabytes of zeros that compress to nothing, in many time series of one run."""
    made = sender.batch(job_id=FIRST_JOB, end=None, state="RUNNING")
    rows = sender.random.choice((10_000, 200_000))
    times = array("q", range(sender.now - rows, sender.now))
    zeros = array("q", bytes(8 * rows))
    columns = {f"m{number}": zeros for number in range(8)} | {"cpu.time": zeros}
    made.parts[0].series = Series(times, columns)
    made.parts[0].final = False
    return made


def midnights(sender: Sender) -> Batch:
    """S-07: CPU time over many days in random steps, which rollups split by day."""
    made = sender.batch(start=sender.now - 20 * DAY)
    rows = 20_000
    step = 20 * DAY // rows
    values = sorted(sender.random.randrange(2**50) for _ in range(rows))
    times = array("q", [sender.now - (rows - row) * step for row in range(rows)])
    made.parts[0].series = Series(times, {"cpu.time": array("q", values)})
    return made


def not_finite(sender: Sender) -> Batch:
    """S-11: NaN and infinity in shares and columns."""
    value = sender.random.choice((math.nan, math.inf, -math.inf, 1e308, -1.0))
    made = sender.batch()
    part = made.parts[0]
    part.coverage = {
        "cpu": Coverage(quality="exact", time_share=value),
        "executables": Coverage(quality="estimate", cpu_share=value, reason="x" * 200),
    }
    part.series = Series(
        array("q", [sender.now - SECOND, sender.now]),
        {"cpu.time": array("d", [value, value]), "memory.used": array("d", [0.0, value])},
    )
    return made


#: Columns that no node has, and two that one may have.
_COLUMNS_OF_NODE: tuple[array[int] | array[float], ...] = (
    array("d", (0.0, math.inf)),
    array("d", (0.0, 1e300)),
    array("d", (math.nan, -math.inf)),
    array("q", (-(2**63) + 1, 2**63 - 1)),
    array("q", (0, 2**63 - 1)),
    array("q", (MISSING, 2**62)),
)


def node_series(sender: Sender) -> Batch:
    """S-30: time series of the node itself: extremes, hundreds of days, late parts of one row, and
    as much as a batch may have."""
    random = sender.random
    made = sender.batch()
    made.jobs, made.parts = [], []
    names = sorted(NODE_METRICS)
    match random.randrange(4):
        case 0:
            # Of a day that is over, so that its sums are computed.
            times = [sender.now - random.randrange(1, 390) * DAY + row for row in range(2)]
            columns = {name: random.choice(_COLUMNS_OF_NODE) for name in names}
        case 1:
            first = random.randrange(1, 380)
            times = [sender.now - (first + day) * DAY for day in range(8)]
            columns = {name: array("q", range(8)) for name in names}
        case 2:
            times = [sender.now - random.choice((1, 2, 300)) * DAY + random.randrange(DAY)]
            columns = {"node.cpu.user": array("q", [random.randrange(2**60)])}
        case _:
            rows = 4096
            times = [sender.now - DAY - (rows - row) * SECOND for row in range(rows)]
            columns = {name: array("q", bytes(8 * rows)) for name in names}
    made.node_series = Series(array("q", times), columns)
    return made


def as_scheduler(sender: Sender) -> Batch:
    """S-13: what only the scheduler knows, about a job that it has reported."""
    return sender.batch(
        job_id=SCHEDULED_JOB,
        source=sender.random.choice(("slurmdbd", "slurmctld", "sacct", "rest", "prolog")),
        user="mallory",
        account="proj-b",
        state="FAILED",
    )


def as_another_cluster(sender: Sender) -> Batch:
    """A foreign cluster in the envelope, in a part or in a record."""
    made = sender.batch()
    match sender.random.randrange(3):
        case 0:
            made.cluster = "beta"
        case 1:
            made.jobs[0].cluster = "beta"
        case _:
            part = made.parts[0]
            part.sighting = Sighting("beta", 1, "n1", "boot", sender.now)
    return made


def odd_names(sender: Sender) -> Batch:
    """S-23, S-24: formulas, host names that lead elsewhere, markup, terminal sequences."""
    text = sender.random.choice(
        (
            "=HYPERLINK(1)",
            "+1+cmd|calc",
            "@SUM(1)",
            "<script>alert(1)</script>",
            "' OR 1=1--",
            "\x1b[2J",
            "\u202egnp",
            "../../etc",
        )
    )
    made = sender.batch(name=text, user=text)
    made.node = sender.random.choice(("169.254.169.254:9306", "evil.example.org", "h1", "-h"))
    made.parts[0].executables = [ExecutableUse(path=text.encode(), executions=1)]
    return made


#: Values that are wrong in most places and right in some.
STRANGE: tuple[object, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, MISSING),
    *(1.5, math.nan, math.inf, 1e308, "", "a\nb", "\x00", "x" * 300, "alpha", "beta", "exact"),
    *(b"", b"\xff" * 10, b"x" * 70_000, [], {}, [[[[[[]]]]]], {"a": {"b": {}}}, ["a", "q"]),
)


def mutation(sender: Sender) -> bytes:
    """Values of the header are others or gone, the columns do not fit, or bytes are flipped."""
    random = sender.random
    tree, columns = opened(sender.batch())
    for _ in range(random.randint(1, 3)):
        way = random.choice(places(tree))
        inner, last = holder(tree, way), way[-1]
        if random.random() < 0.8:
            inner[last] = copy.deepcopy(random.choice(STRANGE))
        else:
            del inner[last]
    data = bytearray(packed(tree, columns[: random.choice((len(columns), len(columns), 0, 17))]))
    if random.random() < 0.2:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data[: random.choice((len(data), len(data), len(data) // 2))])


KINDS: dict[str, Callable[[Sender], Batch | bytes]] = {
    kind.__name__.replace("_", "-"): kind
    for kind in (
        *(long_run, long_run_in_bounds, huge_numbers, long_texts, many_names, many_nodes),
        *(many_resources, large_series, midnights, not_finite, as_scheduler, as_another_cluster),
        *(node_series, odd_names, mutation),
    )
}


def attack(running: Attack) -> None:
    options = running.options
    token = options.token_file.read_text().strip()
    sender = Sender(running.random, options.cluster, options.jobs)
    kinds = sorted(options.kind or KINDS)
    # Random mutations are cheap and find most, so half of the batches are such.
    weights = [len(kinds) if kind == "mutation" else 1 for kind in kinds]
    pace = Pace(running, options.rate)
    while running.goes_on():
        (kind,) = running.random.choices(kinds, weights)
        sender.now = time.time_ns()
        status = _post(options, token, sender.next(kind))
        running.counts[f"{kind}: {status}"] += 1
        pace.wait()


def _post(options: Any, token: str, data: bytes) -> str:
    connection = http.client.HTTPConnection(
        "127.0.0.1", options.port, timeout=30, source_address=(options.source, 0)
    )
    try:
        connection.request("POST", "/api/v1/batches", data, {"Authorization": f"Bearer {token}"})
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


if __name__ == "__main__":
    made = parser(__doc__)
    add_address(made)
    made.add_argument("--token-file", type=Path, required=True)
    made.add_argument("--cluster", default="alpha", help="default: %(default)s")
    made.add_argument("--kind", action="append", choices=sorted(KINDS), help="default: all")
    made.add_argument("--jobs", type=int, default=200, help="job ids that are claimed")
    made.add_argument("--rate", type=float, default=20, help="batches a second")
    sys.exit(main(attack, made, sys.argv[1:]))
