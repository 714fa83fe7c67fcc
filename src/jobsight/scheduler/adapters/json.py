"""Records from JSON: Slurm's commands with ``--json``, and slurmrestd.

The content of a reply decides how it is read, not its version number: sites patch Slurm, and the
plugins of one release write several versions. A reply that is not understood raises
:class:`AdaptError`; it never becomes an empty list. Read :func:`stream_jobs` and
:func:`adapt_jobs` first; the fields are in :mod:`jobsight.scheduler.adapters.tables`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from jobsight.scheduler.adapters.json_stream import ESCAPE_INVALID, ReplyStream, parse_integer
from jobsight.scheduler.adapters.tables import (
    complete_cpu_times,
    read_job,
    read_node,
    read_partition,
    read_step,
)
from jobsight.scheduler.fields import CONVERSION_ERRORS, RecordReader, explain, text_or_none
from jobsight.scheduler.records import (
    AdaptError,
    JobRecord,
    Jobs,
    NodeInfo,
    Nodes,
    NoList,
    PartitionInfo,
    Partitions,
    Problem,
    SourceError,
)

#: Errors that mean "not found": no such job (2017), no such node or partition (9003).
_NOT_FOUND = frozenset({2017, 9003})

Record = TypeVar("Record")
Read = Callable[[RecordReader], Record]


def decode_json(data: bytes, what: str) -> Any:
    r"""A short reply. Bytes that are not UTF-8 become ``\xNN``."""
    data = data.decode("utf-8", ESCAPE_INVALID).encode()
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        # The standard library also accepts NaN and control characters, which Slurm writes.
        pass
    try:
        return json.loads(data, strict=False, parse_int=parse_integer)
    except RecursionError:
        raise AdaptError(f"{what} gave JSON that is nested too deeply") from None
    except ValueError as error:
        begin = " ".join(data[:60].decode("utf-8", "replace").split())
        raise AdaptError(f"{what} gave no JSON ({error}); it begins with {begin!r}") from None


def stream_jobs(chunks: Iterable[bytes], what: str, cluster: str, source: str) -> Jobs:
    """The jobs of a reply while it arrives; its errors are raised during the iteration."""
    stream = ReplyStream(chunks, "jobs", what)
    entries = _Entries("jobs", "job", "job_id")

    def records() -> Iterator[JobRecord]:
        yield from entries.read(stream, _job_reader(cluster, source))
        jobs.release = release_of(stream.rest)

    jobs = Jobs(records(), entries.problems)
    return jobs


def adapt_jobs(document: Any, cluster: str = "", source: str = "json") -> Jobs:
    """Jobs of the controller or of the accounting, whichever the reply has.

    A ``cluster`` that is not empty replaces the name in the reply.
    """
    entries = _Entries("jobs", "job", "job_id")
    read = _job_reader(cluster, source, cluster_of(document))
    jobs = Jobs(list(entries.read(_Document(document, "jobs"), read)), entries.problems)
    jobs.release = release_of(document)
    return jobs


def adapt_nodes(document: Any, cluster: str = "") -> Nodes:
    """Nodes of ``sinfo --json`` (up to 22.05), ``scontrol show nodes --json`` or slurmrestd."""

    def read(reader: RecordReader) -> NodeInfo:
        _require_name(reader)
        return read_node(reader, "json", cluster or cluster_of(document))

    entries = _Entries("nodes", "node", "name")
    records = list(entries.read(_Document(document, "nodes"), read))
    return Nodes(records=records, problems=entries.problems, release=release_of(document))


def adapt_partitions(document: Any, cluster: str = "") -> Partitions:
    """Partitions of ``scontrol show partitions --json`` or slurmrestd."""

    def read(reader: RecordReader) -> PartitionInfo:
        _require_name(reader)
        return read_partition(reader, "json", cluster or cluster_of(document))

    entries = _Entries("partitions", "partition", "name")
    records = list(entries.read(_Document(document, "partitions"), read))
    return Partitions(records=records, problems=entries.problems, release=release_of(document))


def release_of(document: Any) -> str | None:
    """The Slurm release that a reply names, such as "22.05.8"."""
    for name in ("slurm", "Slurm"):
        release = text_at(document, "meta", name, "release")
        if release:
            return release
    return None


def cluster_of(document: Any) -> str:
    """The cluster that a reply names, from 23.02 on; else empty."""
    return text_at(document, "meta", "slurm", "cluster")


def text_at(document: Any, *path: str) -> str:
    """The text at a path of member names; else empty."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, str) else ""


def _require_name(reader: RecordReader) -> None:
    if text_or_none(reader.value("name")) is None:
        raise ValueError("it has no name")


def _job_reader(cluster: str, source: str, reply_cluster: str = "") -> Read[JobRecord]:
    def read(reader: RecordReader) -> JobRecord:
        if reader.value("job_id") is None:
            raise ValueError("it has no job id")
        if "job_state" in reader.document:
            return read_job(reader, "queue", cluster or reply_cluster, source)
        if "state" in reader.document and "time" in reader.document:
            return _read_accounted_job(reader, cluster, source)
        raise ValueError("it is neither a job of the controller nor one of the accounting")

    return read


def _read_accounted_job(reader: RecordReader, cluster: str, source: str) -> JobRecord:
    record = read_job(reader, "accounting", cluster, source)
    steps = reader.value("steps")
    for document in steps if isinstance(steps, list) else ():
        if not isinstance(document, dict):
            reader.report("steps", document, explain(TypeError(), document))
            continue
        step_reader = RecordReader(document, reader.label)
        step = read_step(step_reader, "accounting")
        record.steps.append(step)
        reader.problems += [
            msgspec.structs.replace(problem, record=f"{reader.label} step {step.step}")
            for problem in step_reader.problems
        ]
        reader.raw |= {f"steps.{step.step}.{key}": value for key, value in step_reader.raw.items()}
    complete_cpu_times(record)
    return record


class _Document:
    """A decoded reply with the interface of :class:`ReplyStream`."""

    def __init__(self, document: Any, key: str) -> None:
        if not isinstance(document, Mapping):
            raise AdaptError(f"a reply about {key} is a {type(document).__name__}, not an object")
        self.rest = document
        entries = document.get(key)
        self.listed = isinstance(entries, list)
        self._entries: list[Any] = entries if isinstance(entries, list) else []

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)


class _Entries:
    """Reads the entries of one reply and collects what is wrong with them."""

    def __init__(self, key: str, kind: str, id_name: str) -> None:
        self.problems: list[Problem] = []
        self._key = key
        self._kind = kind
        self._id_name = id_name

    def read(self, reply: _Document | ReplyStream, read: Read[Record]) -> Iterator[Record]:
        seen = understood = 0
        for entry in reply:
            seen += 1
            record = self._record(entry, read)
            if record is not None:
                understood += 1
                yield record
        # A reply with errors may lack records, so it is not complete whatever it has.
        _raise_errors(reply.rest, self._key)
        if not reply.listed:
            members = ", ".join(list(reply.rest)[:8]) or "nothing"
            raise NoList(f"a reply about {self._key} has no list of them; it holds: {members}")
        if seen and not understood:
            raise AdaptError(
                f"none of {seen} {self._key} was understood; first: {self.problems[0]}"
            )

    def _record(self, entry: Any, read: Read[Record]) -> Record | None:
        if not isinstance(entry, Mapping):
            reason = f"is a {type(entry).__name__}"
            self.problems.append(Problem(f"a {self._kind}", self._key, reason))
            return None
        reader = RecordReader(entry, f"{self._kind} {entry.get(self._id_name)}")
        try:
            return read(reader)
        except CONVERSION_ERRORS as error:
            self.problems.append(Problem(reader.label, self._key, explain(error, entry)))
            return None
        finally:
            self.problems += reader.problems


def _raise_errors(document: Mapping[str, Any], key: str) -> None:
    """Raise Slurm's own error of a reply without records, unless it is "not found"."""
    errors = document.get("errors") or []
    for error in errors if isinstance(errors, list) else ():
        if not isinstance(error, Mapping):
            raise SourceError(f"Slurm answers about {key} with an error: {error!r:.200}")
        if error.get("error_number", error.get("errno")) in _NOT_FOUND:
            continue
        texts = [error.get(name) for name in ("error", "description", "source")]
        reason = "; ".join(str(text) for text in texts if text) or repr(error)[:200]
        raise SourceError(f"Slurm answers about {key} with an error: {reason}")
