"""The record of one job on one node, as SAMS writes and reads it: content, encoding and name."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

from jobsight.model import format_start
from jobsight.text import readable_path

if TYPE_CHECKING:
    from jobsight.agent.job import Document, JobView

#: The receiver of jobsight sends this header with a status that concerns the record itself, which
#: no retry changes. A proxy in front of it does not.
REFUSED_HEADER: Final = "jobsight-refused"

#: Bytes of a name that are not UTF-8, as Python represents them in a string.
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Record:
    """The last sample of each sampler, replaced by its final document if that is not empty.

    In SAMS an empty final document discards the samples. Here it does not, so that memory, GPU
    and I/O reach the server as well.
    """

    def __init__(self, exclude: list[str]) -> None:
        self._exclude = frozenset(exclude)
        self._samples: dict[str, Document] = {}

    def store(self, sampler: str, document: Document) -> None:
        if sampler not in self._exclude:
            self._samples[sampler] = document

    def finished(self, documents: dict[str, Document]) -> dict[str, Document]:
        """The complete record, with the final documents."""
        record = dict(self._samples)
        for sampler, document in documents.items():
            if sampler not in self._exclude and (document or sampler not in record):
                record[sampler] = document
        return record


def encode_record(documents: dict[str, Document]) -> bytes:
    """One line of ASCII JSON with sorted keys and without blanks."""
    return json.dumps(_plain(documents), sort_keys=True, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """What every JSON reader accepts: no NaN, no bytes, no lone surrogates, which a database
    refuses together with the entire record."""
    match value:
        case str():
            return without_surrogates(value)
        case bytes():
            return readable_path(value)
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {_key(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case bool() | int() | None:
            return value
    return str(value)


def _key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def without_surrogates(text: str) -> str:
    """Text with lone surrogates escaped."""
    return text if text.isascii() else _SURROGATE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    # surrogateescape maps single bytes to this range; any other surrogate gets its code point.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def run_start(view: JobView) -> str:
    """The start of the run, as used in names: the scheduler's, else that of the sighting."""
    start = view.info.start
    return format_start(view.sighting.birth if start is None else start)


def is_requeued(view: JobView) -> bool:
    return bool(view.sighting.restart_count or view.info.restart_count)


def with_start(name: str, start: str, number: int = 1) -> str:
    """``100.n1.json`` -> ``100.n1.20261115T043312Z.json``; a number above 1 is added to it."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or "/" in suffix or not stem.rpartition("/")[2]:
        stem, suffix = name, ""
    middle = start if number == 1 else f"{start}.{number}"
    return f"{stem}.{middle}{dot}{suffix}" if suffix else f"{name}.{middle}"


def safe_part(text: str) -> str:
    """The name of a node as part of a file name, which cannot leave the directory."""
    cleaned = re.sub(r"[/\x00-\x1f\x7f\ud800-\udfff]", "_", text)[:120]
    return cleaned if cleaned.strip(".") else "_" * max(1, len(cleaned))
