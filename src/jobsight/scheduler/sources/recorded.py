"""Replies that were recorded elsewhere or kept: a folder of files.

A file's name begins with the command that wrote it: ``sacct*``, ``squeue*``, ``sinfo*``, or as
from slurmrestd ``slurmdb-job*``, ``slurm-job*``, ``slurm-node*``, ``slurm-partition*``.
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
)
from jobsight.scheduler.sources.commands import iterate_records
from jobsight.scheduler.sources.json import partitions_of
from jobsight.scheduler.sources.replies import JSON, ROWS, read_chunks, read_rows


class RecordedSource:
    """Every JSON reply of a folder, read anew with each question."""

    name = "recorded"
    whole = True

    def __init__(self, cluster: str, folder: Path | str) -> None:
        self._cluster = cluster
        self._folder = Path(folder)

    def probe(self) -> str:
        found = len(self._files(""))
        if not found:
            raise SourceError(
                f"the folder {self._folder} holds no recorded replies (*.json, *{JSON}, *{ROWS})"
            )
        return f"{found} recorded replies in {self._folder}"

    def queue(self) -> Jobs:
        # The first question of a round: a folder without replies is no cluster without jobs.
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
            rows = iterate_records(chunks, layout.mark, len(columns), file.name)
            named = (dict(zip(columns, row, strict=True)) for row in rows)
            return jobs_from_rows(named, self._cluster, source)
        reply = stream_jobs(read_chunks(file), file.name, self._cluster, source)
        return Jobs(_of_jobs(reply), reply.problems)

    def _documents(self, names: tuple[str, ...], key: str) -> Iterator[Any]:
        for file in self._files(names):
            document = decode_json(b"".join(read_chunks(file)), file.name)
            if not isinstance(document, dict) or key in document:
                yield document

    def _files(self, names: tuple[str, ...] | str) -> list[Path]:
        matches: Callable[[Path], bool] = lambda file: file.name.startswith(names)  # noqa: E731
        found = (
            file for ending in (".json", JSON, ROWS) for file in self._folder.glob(f"*{ending}")
        )
        # Kept replies hold the time in their names: what came later is read later, and counts.
        return sorted(filter(matches, found))


def _of_jobs(reply: Jobs) -> Iterator[JobRecord]:
    """The jobs of a file, none where it is about something else."""
    with contextlib.suppress(NoList):
        yield from reply
