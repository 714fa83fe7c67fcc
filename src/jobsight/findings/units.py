"""Quantities in rules: units, their text form, and how they are shown.

Every figure has a unit. A number in a rule file is written with its unit ("65 %", "2 h", "4 GiB",
"50 core h"), so that a percentage cannot be compared with a ratio: :func:`parse_quantity` returns
the value in the unit's base, and the conditions are checked for matching units when they are
loaded. A bare number is a count.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, TypeAlias

from jobsight.model import SECOND

#: What a figure is measured in, and its base as a float: ``share`` 0 to 1; ``duration`` seconds;
#: ``size`` bytes; ``count`` a plain number, also of cores and GPUs; ``core time`` and ``gpu time``
#: core and GPU seconds; ``memory time`` byte seconds; ``energy`` joules; ``rate`` per second;
#: ``byte rate`` bytes per second; ``time`` seconds since 1970. ``text``, ``texts`` (a list) and
#: ``flag`` have no number.
Unit: TypeAlias = Literal[
    "share", "duration", "size", "count", "core time", "gpu time", "memory time", "energy",
    "rate", "byte rate", "time", "text", "texts", "flag",
]  # fmt: skip
NUMERIC: Final[frozenset[Unit]] = frozenset(
    {"share", "duration", "size", "count", "core time", "gpu time", "memory time", "energy",
     "rate", "byte rate", "time"}
)  # fmt: skip

Value: TypeAlias = "float | str | bool | list[str]"


class Quantity(NamedTuple):
    """A number with its unit, in the unit's base."""

    value: float
    unit: Unit


_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
#: Suffix -> unit and factor to its base.
SUFFIXES: Final[dict[str, tuple[Unit, float]]] = {
    "": ("count", 1.0),
    "%": ("share", 0.01),
    "s": ("duration", 1.0),
    "min": ("duration", _MINUTE),
    "h": ("duration", _HOUR),
    "d": ("duration", _DAY),
    "B": ("size", 1.0),
    "KiB": ("size", 2.0**10),
    "MiB": ("size", 2.0**20),
    "GiB": ("size", 2.0**30),
    "TiB": ("size", 2.0**40),
    "kB": ("size", 1e3),
    "MB": ("size", 1e6),
    "GB": ("size", 1e9),
    "TB": ("size", 1e12),
    "core s": ("core time", 1.0),
    "core min": ("core time", _MINUTE),
    "core h": ("core time", _HOUR),
    "GPU s": ("gpu time", 1.0),
    "GPU min": ("gpu time", _MINUTE),
    "GPU h": ("gpu time", _HOUR),
    "GB h": ("memory time", 1e9 * _HOUR),
    "TB h": ("memory time", 1e12 * _HOUR),
    "J": ("energy", 1.0),
    "Wh": ("energy", _HOUR),
    "kWh": ("energy", 1e3 * _HOUR),
    "/s": ("rate", 1.0),
    "/min": ("rate", 1 / _MINUTE),
    "/h": ("rate", 1 / _HOUR),
    "B/s": ("byte rate", 1.0),
    "MB/s": ("byte rate", 1e6),
    "GB/s": ("byte rate", 1e9),
    "MiB/s": ("byte rate", 2.0**20),
    "GiB/h": ("byte rate", 2.0**30 / _HOUR),
}
_QUANTITY: Final = re.compile(
    r"\s*(?P<number>-?\d{1,15}(?:\.\d{1,9})?)\s*(?P<suffix>\D.*?)?\s*", re.ASCII
)


def parse_quantity(text: str) -> Quantity:
    """Read "65 %", "2 h" or "50 core h"; ValueError says what is expected."""
    match = _QUANTITY.fullmatch(text)
    suffix = re.sub(r"\s+", " ", match["suffix"] or "") if match else None
    if match is None or suffix not in SUFFIXES:
        known = ", ".join(name for name in SUFFIXES if name)
        raise ValueError(f"{text[:40]!r} is not a quantity; expected a number and one of {known}")
    unit, factor = SUFFIXES[suffix]
    return Quantity(float(match["number"]) * factor, unit)


def seconds(duration: int) -> float:
    """Nanoseconds in the base of durations, core and GPU time."""
    return duration / SECOND
