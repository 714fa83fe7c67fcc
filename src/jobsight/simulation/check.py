"""Compare what simulated agents have written with what a store has: nothing lost, nothing doubled.

Both ends are counted independently: the ledger of the agents has the sequence numbers of each spool
and, for each job and node, samples, CPU time and executions; the store has intervals of received
numbers, time series, totals and executables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from jobsight.errors import JobsightError
from jobsight.simulation.agents import LEDGER
from jobsight.simulation.nodes import CLUSTER, Written, WrittenSpool
from jobsight.store.read.received import received_batches, runs_of_cluster
from jobsight.store.store import Store

#: Differences that are listed.
_MAX_LISTED: Final = 20


class Checked(msgspec.Struct, kw_only=True):
    """The result of a comparison."""

    batches: int = 0
    jobs: int = 0
    samples: int = 0
    #: Batches that the spools had to drop, or still hold, and say so.
    dropped: int = 0
    refused: int = 0
    pending: int = 0
    #: How many of each kind: "batches lost", "samples doubled" ...
    differences: dict[str, int] = msgspec.field(default_factory=dict)
    #: Sentences about the first ones.
    listed: list[str] = msgspec.field(default_factory=list)

    def differ(self, kind: str, count: int, sentence: str) -> None:
        self.differences[kind] = self.differences.get(kind, 0) + count
        if len(self.listed) < _MAX_LISTED:
            self.listed.append(sentence)


class _Row(msgspec.Struct, kw_only=True):
    """A line of the ledger: of a spool or of a job."""

    node: str
    spool: str | None = None
    last: int = 0
    first: int = 1
    dropped: int = 0
    refused: int = 0
    pending: int = 0
    job_id: int = 0
    birth: int = 0
    samples: int = 0
    cpu_time: int = 0
    executions: int = 0
    final: bool = False


def read_ledger(directory: Path) -> Iterator[Written | WrittenSpool]:
    """What the agents of a simulation have written."""
    file = directory / LEDGER
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise JobsightError(
            f"{file} cannot be read: {error.strerror}; expected the directory of a simulation"
        ) from None
    for number, line in enumerate(lines, 1):
        try:
            row = msgspec.json.decode(line, type=_Row)
        except msgspec.DecodeError as error:
            raise JobsightError(f"{file}:{number}: {error}") from None
        fields = msgspec.structs.asdict(row)
        kind: type[Written] | type[WrittenSpool] = Written if row.spool is None else WrittenSpool
        yield kind(**{name: fields[name] for name in kind.__struct_fields__})


def check(directory: Path, store: Store) -> Checked:
    """Compare the ledger of a simulation with a store."""
    return compare(read_ledger(directory), store)


def compare(rows: Iterable[Written | WrittenSpool], store: Store) -> Checked:
    """Compare what agents have written with a store. Of a node whose spool is known and whose jobs
    are not, because its agent was killed, only the batches are compared."""
    result = Checked()
    expected: dict[tuple[int, str], Written] = {}
    incomplete: set[str] = set()
    received = received_batches(store.database, CLUSTER)
    nodes: set[str] = set()
    for row in rows:
        nodes.add(row.node)
        if isinstance(row, WrittenSpool):
            if row.dropped or row.refused or row.pending:
                incomplete.add(row.node)
            _check_spool(result, row, received.pop((row.node, row.spool), []))
        else:
            expected[row.job_id, row.node] = row
    for node, spool in received:
        result.differ("unknown spools", 1, f"{node}: the store has the unknown spool {spool}")
    incomplete |= nodes - {node for _, node in expected}
    _check_jobs(result, expected, store, incomplete)
    return result


def _check_spool(result: Checked, written: WrittenSpool, intervals: list[tuple[int, int]]) -> None:
    stored = sum(last - first + 1 for first, last in intervals)
    known = written.dropped + written.refused + written.pending
    result.batches += stored
    result.dropped += written.dropped
    result.refused += written.refused
    result.pending += written.pending
    beyond = max((last for _, last in intervals), default=0) - written.last
    if beyond > 0:
        sentence = f"{written.node}: the store has numbers beyond {written.last}"
        result.differ("batches unknown", beyond, sentence)
    count = written.last - written.first + 1
    # A batch that is pending or was dropped may be stored: its receipt was lost or came too late.
    if stored + known < count:
        sentence = f"{written.node}: {stored} of {count} batches are stored, {known} counted"
        result.differ("batches lost", count - stored - known, sentence)
    elif stored > count:
        sentence = f"{written.node}: {stored} batches are stored, {count} were written"
        result.differ("batches doubled", stored - count, sentence)


def _check_jobs(
    result: Checked,
    expected: dict[tuple[int, str], Written],
    store: Store,
    incomplete: set[str],
) -> None:
    seen: Counter[tuple[int, str]] = Counter()
    for run_id, job_id in runs_of_cluster(store.database, CLUSTER):
        result.jobs += 1
        executions: Counter[str] = Counter()
        cpu: Counter[str] = Counter()
        for part in store.executables(run_id):
            executions[part.node] += part.use.executions
            cpu[part.node] += part.use.cpu_time
        samples: Counter[str] = Counter()
        for series in store.series_by_node(run_id, ["cpu.time"]):
            samples[series.node] += len(series.times)
        for node in store.nodes(run_id):
            key = (job_id, node.node)
            seen[key] += 1
            wanted = expected.get(key)
            result.samples += samples[node.node]
            if wanted is None and node.node in incomplete:
                continue
            if wanted is None:
                result.differ("jobs unknown", 1, f"{node.node}: nobody wrote job {job_id}")
            elif node.node not in incomplete:
                totals = node.totals.cpu_time if node.totals else None
                have = (samples[node.node], totals, cpu[node.node], executions[node.node])
                _compare(result, wanted, have, final=node.final)
    for key, count in seen.items():
        if count > 1:
            result.differ("jobs doubled", count - 1, f"{key[1]}: job {key[0]} is stored {count} x")
    for key, wanted in expected.items():
        if key not in seen and wanted.samples and key[1] not in incomplete:
            result.differ("jobs lost", 1, f"{key[1]}: job {key[0]} is not stored")


def _compare(
    result: Checked,
    wanted: Written,
    have: tuple[int, int | None, int, int],
    *,
    final: bool,
) -> None:
    names = ("samples", "CPU time", "CPU time of programs", "executions")
    wants = (wanted.samples, wanted.cpu_time, wanted.cpu_time, wanted.executions)
    for name, want, got in zip(names, wants, have, strict=True):
        if want != got:
            kind = f"{name} {'doubled' if (got or 0) > want else 'lost'}"
            sentence = f"{wanted.node}: job {wanted.job_id} has {name} {got}, written {want}"
            result.differ(kind, 1, sentence)
    if final != wanted.final:
        result.differ("ends lost", 1, f"{wanted.node}: job {wanted.job_id} has not ended there")
