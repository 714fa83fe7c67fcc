"""Trackable resources: ``cpu=4,mem=16G,gres/gpu:a100=2`` and the lists of newer replies.

Sizes are bytes where the kind is one of memory; everything else is a count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from jobsight.scheduler.values import integer, text_or_none

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_AMOUNT = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)([KMGTPE]?)", re.ASCII)
#: Slurm counts these in MiB; in text they carry their unit, bare numbers are MiB again.
_MEMORY = frozenset({"mem"})
_SIZES = frozenset({"vmem"})
#: "There is no value" inside lists and sums.
_NOTHING = frozenset({-1, -2, 2**64 - 1, 2**64 - 2, 2**32 - 1, 2**32 - 2})
MIB = 2**20


def parse_tres(text: str) -> dict[str, int]:
    """Read a string of resources; ValueError for what is none."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        kind, equals, amount = part.rpartition("=")
        if not equals or not kind:
            raise ValueError(f"{part[:40]!r} is not a resource with its amount")
        kind = kind.strip()
        found[kind] = found.get(kind, 0) + parse_amount(amount, memory=kind in _MEMORY)
    return found


def parse_amount(text: str, *, memory: bool = False) -> int:
    """A number with a unit of 1024; a bare number of memory is MiB."""
    match = _AMOUNT.fullmatch(text.strip().upper())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not an amount")
    unit = match[2] or ("M" if memory else "")
    return round(float(match[1]) * 1024 ** _POWERS[unit]) if unit else round(float(match[1]))


def parse_size(text: str) -> int | None:
    """A size of memory as sacct writes it: ``512M``, ``0``, ``4Gn``, ``2Gc`` (without its end)."""
    text = text.strip().rstrip("cn")
    if not text or text in ("?", "N/A"):
        return None
    return parse_amount(text, memory=True)


def tres_from_list(entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Read the list form: type, name, count."""
    found: dict[str, int] = {}
    for entry in entries:
        kind = text_or_none(entry.get("type"))
        if kind is None:
            raise ValueError(f"a resource has no type: {dict(entry)!r:.60}")
        name = text_or_none(entry.get("name"))
        count = integer(entry.get("count"))
        if count is None or count in _NOTHING:
            continue
        key = f"{kind}/{name}" if name else kind
        found[key] = found.get(key, 0) + (count * MIB if kind in _MEMORY else count)
    return found


def read_tres(value: Any) -> dict[str, int]:
    """Resources in either form, told apart by their content."""
    if value is None:
        return {}
    if isinstance(value, str):
        return parse_tres(value)
    if isinstance(value, list):
        return tres_from_list(value)
    raise ValueError(f"{type(value).__name__} is no form of resources")


_GRES = re.compile(
    r"(?P<name>[^:(),=]+)(?::(?P<type>[^:(),=]+))?(?:[:=](?P<count>\d{1,12}[KMG]?))?"
    r"(?P<notes>(?:\([^()]*\))*)"
)


def parse_gres(text: str) -> dict[str, int]:
    """Read ``gpu:a100:4(S:0-1),gpu:1g.5gb:7,shard:8`` into ``gpu:a100`` 4 and so on."""
    found: dict[str, int] = {}
    if text.strip() in ("", "(null)", "N/A"):
        return found
    for part in split_outside(text):
        part = part.strip().removeprefix("gres/").removeprefix("gres:")
        match = _GRES.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is not a generic resource")
        kind, count = match["type"], match["count"]
        if kind is not None and count is None and re.fullmatch(r"\d{1,12}[KMG]?", kind, re.ASCII):
            kind, count = None, kind
        key = f"{match['name']}:{kind}" if kind else match["name"]
        found[key] = found.get(key, 0) + (parse_amount(count) if count else 1)
    return found


def split_outside(text: str) -> list[str]:
    """The parts between commas outside of parentheses."""
    return [part for part in re.split(r",(?![^()]*\))", text) if part]


def gpus_of(tres: Mapping[str, int]) -> dict[str, int]:
    """GPUs by type; those without a type under ``gpu``. The untyped sum stands in both forms."""
    typed = {
        key.removeprefix("gres/gpu:"): count
        for key, count in tres.items()
        if key.startswith("gres/gpu:")
    }
    whole = tres.get("gres/gpu", 0)
    rest = whole - sum(typed.values())
    return typed | ({"gpu": rest} if rest > 0 else {})


def count_gpus(tres: Mapping[str, int]) -> int | None:
    """All GPUs of an allocation; None where nothing is known of it."""
    return sum(gpus_of(tres).values()) if tres else None
