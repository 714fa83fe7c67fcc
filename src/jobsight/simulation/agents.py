"""Simulated agents that send to a real server: the fleet of ``jobsight simulate agents``.

Some processes share the nodes. In each, one thread writes the batches of its nodes when they are
due, and some threads deliver them: the real spool, the real encoding and the real HTTP client, in
order for each node. On loopback every node has an address of its own, so that the limits of the
server apply to each as to a real one.
"""

from __future__ import annotations

import heapq
import ipaddress
import multiprocessing
import queue
import resource
import signal
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from jobsight.errors import JobsightError
from jobsight.simulation.nodes import (
    FIRST_LARGE_ID,
    Load,
    Node,
    Written,
    WrittenSpool,
    large_jobs_of,
)
from jobsight.transport.delivery import Answer, Delivery, HttpTarget
from jobsight.util.backoff import Backoff
from jobsight.util.durable import write_atomically

#: Threads of a process that send.
_SENDERS: Final = 8
#: Seconds between two reports of a process.
_REPORT: Final = 1.0
#: Latencies that a process keeps.
_MAX_LATENCIES: Final = 2_000_000
_MAX_REASONS: Final = 20
#: The file of what was written, in the directory of the spools.
LEDGER: Final = "written.jsonl"
#: Descriptors in addition to the locks of the spools.
_DESCRIPTORS: Final = 256


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """The server, and the directory of the spools."""

    url: str
    token_file: str
    directory: str


class Counts(msgspec.Struct, kw_only=True):
    """What became of the batches."""

    written: int = 0
    accepted: int = 0
    refused: int = 0
    #: Attempts that were answered "later" or not at all, by the first words of the reason.
    retried: int = 0
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    restarts: int = 0
    pending: int = 0

    def add(self, other: Counts) -> None:
        for name in ("written", "accepted", "refused", "retried", "restarts", "pending"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.reasons.items():
            if reason in self.reasons or len(self.reasons) < _MAX_REASONS:
                self.reasons[reason] = self.reasons.get(reason, 0) + count


class _End(NamedTuple):
    """What a process of the fleet says last."""

    #: Latencies in seconds, as the bytes of an array of doubles.
    latencies: bytes
    jobs: int
    cpu_s: float
    peak_memory: int


class Result(msgspec.Struct, kw_only=True):
    """The figures of a simulation."""

    counts: Counts
    jobs: int
    #: Seconds that an accepted batch took, from its place in the queue of senders to its receipt.
    median_s: float | None
    p99_s: float | None
    max_s: float | None
    elapsed_s: float
    #: CPU time of all processes of the simulation, which take it from a server on this machine.
    cpu_s: float
    #: The highest resident size of each process, added up.
    peak_memory_bytes: int


class _Timed:
    """A target whose answers are counted."""

    def __init__(self, target: HttpTarget, fleet: _Fleet) -> None:
        self._target = target
        self._fleet = fleet
        #: Monotonic time at which the delivery in progress was queued.
        self.queued = 0.0

    def send(self, data: bytes) -> Answer:
        answer = self._target.send(data)
        self._fleet.count(answer, time.monotonic() - self.queued)
        return answer


class _Sender:
    """The delivery of one node."""

    def __init__(self, node: Node, target: _Timed) -> None:
        self.node = node
        self.target = target
        self.backoff = Backoff(1.0, 30.0)
        #: Queued or being delivered.
        self.busy = False
        #: Monotonic time until which the node cannot reach the server.
        self.away_until = 0.0


class _Fleet:
    """The nodes of one process."""

    def __init__(self, load: Load, where: Where, indexes: Sequence[int]) -> None:
        self._load = load
        self._directory = Path(where.directory)
        self.counts = Counts()
        self.latencies: array[float] = array("d")
        self._mutex = threading.Lock()
        self._work: queue.SimpleQueue[_Sender | None] = queue.SimpleQueue()
        self._retries: list[tuple[float, int, _Sender]] = []
        self._senders = [
            _Sender(
                Node(index, load, self._directory),
                _Timed(HttpTarget(where.url, Path(where.token_file), source=_source(where, index)),
                       self),
            )
            for index in indexes
        ]  # fmt: skip
        self._ended: list[Written] = []
        self.stopped = threading.Event()

    def count(self, answer: Answer, seconds: float) -> None:
        with self._mutex:
            counts = self.counts
            if answer.stored:
                counts.accepted += 1
                if len(self.latencies) < _MAX_LATENCIES:
                    self.latencies.append(seconds)
                return
            counts.refused += answer.refused
            counts.retried += not answer.refused
            reason = answer.reason[:80]
            if reason in counts.reasons or len(counts.reasons) < _MAX_REASONS:
                counts.reasons[reason] = counts.reasons.get(reason, 0) + 1

    def run(self, report: Callable[[Counts], None], drain: float) -> None:
        threads = [threading.Thread(target=self._deliver, daemon=True) for _ in range(_SENDERS)]
        for thread in threads:
            thread.start()
        large = large_jobs_of(self._load)
        now = time.time_ns()
        begun = time.monotonic()
        due: list[tuple[float, int]] = []
        for place, sender in enumerate(self._senders):
            sender.node.start(now, large.get(sender.node.index, ()))
            # Agents of a cluster do not send at the same moment.
            due.append((begun + self._load.every * (place + 1) / len(self._senders), place))
        heapq.heapify(due)
        self._plan_outages(begun)
        end, reported = begun + self._load.duration, 0.0
        while not self.stopped.is_set():
            moment = time.monotonic()
            if moment - reported >= _REPORT:
                report(self._snapshot())
                reported = moment
            self._retry(moment)
            if moment >= end or not due:
                break
            if due[0][0] > moment:
                self.stopped.wait(min(due[0][0] - moment, 0.2))
                continue
            planned, place = heapq.heappop(due)
            self._tick(self._senders[place])
            heapq.heappush(due, (planned + self._load.every, place))
        self._drain(report, drain)
        for _ in threads:
            self._work.put(None)
        for thread in threads:
            thread.join(30.0)

    def _plan_outages(self, begun: float) -> None:
        step = int(1 / self._load.outages) if self._load.outages > 0 else 0
        for sender in self._senders:
            if step and sender.node.index % step == step - 1:
                sender.away_until = begun + self._load.duration / 3

    def _tick(self, sender: _Sender) -> None:
        with self._mutex:
            idle = not sender.busy
        if idle and sender.node.maybe_restart():
            self.counts.restarts += 1
        self._ended += sender.node.tick(time.time_ns())
        self.counts.written += 1
        self._queue(sender)

    def _queue(self, sender: _Sender) -> None:
        with self._mutex:
            if sender.busy or time.monotonic() < sender.away_until:
                return
            sender.busy = True
        # A batch also waits while all senders are busy: that belongs to its latency.
        sender.target.queued = time.monotonic()
        self._work.put(sender)

    def _retry(self, moment: float) -> None:
        with self._mutex:
            ready = []
            while self._retries and self._retries[0][0] <= moment:
                ready.append(heapq.heappop(self._retries)[2])
        for sender in ready:
            self._queue(sender)

    def _deliver(self) -> None:
        while (sender := self._work.get()) is not None:
            delivery = Delivery(sender.node.spool, sender.target)
            try:
                done = delivery.deliver()
            except OSError as error:
                done = False
                delivery.fail(f"the spool cannot be read: {error.strerror}")
            with self._mutex:
                sender.busy = False
                if done:
                    sender.backoff.reset()
                else:
                    delay = delivery.wait or sender.backoff.fail()
                    place = (time.monotonic() + delay, sender.node.index, sender)
                    heapq.heappush(self._retries, place)

    def _drain(self, report: Callable[[Counts], None], seconds: float) -> None:
        """Deliver what is pending."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(len(each.node.spool) for each in self._senders):
            for sender in self._senders:
                sender.away_until = 0.0
                if len(sender.node.spool) and not any(sender is each for *_, each in self._retries):
                    self._queue(sender)
            self._retry(time.monotonic())
            report(self._snapshot())
            time.sleep(0.5)

    def _snapshot(self) -> Counts:
        with self._mutex:
            counts = msgspec.structs.replace(self.counts, reasons=dict(self.counts.reasons))
        counts.pending = sum(len(sender.node.spool) for sender in self._senders)
        return counts

    def close(self) -> list[Written | WrittenSpool]:
        """Close the spools; what was written."""
        rows: list[Written | WrittenSpool] = list(self._ended)
        for sender in self._senders:
            rows += sender.node.running()
            rows.append(sender.node.close())
        return rows


def _source(where: Where, index: int) -> str | None:
    """An address of its own for each node, if the server is on IPv4 loopback."""
    host = urlsplit(where.url).hostname or ""
    host = "127.0.0.1" if host == "localhost" else host
    if not _is_loopback(host) or ":" in host:
        return None
    number = (64 << 16) + index + 1
    return f"127.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_server(url: str, *, remote: bool) -> None:
    """Refuse a server of others: simulated batches are stored like real ones."""
    if not remote and not _is_loopback(urlsplit(url).hostname or ""):
        raise JobsightError(
            f"{url} is not on loopback, and simulated jobs would be stored there; "
            "--remote sends them all the same"
        )


def _work(load: Load, where: Where, indexes: Sequence[int], drain: float, results: Any) -> None:
    """A process of the fleet."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fleet = _Fleet(load, where, indexes)
    signal.signal(signal.SIGTERM, lambda *_: fleet.stopped.set())
    first = indexes[0]
    try:
        fleet.run(lambda counts: results.put((first, counts, None)), drain)
    finally:
        rows = fleet.close()
    file = Path(where.directory) / f"{LEDGER}.{first}"
    write_atomically(file, b"".join(msgspec.json.encode(row) + b"\n" for row in rows), sync=False)
    jobs = len(
        {
            row.job_id
            for row in rows
            if isinstance(row, Written) and row.samples and row.job_id < FIRST_LARGE_ID
        }
    )
    usage = resource.getrusage(resource.RUSAGE_SELF)
    end = _End(
        bytes(fleet.latencies), jobs, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    )
    results.put((first, fleet._snapshot(), end))


def simulate(
    load: Load,
    where: Where,
    *,
    processes: int = 2,
    drain: float = 120.0,
    progress: Callable[[float, Counts], None] | None = None,
) -> Result:
    """Run a fleet against a server; the directory then holds its spools and what was written."""
    directory = Path(where.directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (directory / LEDGER).exists():
        raise JobsightError(f"{directory} has the spools of another simulation; expected a new one")
    _raise_limit(load.nodes // max(processes, 1) + _DESCRIPTORS)
    context = multiprocessing.get_context("spawn")
    results: Queue[Any] = context.Queue()
    shares = [range(first, load.nodes, processes) for first in range(min(processes, load.nodes))]
    children = [
        context.Process(target=_work, args=(load, where, share, drain, results), daemon=True)
        for share in shares
    ]
    begun = time.monotonic()
    for child in children:
        child.start()
    latest: dict[int, Counts] = {}
    ended: dict[int, _End] = {}
    try:
        while len(ended) < len(children):
            try:
                first, counts, end = results.get(timeout=1.0)
            except queue.Empty:
                _check_alive(children, latest, ended, shares)
                continue
            except KeyboardInterrupt:
                for child in children:
                    child.terminate()
                continue
            latest[first] = counts
            if end is not None:
                ended[first] = end
            if progress is not None:
                progress(time.monotonic() - begun, _sum(latest.values()))
    finally:
        for child in children:
            child.join(60.0)
            if child.is_alive():
                child.kill()
    _join_ledgers(directory, [share[0] for share in shares])
    seconds: array[float] = array("d")
    for process in ended.values():
        seconds.frombytes(process.latencies)
    ordered = sorted(seconds)
    return Result(
        counts=_sum(latest.values()),
        # A job on many nodes is one, though several processes have parts of it.
        jobs=sum(process.jobs for process in ended.values()) + load.large_jobs,
        median_s=_quantile(ordered, 0.5),
        p99_s=_quantile(ordered, 0.99),
        max_s=ordered[-1] if ordered else None,
        elapsed_s=time.monotonic() - begun,
        cpu_s=sum(process.cpu_s for process in ended.values()),
        peak_memory_bytes=sum(process.peak_memory for process in ended.values()),
    )


def _check_alive(
    children: Sequence[Any],
    latest: dict[int, Counts],
    ended: dict[int, _End],
    shares: Sequence[range],
) -> None:
    for child, share in zip(children, shares, strict=True):
        if child.exitcode not in (None, 0) and share[0] not in ended:
            raise JobsightError(
                f"a process of the simulation ended with exit code {child.exitcode}; "
                "its error is printed above"
            )


def _sum(parts: Any) -> Counts:
    total = Counts()
    for part in parts:
        total.add(part)
    return total


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else None


def _raise_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise JobsightError(
                f"{wanted:,} open files are needed and {hard:,} are allowed; "
                "run `ulimit -Hn`, or use more --processes"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _join_ledgers(directory: Path, firsts: Sequence[int]) -> None:
    files = [directory / f"{LEDGER}.{first}" for first in firsts]
    write_atomically(
        directory / LEDGER,
        b"".join(file.read_bytes() for file in files if file.exists()),
        sync=False,
    )
    for file in files:
        file.unlink(missing_ok=True)


def reasons_of(counts: Counts) -> list[tuple[str, int]]:
    """Why attempts failed, the most frequent first."""
    return Counter(counts.reasons).most_common(5)
