"""Source ``recorded``: a directory of replies that were recorded on another machine or kept.

The name of a file begins with the command that wrote it: ``sacct*``, ``squeue*``, ``sinfo*``; or,
from slurmrestd, ``slurmdb-job*``, ``slurm-job*``, ``slurm-node*``, ``slurm-partition*``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jobsight.model import JobInfo
from jobsight.scheduler.adapters.json import adapt_nodes, adapt_partitions, decode_json, stream_jobs
from jobsight.scheduler.adapters.policy import Policy
from jobsight.scheduler.adapters.sacct import jobs_from_rows
from jobsight.scheduler.records import (
    JobRecord,
    Jobs,
    Nodes,
    NoList,
    Partitions,
    SourceError,
    join_jobs,
    single_cluster,
)
from jobsight.scheduler.sources.commands import iterate_records
from jobsight.scheduler.sources.json import partitions_of
from jobsight.scheduler.sources.replies import JSON, ROWS, read_chunks, read_rows


class RecordedSource:
    """All replies of a directory, read again for each query."""

    name = "recorded"
    whole = True

    def __init__(self, cluster: str, directory: Path | str) -> None:
        self._cluster = cluster
        self._directory = Path(directory)

    def probe(self) -> str:
        count = len(self._files(""))
        if not count:
            raise SourceError(
                f"the directory {self._directory} holds no recorded replies; expected files "
                f"*.json, *{JSON} or *{ROWS}"
            )
        return f"{count} recorded replies in {self._directory}"

    def cluster_name(self) -> str | None:
        """That of the recorded jobs."""
        self.probe()
        unnamed = RecordedSource("", self._directory)
        return single_cluster(unnamed.accounting(0, 2**62)) or single_cluster(unnamed.queue())

    def queue(self) -> Jobs:
        # The first query of a round: a directory without replies is an error, not an idle cluster.
        self.probe()
        return self._jobs(("squeue", "slurm-job", "scontrol"), "squeue")

    def accounting(self, since: int, until: int) -> Jobs:
        return self._accounting(
            lambda info: (
                (info.end is None or info.end >= since)
                and (info.start is None or info.start <= until)
            )
        )

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        wanted = set(job_ids)
        return self._accounting(lambda info: info.job_id in wanted)

    def _accounting(self, wanted: Callable[[JobInfo], bool]) -> Jobs:
        jobs = self._jobs(("sacct", "slurmdb-job"), "sacct")
        return Jobs((record for record in jobs if wanted(record.info)), jobs.problems)

    def nodes(self) -> Nodes:
        found = Nodes(records=[])
        for document in self._documents(("sinfo", "slurm-node"), "nodes"):
            part = adapt_nodes(document, self._cluster)
            found.records += part.records
            found.problems += part.problems
        return found

    def policy(self) -> Policy:
        return Policy()

    def partitions(self) -> Partitions:
        if not self._files("slurm-partition"):
            return partitions_of(self.nodes())
        found = Partitions(records=[])
        for document in self._documents(("slurm-partition",), "partitions"):
            part = adapt_partitions(document, self._cluster)
            found.records += part.records
            found.problems += part.problems
        return found

    def _jobs(self, names: tuple[str, ...], source: str) -> Jobs:
        return join_jobs(self._reply(file, source) for file in self._files(names))

    def _reply(self, file: Path, source: str) -> Jobs:
        if file.name.endswith(ROWS):
            layout, chunks = read_rows(file)
            columns = layout.columns
            rows = iterate_records(chunks, layout.delimiter, len(columns), file.name)
            named = (dict(zip(columns, row, strict=True)) for row in rows)
            return jobs_from_rows(named, self._cluster, source)
        reply = stream_jobs(read_chunks(file), file.name, self._cluster, source)
        return Jobs(_of_jobs(reply), reply.problems)

    def _documents(self, names: tuple[str, ...], key: str) -> Iterator[Any]:
        files = self._files(names)
        listed = 0
        for file in files:
            document = decode_json(b"".join(read_chunks(file)), file.name)
            if not isinstance(document, dict) or key in document:
                listed += 1
                yield document
        if files and not listed:
            raise NoList(f"no recorded reply of {', '.join(names)} has a list of {key}")

    def _files(self, names: tuple[str, ...] | str) -> list[Path]:
        matches: Callable[[Path], bool] = lambda file: file.name.startswith(names)  # noqa: E731
        found = (
            file for ending in (".json", JSON, ROWS) for file in self._directory.glob(f"*{ending}")
        )
        # The names of kept replies contain the time: the latest is read last and takes effect.
        return sorted(filter(matches, found))


def _of_jobs(reply: Jobs) -> Iterator[JobRecord]:
    """The jobs of a file; none if it holds other records."""
    with contextlib.suppress(NoList):
        yield from reply
