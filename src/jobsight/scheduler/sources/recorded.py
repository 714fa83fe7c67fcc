"""Replies that were recorded elsewhere: a folder of files, for sites where nothing may be asked.

A file's name begins with the command that wrote it: ``sacct*``, ``squeue*``, ``sinfo*``, or as
from slurmrestd ``slurmdb-job*``, ``slurm-job*``, ``slurm-node*``, ``slurm-partition*``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jobsight.scheduler.adapt import adapt_jobs, adapt_nodes, adapt_partitions, decode_json
from jobsight.scheduler.errors import SourceError
from jobsight.scheduler.records import Jobs, Nodes, Partitions


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
            raise SourceError(f"the folder {self._folder} holds no recorded replies (*.json)")
        return f"{found} recorded replies in {self._folder}"

    def queue(self) -> Jobs:
        return self._jobs(("squeue", "slurm-job", "scontrol"), "squeue")

    def accounting(self, since: int, until: int) -> Jobs:
        jobs = self._jobs(("sacct", "slurmdb-job"), "sacct")
        jobs.records = [
            record
            for record in jobs.records
            if (record.info.end is None or record.info.end >= since)
            and (record.info.start is None or record.info.start <= until)
        ]
        return jobs

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        jobs = self._jobs(("sacct", "slurmdb-job"), "sacct")
        wanted = set(job_ids)
        jobs.records = [record for record in jobs.records if record.info.job_id in wanted]
        return jobs

    def nodes(self) -> Nodes:
        found = Nodes(records=[])
        for document in self._documents(("sinfo", "slurm-node"), "nodes"):
            part = adapt_nodes(document, self._cluster)
            found.records += part.records
            found.problems += part.problems
        return found

    def partitions(self) -> Partitions:
        found = Partitions(records=[])
        for document in self._documents(("slurm-partition",), "partitions"):
            part = adapt_partitions(document, self._cluster)
            found.records += part.records
            found.problems += part.problems
        return found

    def _jobs(self, names: tuple[str, ...], source: str) -> Jobs:
        found = Jobs(records=[])
        for document in self._documents(names, "jobs"):
            part = adapt_jobs(document, self._cluster, source)
            found.records += part.records
            found.problems += part.problems
            found.release = part.release
        return found

    def _documents(self, names: tuple[str, ...], key: str) -> Iterator[Any]:
        for file in self._files(names):
            document = decode_json(_read(file), file.name)
            if not isinstance(document, dict) or key in document:
                yield document

    def _files(self, names: tuple[str, ...] | str) -> list[Path]:
        matches: Callable[[Path], bool] = lambda file: file.name.startswith(names)  # noqa: E731
        return sorted(filter(matches, self._folder.glob("*.json")))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror}") from None
