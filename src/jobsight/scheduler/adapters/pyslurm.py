"""Records from PySlurm's dictionaries, of its older and its newer interface.

They differ from Slurm's own JSON in names and units; the tables list both interfaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jobsight.scheduler.adapters.tables import (
    complete_cpu_times,
    read_job,
    read_node,
    read_partition,
    read_step,
)
from jobsight.scheduler.fields import CONVERSION_ERRORS, RecordReader, explain
from jobsight.scheduler.records import AdaptError, JobRecord, Jobs, Nodes, Partitions, Problem

Record = TypeVar("Record")
Documents = Sequence[Any]


def adapt_queue(documents: Documents, cluster: str) -> Jobs:
    """Jobs of the controller, by ``job().get()`` or ``Jobs.load()``."""
    return Jobs(*_adapt(documents, "job", lambda r: read_job(r, "pyslurm", cluster, "pyslurm")))


def adapt_accounting(documents: Documents, cluster: str) -> Jobs:
    """Jobs of the accounting, by ``slurmdb_jobs().get()`` or ``db.Jobs.load()``."""
    return Jobs(*_adapt(documents, "job", lambda r: _read_accounted_job(r, cluster)))


def adapt_nodes(documents: Documents, cluster: str) -> Nodes:
    """Nodes, by ``node().get()`` or ``Nodes.load()``."""
    records, problems = _adapt(documents, "node", lambda r: read_node(r, "pyslurm", cluster))
    return Nodes(records=records, problems=problems)


def adapt_partitions(documents: Documents, cluster: str, *, seconds: bool) -> Partitions:
    """Partitions, by ``partition().get()``, which has times in seconds, or ``Partitions.load()``,
    which has them in minutes."""
    format = "pyslurm_old" if seconds else "pyslurm"
    records, problems = _adapt(documents, "partition", lambda r: read_partition(r, format, cluster))
    return Partitions(records=records, problems=problems)


def _read_accounted_job(reader: RecordReader, cluster: str) -> JobRecord:
    reader.document = _with_cpu_times(reader.document)
    record = read_job(reader, "pyslurm_db", cluster, "pyslurm")
    steps = reader.value("steps")
    entries = list(steps.values()) if isinstance(steps, dict) else steps
    for entry in entries if isinstance(entries, list) else ():
        step_reader = RecordReader(_with_cpu_times(entry), reader.label)
        record.steps.append(read_step(step_reader, "pyslurm_db"))
        reader.problems += step_reader.problems
    complete_cpu_times(record)
    return record


def _with_cpu_times(document: Any) -> dict[str, Any]:
    """The document with its CPU times as objects, as they are in Slurm's JSON."""
    if not isinstance(document, dict):
        return {}
    times = {
        f"{part}_cpu": {
            "seconds": document[f"{part}_cpu_sec"],
            "microseconds": document.get(f"{part}_cpu_usec"),
        }
        for part in ("tot", "user", "sys")
        if document.get(f"{part}_cpu_sec") is not None
    }
    return document | times


def _adapt(
    documents: Documents, kind: str, read: Callable[[RecordReader], Record]
) -> tuple[list[Record], list[Problem]]:
    records: list[Record] = []
    problems: list[Problem] = []
    for document in documents:
        if not isinstance(document, dict):
            problems.append(Problem(f"a {kind}", kind, explain(TypeError(), document)))
            continue
        names = ("job_id", "jobid", "id", "name")
        label = next((document[name] for name in names if name in document), "?")
        reader = RecordReader(document, f"{kind} {label}")
        try:
            records.append(read(reader))
        except CONVERSION_ERRORS as error:
            problems.append(Problem(reader.label, kind, explain(error, document)))
        problems += reader.problems
    if documents and not records:
        raise AdaptError(f"none of {len(documents)} {kind}s of PySlurm was understood")
    return records, problems
