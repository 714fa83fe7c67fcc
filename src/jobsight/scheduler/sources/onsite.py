"""Source ``onsite``: the document of the on-site script, from a file or from a command over SSH."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jobsight.model import JobInfo
from jobsight.scheduler.adapters import squeue
from jobsight.scheduler.adapters.policy import Policy
from jobsight.scheduler.adapters.sacct import REQUIRED, jobs_from_rows
from jobsight.scheduler.adapters.sinfo import nodes_from_rows, partitions_from_rows
from jobsight.scheduler.records import (
    AdaptError,
    Jobs,
    Nodes,
    Partitions,
    SourceError,
    single_cluster,
)
from jobsight.scheduler.sources.commands import iterate_records
from jobsight.scheduler.sources.onsite_script import FORMAT, NODES, PARTITIONS, SQUEUE
from jobsight.util.decoding import decode_json_as

Row = dict[str, str]


class _Reply(msgspec.Struct):
    name: str
    columns: list[str]
    mark: str
    output: str = ""
    reason: str = ""


class _Document(msgspec.Struct):
    format: str
    written: int
    replies: list[_Reply]


class OnsiteSource:
    """The output of the on-site script, fetched once in each scrape round."""

    name = "onsite"
    whole = True

    def __init__(self, cluster: str, fetch: Callable[[], bytes]) -> None:
        self._cluster = cluster
        self._fetch = fetch
        self._replies: dict[str, _Reply] = {}

    def probe(self) -> str:
        self._refresh()
        answered = [name for name, reply in self._replies.items() if not reply.reason]
        if not answered:
            raise SourceError("; ".join(reply.reason for reply in self._replies.values()))
        return f"the on-site scraper answers with {', '.join(answered)}"

    def cluster_name(self) -> str | None:
        """That of the accounting's records; the document has no other name."""
        return single_cluster(jobs_from_rows(self._rows("sacct", REQUIRED), "", "sacct"))

    def queue(self) -> Jobs:
        # The first query of a round fetches the replies to all others.
        self._refresh()
        rows = self._rows("squeue", SQUEUE)
        return squeue.jobs_from_rows(rows, self._cluster, self.name)

    def accounting(self, since: int, until: int) -> Jobs:
        return self._accounting(lambda info: info.end is None or info.end >= since)

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        wanted = set(job_ids)
        return self._accounting(lambda info: info.job_id in wanted)

    def _accounting(self, wanted: Callable[[JobInfo], bool]) -> Jobs:
        jobs = jobs_from_rows(self._rows("sacct", REQUIRED), self._cluster, "sacct")
        return Jobs((record for record in jobs if wanted(record.info)), jobs.problems)

    def nodes(self) -> Nodes:
        return nodes_from_rows(self._rows("nodes", NODES[:3]), self._cluster)

    def policy(self) -> Policy:
        return Policy()

    def partitions(self) -> Partitions:
        return partitions_from_rows(self._rows("partitions", PARTITIONS[:2]), self._cluster)

    def _refresh(self) -> None:
        self._replies = {reply.name: reply for reply in read_document(self._fetch()).replies}

    def _rows(self, name: str, needed: Sequence[str] | frozenset[str]) -> Iterator[Row]:
        if not self._replies:
            self._refresh()
        reply = self._replies.get(name)
        if reply is None or reply.reason:
            raise SourceError(
                reply.reason if reply else f"the document of the on-site script has no {name}"
            )
        missing = set(needed) - set(reply.columns)
        if missing - squeue.OPTIONAL_COLUMNS:
            raise AdaptError(f"{name} lacks the columns {', '.join(sorted(missing))}")
        return _named(reply, _EMPTY[name])


def read_document(data: bytes) -> _Document:
    """The output of the on-site script; AdaptError if it is something else."""
    try:
        document = decode_json_as(_Document, data)
    except msgspec.DecodeError as error:
        begin = " ".join(data[:60].decode("utf-8", "replace").split())
        raise AdaptError(f"the on-site scraper gave {begin!r}: {error}") from None
    if document.format != FORMAT:
        raise AdaptError(
            f"{document.format!r} is not a format of the on-site script; copy the script again"
        )
    return document


def _named(reply: _Reply, empty: Mapping[str, str]) -> Iterator[Row]:
    chunks = [reply.output.encode("utf-8", "surrogatepass")]
    for row in iterate_records(chunks, reply.mark, len(reply.columns), reply.name):
        yield {**empty, **dict(zip(reply.columns, row, strict=True))}


_EMPTY: dict[str, dict[str, str]] = {
    "sacct": {},
    "squeue": dict.fromkeys(SQUEUE, ""),
    "nodes": dict.fromkeys(NODES, ""),
    "partitions": dict.fromkeys(PARTITIONS, ""),
}


def from_file(file: Path) -> Callable[[], bytes]:
    """Reads a file that another program writes, for each round."""

    def fetch() -> bytes:
        try:
            return file.read_bytes()
        except OSError as error:
            raise SourceError(f"{file}: cannot be read: {error.strerror}") from None

    return fetch


def from_command(run: Any, timeout: float, history: float) -> Callable[[], bytes]:
    """Runs the script from the standard input of a remote Python; no copy is needed there."""
    script = (
        importlib.resources.files("jobsight.scheduler.sources") / "onsite_script.py"
    ).read_bytes()
    hours = history * 24
    command = ["python3", "-", "--since-hours", f"{hours:g}", "--timeout", f"{timeout:g}"]
    # The script runs its commands one after the other.
    return lambda: b"".join(run(command, 6 * timeout, given=script))
