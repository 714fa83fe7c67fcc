"""Replies of Slurm's JSON tools and of slurmrestd into records, by what they hold.

Version numbers are not asked: sites patch, and plugins of one release speak several. A reply that
is not understood raises :class:`AdaptError`; it never becomes an empty list.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from jobsight.scheduler import accounting, controller
from jobsight.scheduler.errors import AdaptError, SourceError
from jobsight.scheduler.nodes import read_node, read_partition
from jobsight.scheduler.reader import RecordReader
from jobsight.scheduler.records import JobRecord, Jobs, Nodes, Partitions, Problem
from jobsight.scheduler.values import integer, text_or_none

#: Errors that say "there is none": no such job (2017), no such node or partition, nothing found.
_NOTHING = frozenset({2017, 9003})

#: What a reply may hold many of.
_LISTS = frozenset({"jobs", "nodes", "partitions"})
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw]).decode

Record = TypeVar("Record")


class _Entries(list[Any]):
    """The records of a reply, each turned into a document when it is its turn: a document takes
    ten times the space of its text."""

    def __iter__(self) -> Iterator[Any]:
        for entry in super().__iter__():
            yield _decoded(entry) if isinstance(entry, msgspec.Raw) else entry


def decode_json(data: bytes, what: str) -> Any:
    r"""A reply as a document. Names may hold bytes that are no UTF-8; they become ``\xNN``."""
    try:
        data.decode()
    except UnicodeDecodeError:
        data = data.decode("utf-8", "jobsight.escaped").encode()
    try:
        parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        return {key: _part(key, part) for key, part in parts.items()}
    except (msgspec.DecodeError, AdaptError):
        # Not a document, or one that is not quite JSON: NaN, bare control characters.
        pass
    try:
        return json.loads(data, strict=False)
    except ValueError as error:
        begin = " ".join(data[:60].decode("utf-8", "replace").split())
        raise AdaptError(f"{what} gave no JSON ({error}); it begins with {begin!r}") from None


def _part(key: str, part: msgspec.Raw) -> Any:
    listed = key in _LISTS and bytes(memoryview(part)[:1]) == b"["
    return _Entries(_ENTRIES(part)) if listed else _decoded(part)


def _decoded(data: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        pass
    try:
        return json.loads(bytes(data), strict=False)
    except ValueError as error:
        raise AdaptError(f"a part of a reply is no JSON: {error}") from None


def adapt_jobs(document: Any, cluster: str = "", source: str = "json") -> Jobs:
    """Jobs of the controller or of the accounting, whichever the reply holds.

    ``cluster`` takes the place of the name that the reply gives.
    """

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

    named = _text_under(document, "meta", "slurm", "cluster")
    records, problems = _adapt(document, "jobs", "job", "job_id", read)
    return Jobs(records=records, problems=problems, release=release_of(document))


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


def _adapt(
    document: Any, key: str, kind: str, id_name: str, read: Callable[[RecordReader], Record]
) -> tuple[list[Record], list[Problem]]:
    if not isinstance(document, Mapping):
        raise AdaptError(f"a reply about {key} is a {type(document).__name__}, not a document")
    entries = document.get(key)
    _raise_errors(document, key, bool(entries))
    if not isinstance(entries, list):
        shown = ", ".join(list(document)[:8])
        raise AdaptError(f"a reply about {key} has no list of them; it holds: {shown or 'nothing'}")
    records: list[Record] = []
    problems: list[Problem] = []
    for entry in entries:
        if not isinstance(entry, Mapping):
            problems.append(Problem(f"a {kind}", key, f"is a {type(entry).__name__}"))
            continue
        reader = RecordReader(entry, f"{kind} {entry.get(id_name)}")
        try:
            records.append(read(reader))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problems.append(Problem(reader.label, key, str(error)))
        problems += reader.problems
    if entries and not records:
        raise AdaptError(f"none of {len(entries)} {key} was understood; first: {problems[0]}")
    return records, problems


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


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    wrong = error.object[error.start : error.end]
    # The backslash is doubled because this stands inside of a JSON string.
    return "".join(f"\\\\x{byte:02x}" for byte in wrong), error.end


codecs.register_error("jobsight.escaped", _escaped)
