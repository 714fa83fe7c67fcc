"""The document of one job on one node, as SAMS writes and reads it: text, name and folder."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

from jobsight.model import format_start
from jobsight.text import readable_path

if TYPE_CHECKING:
    from jobsight.agent.job import Document, JobView

#: Bytes of a name that were no UTF-8, as Python carries them in text.
_LONE: Final = re.compile("[\ud800-\udfff]")


class Record:
    """Gathers the last sample of each sampler; its last word wins where it has one.

    SAMS lets an empty last word wipe out the samples. Here it does not, so memory, GPU and I/O
    reach the server too.
    """

    def __init__(self, exclude: list[str]) -> None:
        self._exclude = frozenset(exclude)
        self._samples: dict[str, Document] = {}

    def store(self, sampler: str, document: Document) -> None:
        if sampler not in self._exclude:
            self._samples[sampler] = document

    def finished(self, documents: dict[str, Document]) -> dict[str, Document]:
        whole = dict(self._samples)
        for sampler, document in documents.items():
            if sampler not in self._exclude and (document or sampler not in whole):
                whole[sampler] = document
        return whole


def encode_record(documents: dict[str, Document]) -> bytes:
    """One line of JSON with sorted keys and no blanks, ASCII only."""
    return json.dumps(_plain(documents), sort_keys=True, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """What every JSON reader takes: no NaN, no bytes, no half characters (a database refuses a
    lone surrogate, and with it the whole record)."""
    match value:
        case str():
            return whole_text(value)
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


def whole_text(text: str) -> str:
    """Text without half characters."""
    return text if text.isascii() else _LONE.sub(_escaped, text)


def _key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    # The range that stands for single bytes; any other half character is named by its number.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def run_start(view: JobView) -> str:
    """The start of this run, as it stands in names: the scheduler's, else the node's sighting."""
    start = view.info.start
    return format_start(view.sighting.birth if start is None else start)


def is_requeued(view: JobView) -> bool:
    return bool(view.sighting.restart_count or view.info.restart_count)


def with_start(name: str, start: str, number: int = 1) -> str:
    """``100.n1.json`` -> ``100.n1.20261115T043312Z.json``, from the second on with a number."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or "/" in suffix or not stem.rpartition("/")[2]:
        stem, suffix = name, ""
    middle = start if number == 1 else f"{start}.{number}"
    return f"{stem}.{middle}{dot}{suffix}" if suffix else f"{name}.{middle}"


def safe_part(text: str) -> str:
    """A name of a node as a part of a file name: it cannot lead out of the folder."""
    cleaned = re.sub(r"[/\x00-\x1f\x7f\ud800-\udfff]", "_", text)[:120]
    return cleaned if cleaned.strip(".") else "_" * max(1, len(cleaned))
