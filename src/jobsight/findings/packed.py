"""The stored form of the figures of a run: rules are applied to history without reading it again.

A form is compressed MessagePack with the names of the figures, so that a release with other figures
reads it: an unknown name is left out, and a figure that is not in it is not known. A reason stands
once for all figures that it is about.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec
import zstandard

from jobsight.errors import StoreError
from jobsight.findings.units import NUMERIC, Value
from jobsight.findings.vocabulary import FIGURES, GROUPS, FigureSet

_VERSION: Final = 1
#: Bytes of a decompressed form.
_MAX_SIZE: Final = 2**20


class _Form(msgspec.Struct, array_like=True):
    version: int
    values: dict[str, Any]
    #: Reason -> the figures and groups that are not known for it.
    unknown: dict[str, list[str]]
    coverage: dict[str, float]


_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decode: Final = msgspec.msgpack.Decoder(_Form).decode


def encode_figures(figures: FigureSet) -> bytes:
    """The stored form of figures; equal figures have equal forms."""
    unknown: dict[str, list[str]] = {}
    for name, reason in figures.unknown.items():
        unknown.setdefault(reason, []).append(name)
    form = _Form(
        _VERSION,
        {name: _short(value) for name, value in figures.values.items()},
        unknown,
        {str(group): share for group, share in figures.coverage.items()},
    )
    return zstandard.ZstdCompressor(level=3, write_content_size=True).compress(
        _encoder.encode(form)
    )


def _form(data: bytes) -> _Form:
    try:
        text = zstandard.ZstdDecompressor().decompress(data, max_output_size=_MAX_SIZE)
        return _decode(text)
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise StoreError(f"the stored figures of a run cannot be read: {error}") from None


def decode_figures(data: bytes) -> FigureSet:
    """Figures from their stored form; raises :class:`StoreError` if it cannot be read."""
    form = _form(data)
    figures = FigureSet()
    for name, value in form.values.items():
        figure = FIGURES.get(name)
        if figure is not None and _fits(value, figure.unit):
            figures.values[name] = float(value) if figure.unit in NUMERIC else value
    for reason, names in form.unknown.items():
        for name in names:
            if name in FIGURES or name in GROUPS:
                figures.unknown[name] = reason
    for group in GROUPS:
        if group in form.coverage:
            figures.coverage[group] = form.coverage[group]
    return figures


def decode_values(data: bytes, names: Collection[str]) -> dict[str, Value]:
    """Some values of stored figures; raises :class:`StoreError` if they cannot be read."""
    stored = _form(data).values
    return {
        name: float(value) if unit in NUMERIC else value
        for name in names
        if name in stored and _fits(value := stored[name], unit := FIGURES[name].unit)
    }


def _short(value: Any) -> Any:
    """A value in fewer bytes: whole numbers are integers."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value


def _fits(value: Any, unit: str) -> bool:
    """Whether a value has the type of the unit, which an older release may have had otherwise."""
    if unit == "flag":
        return isinstance(value, bool)
    if unit == "text":
        return isinstance(value, str)
    if unit == "texts":
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    return unit in NUMERIC and isinstance(value, (int, float)) and not isinstance(value, bool)
