"""Replies of Slurm's JSON tools and of slurmrestd into records, by what they hold.

Version numbers are not asked: sites patch, and plugins of one release speak several. A reply that
is not understood raises :class:`AdaptError`; it never becomes an empty list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from jobsight.scheduler import accounting, controller
from jobsight.scheduler.errors import AdaptError, NoList, SourceError
from jobsight.scheduler.nodes import read_node, read_partition
from jobsight.scheduler.reader import RecordReader
from jobsight.scheduler.records import JobRecord, Jobs, Nodes, Partitions, Problem
from jobsight.scheduler.stream import ESCAPED, ReplyStream
from jobsight.scheduler.values import integer, text_or_none

#: Errors that say "there is none": no such job (2017), no such node or partition, nothing found.
_NOTHING = frozenset({2017, 9003})

Record = TypeVar("Record")
Read = Callable[[RecordReader], Record]


def decode_json(data: bytes, what: str) -> Any:
    r"""A short reply as a document. Bytes in names that are no UTF-8 become ``\xNN``."""
    data = data.decode("utf-8", ESCAPED).encode()
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        # Not a document, or one that is not quite JSON: NaN, bare control characters.
        pass
    try:
        return json.loads(data, strict=False)
    except ValueError as error:
        begin = " ".join(data[:60].decode("utf-8", "replace").split())
        raise AdaptError(f"{what} gave no JSON ({error}); it begins with {begin!r}") from None


def stream_jobs(chunks: Iterable[bytes], what: str, cluster: str, source: str) -> Jobs:
    """The jobs of a reply while it comes; what is wrong with it is raised where that is seen."""
    stream = ReplyStream(chunks, "jobs", what)
    problems: list[Problem] = []

    def records() -> Iterator[JobRecord]:
        yield from _Reading("jobs", "job", "job_id", problems).records(
            stream, _job_reader(cluster, source)
        )
        jobs.release = release_of(stream.rest)

    jobs = Jobs(records(), problems)
    return jobs


def adapt_jobs(document: Any, cluster: str = "", source: str = "json") -> Jobs:
    """Jobs of the controller or of the accounting, whichever the reply holds.

    ``cluster`` takes the place of the name that the reply gives.
    """
    named = cluster or _text_under(document, "meta", "slurm", "cluster")
    read = _job_reader(cluster, source, named)
    jobs = Jobs(*_adapt(document, "jobs", "job", "job_id", read))
    jobs.release = release_of(document)
    return jobs


def _job_reader(cluster: str, source: str, named: str = "") -> Read[JobRecord]:
    def read(reader: RecordReader) -> JobRecord:
        if integer(reader.value("job_id")) is None:
            raise ValueError("it has no job id")
        if "job_state" in reader.document:
            return controller.read_job(reader, cluster or named, source)
        if "state" in reader.document and "time" in reader.document:
            record = accounting.read_job(reader, cluster, source)
            record.raw = reader.raw
            return record
        raise ValueError("it is neither a job of the controller nor one of the accounting")

    return read


def adapt_nodes(document: Any, cluster: str = "") -> Nodes:
    """Nodes of ``sinfo --json`` (to 22.05), ``scontrol show nodes --json`` or slurmrestd."""
    named = cluster or _text_under(document, "meta", "slurm", "cluster")

    def read(reader: RecordReader) -> Any:
        if text_or_none(reader.value("name")) is None:
            raise ValueError("it has no name")
        return read_node(reader, named)

    records, problems = _adapt(document, "nodes", "node", "name", read)
    return Nodes(records=records, problems=problems, release=release_of(document))


def adapt_partitions(document: Any, cluster: str = "") -> Partitions:
    """Partitions of ``scontrol show partitions --json`` or slurmrestd."""
    named = cluster or _text_under(document, "meta", "slurm", "cluster")

    def read(reader: RecordReader) -> Any:
        if text_or_none(reader.value("name")) is None:
            raise ValueError("it has no name")
        return read_partition(reader, named)

    records, problems = _adapt(document, "partitions", "partition", "name", read)
    return Partitions(records=records, problems=problems, release=release_of(document))


def release_of(document: Any) -> str | None:
    """The release that a reply names: "22.05.8"."""
    for name in ("slurm", "Slurm"):
        found = _text_under(document, "meta", name, "release")
        if found:
            return found
    return None


class _Document:
    """A reply that is there whole, to be read as a stream is."""

    def __init__(self, document: Any, key: str) -> None:
        if not isinstance(document, Mapping):
            raise AdaptError(f"a reply about {key} is a {type(document).__name__}, not a document")
        self.rest = document
        found = document.get(key)
        self.listed = isinstance(found, list)
        self._entries: list[Any] = found if isinstance(found, list) else []

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)


def _adapt(
    document: Any, key: str, kind: str, id_name: str, read: Read[Record]
) -> tuple[list[Record], list[Problem]]:
    reading = _Reading(key, kind, id_name, [])
    return list(reading.records(_Document(document, key), read)), reading.problems


class _Reading:
    """Reads the entries of one reply, and says what is wrong with them."""

    def __init__(self, key: str, kind: str, id_name: str, problems: list[Problem]) -> None:
        self.key = key
        self.kind = kind
        self.id_name = id_name
        self.problems = problems

    def records(self, reply: _Document | ReplyStream, read: Read[Record]) -> Iterator[Record]:
        seen = understood = 0
        for entry in reply:
            seen += 1
            record = self._record(entry, read)
            if record is not None:
                understood += 1
                yield record
        _raise_errors(reply.rest, self.key, answered=bool(seen))
        if not reply.listed:
            shown = ", ".join(list(reply.rest)[:8]) or "nothing"
            raise NoList(f"a reply about {self.key} has no list of them; it holds: {shown}")
        if seen and not understood:
            first = self.problems[0]
            raise AdaptError(f"none of {seen} {self.key} was understood; first: {first}")

    def _record(self, entry: Any, read: Read[Record]) -> Record | None:
        if not isinstance(entry, Mapping):
            kind = type(entry).__name__
            self.problems.append(Problem(f"a {self.kind}", self.key, f"is a {kind}"))
            return None
        reader = RecordReader(entry, f"{self.kind} {entry.get(self.id_name)}")
        try:
            return read(reader)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self.problems.append(Problem(reader.label, self.key, str(error)))
            return None
        finally:
            self.problems += reader.problems


def _raise_errors(document: Mapping[str, Any], key: str, answered: bool) -> None:
    """Slurm's own errors: a reply with some and without records is no empty list."""
    errors = document.get("errors") or []
    if not isinstance(errors, list) or answered:
        return
    for error in errors:
        if not isinstance(error, Mapping):
            raise SourceError(f"Slurm answers about {key} with an error: {error!r:.200}")
        numbers = error.get("error_number", error.get("errno"))
        if numbers in _NOTHING:
            continue
        words = [error.get(name) for name in ("error", "description", "source")]
        said = "; ".join(str(word) for word in words if word) or repr(error)[:200]
        raise SourceError(f"Slurm answers about {key} with an error: {said}")


def _text_under(document: Any, *path: str) -> str:
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, str) else ""
