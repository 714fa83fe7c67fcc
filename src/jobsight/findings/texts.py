"""Texts of findings: templates with figures, and how a quantity is shown.

``{memory.used}`` is replaced by the figure in its usual form, ``{memory.used:slurm}`` by the form
of an ``#SBATCH`` line, ``{memory.used:raw}`` by the bare number in the base unit; ``{{`` and ``}}``
are braces. Only the text of a rule has placeholders: the names that users chose are inserted as
they are and never interpreted.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias, cast

from jobsight.findings.conditions import nearest
from jobsight.findings.units import NUMERIC, Unit, Value
from jobsight.util.units import (
    SECOND,
    UNKNOWN,
    format_byte_rate,
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_share,
    format_time,
)

#: Characters of a template, of a name in a text, and names of a list that are shown.
MAX_TEMPLATE: Final = 2000
MAX_NAME: Final = 200
MAX_NAMES: Final = 10
#: The same in a line to change.
MAX_LISTED: Final = 500

Format: TypeAlias = Literal["", "slurm", "raw"]
#: ``slurm+20%`` adds a fifth: advice from a single run needs a margin.
_FORMAT: Final = re.compile(r"(?P<form>slurm|raw|)(?:(?<=slurm)\+(?P<margin>\d{1,3})%)?", re.ASCII)
_HOUR: Final = 3600.0
#: Below it seconds are easier to read.
_FEW_HOURS: Final = 0.1
_DAY: Final = 86400
_MEBIBYTE, _GIBIBYTE = 2**20, 2**30
#: From this size on, a request is rounded up to a whole gibibyte.
_WHOLE_GIBIBYTES: Final = 10 * _GIBIBYTE

_PIECES: Final = re.compile(
    r"\{\{|\}\}|\{(?P<name>[^{}:]*)(?::(?P<format>[^{}]*))?\}|(?P<wrong>[{}].{0,20})|[^{}]+",
    re.DOTALL,
)


class TemplateError(ValueError):
    """The text is not a valid template; the message follows the name of the key."""


def show(value: Value, unit: Unit) -> str:
    """A quantity in its usual form."""
    if isinstance(value, list):
        rest = len(value) - MAX_NAMES
        names = [show_name(name) for name in value[:MAX_NAMES]]
        return ", ".join(names) + (f" and {rest:,} more" if rest > 0 else "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return show_name(value)
    return _SHOWN[unit](value) if math.isfinite(value) else UNKNOWN


def show_name(text: str) -> str:
    r"""A name that a user chose: unprintable as ``\xNN``, a long one without its middle."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _escaped(c) for c in text)
    if len(text) > MAX_NAME:
        half = (MAX_NAME - 3) // 2
        text = f"{text[:half]}...{text[-half:]}"
    return text


def _escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


def _hours(seconds: float, unit: str) -> str:
    """CPU, GPU and memory time: in hours, or in seconds below 6 minutes."""
    hours = seconds / _HOUR
    if 0 < abs(hours) < _FEW_HOURS:
        return f"{_number(seconds)} {unit} seconds"
    digits = 0 if abs(hours) >= 99.95 else 1 if abs(hours) >= 0.95 or hours == 0 else 2
    return f"{hours:,.{digits}f} {unit} hours"


def _number(value: float) -> str:
    """A count or a mean with three significant digits: 1,234, 12.8, 1.01, 0.11."""
    size = abs(value)
    if value.is_integer() or size >= 99.95:
        return format_count(round(value))
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


_SHOWN: Final[dict[Unit, Callable[[float], str]]] = {
    "share": format_share,
    "duration": lambda value: format_duration(round(value * SECOND)),
    "size": lambda value: format_bytes(round(value) if value >= 1 else value),
    "count": _number,
    "core time": lambda value: _hours(value, "core"),
    "gpu time": lambda value: _hours(value, "GPU"),
    "memory time": lambda value: _hours(value / 1e9, "GB"),
    "energy": format_energy,
    "rate": lambda value: f"{_number(value)}/s",
    "byte rate": format_byte_rate,
    "time": lambda value: format_time(round(value * SECOND)),
}


def show_slurm(value: float, unit: Unit) -> str:
    """A quantity in the form of Slurm's options, rounded up: 14G, 1-02:03:04, 8."""
    if unit == "size":
        if value < _WHOLE_GIBIBYTES and value % _GIBIBYTE:
            return f"{max(1, math.ceil(value / _MEBIBYTE))}M"
        return f"{math.ceil(value / _GIBIBYTE)}G"
    if unit == "duration":
        days, rest = divmod(max(0, math.ceil(value)), _DAY)
        clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
        return f"{days}-{clock}" if days else clock
    return f"{math.ceil(value)}"


#: Units that Slurm's options have.
_SLURM_UNITS: Final = frozenset({"size", "duration", "count"})


class Template:
    """A text with placeholders, parsed once. With ``quoted``, names are quoted for a shell, because
    a line to change is there to be copied."""

    __slots__ = ("_pieces", "_quoted", "names", "text")

    def __init__(self, text: str, units: Mapping[str, Unit], *, quoted: bool = False) -> None:
        if len(text) > MAX_TEMPLATE:
            raise TemplateError(f"has {len(text):,} characters; expected at most {MAX_TEMPLATE:,}")
        self.text = text
        self._quoted = quoted
        #: A literal, or a figure or parameter with its unit, format and factor.
        self._pieces: list[str | tuple[str, Unit, Format, float]] = []
        for match in _PIECES.finditer(text):
            if match["wrong"] is not None:
                raise TemplateError(
                    f"{match['wrong']!r} is not a placeholder; expected {{figure}}, or {{{{ for {{"
                )
            if match["name"] is None:
                self._pieces.append(match[0][:1] if match[0] in ("{{", "}}") else match[0])
            else:
                self._pieces.append(_placeholder(match["name"], match["format"] or "", units))
        #: Figures and parameters in it.
        self.names = tuple(dict.fromkeys(p[0] for p in self._pieces if isinstance(p, tuple)))

    def fill(self, values: Mapping[str, Value]) -> str:
        """The text; a figure that is not known is shown as such."""
        return "".join(
            [
                piece if isinstance(piece, str) else self._shown(piece, values)
                for piece in self._pieces
            ]
        )

    def is_known(self, values: Mapping[str, Value]) -> bool:
        """Whether all its figures are known."""
        return all(name in values for name in self.names)

    def _shown(self, piece: tuple[str, Unit, Format, float], values: Mapping[str, Value]) -> str:
        name, unit, form, factor = piece
        value = values.get(name)
        if value is None:
            return "not known"
        if isinstance(value, float) and form and math.isfinite(value):
            return f"{value:.12g}" if form == "raw" else show_slurm(value * factor, unit)
        if form == "slurm" and isinstance(value, list):
            # Nodes or task ids; dots at the end make it plain that the line is not complete.
            rest = ["..."] if len(value) > MAX_LISTED else []
            text = ",".join([*map(show_name, value[:MAX_LISTED]), *rest])
        else:
            text = show(value, unit)
        return shlex.quote(text) if self._quoted and unit not in NUMERIC else text


def _placeholder(
    name: str, form: str, units: Mapping[str, Unit]
) -> tuple[str, Unit, Format, float]:
    if name not in units:
        raise TemplateError(
            f"{{{name[:80]}}} is not a figure or a parameter; {nearest(name, units)}"
        )
    match = _FORMAT.fullmatch(form)
    if match is None:
        raise TemplateError(
            f"{{{name}:{form[:20]}}} has an unknown format; expected slurm, slurm+20%, raw or no "
            "format"
        )
    unit = units[name]
    known = cast("Format", match["form"])
    if known == "slurm" and unit in NUMERIC and unit not in _SLURM_UNITS:
        raise TemplateError(f"{{{name}:slurm}} is a {unit}; expected a size, a duration or a count")
    return name, unit, known, 1 + int(match["margin"] or 0) / 100
