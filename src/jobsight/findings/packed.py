"""The stored form of the figures of a run: rules are applied to history without reading it again.

A form is compressed MessagePack with the names of the figures, so that a release with other figures
reads it: an unknown name is left out, and a figure that is not in it is not known. A reason stands
once for all figures that it is about.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import zstandard

from jobsight.errors import StoreError
from jobsight.findings.units import NUMERIC, Value
from jobsight.findings.vocabulary import FIGURES, GROUPS, FigureSet

if TYPE_CHECKING:
    from collections.abc import Callable

_Decoded = TypeVar("_Decoded")

_VERSION: Final = 1
#: Bytes of a decompressed form.
_MAX_SIZE: Final = 2**20


class _Form(msgspec.Struct, array_like=True):
    version: int
    values: dict[str, Any]
    #: Reason -> the figures and groups that are not known for it.
    unknown: dict[str, list[str]]
    coverage: dict[str, float]


#: A context costs more than a form, and threads must not share one.
_contexts: Final = threading.local()
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
    context: zstandard.ZstdCompressor | None = getattr(_contexts, "compressor", None)
    if context is None:
        context = _contexts.compressor = zstandard.ZstdCompressor(level=3, write_content_size=True)
    return context.compress(_encoder.encode(form))


def _unpack(data: bytes, decode: Callable[[bytes], _Decoded]) -> _Decoded:
    context: zstandard.ZstdDecompressor | None = getattr(_contexts, "decompressor", None)
    if context is None:
        context = _contexts.decompressor = zstandard.ZstdDecompressor()
    try:
        return decode(context.decompress(data, max_output_size=_MAX_SIZE))
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise StoreError(f"the stored figures of a run cannot be read: {error}") from None


@lru_cache(8)
def _decoder_of(names: frozenset[str]) -> Callable[[bytes], Any]:
    """Decodes some values of a form and skips the others, which cost most of the time."""
    fields = {f"figure_{number}": name for number, name in enumerate(sorted(names))}
    values = msgspec.defstruct(
        "SomeValues", [(field, Any, msgspec.UNSET) for field in fields], rename=fields
    )
    form = msgspec.defstruct(
        "SomeOfForm",
        [
            ("version", int),
            ("values", values),
            ("unknown", msgspec.Raw),
            ("coverage", dict[str, float]),
        ],
        array_like=True,
    )
    return msgspec.msgpack.Decoder(form).decode


def decode_figures(data: bytes) -> FigureSet:
    """Figures from their stored form; raises :class:`StoreError` if it cannot be read."""
    form = _unpack(data, _decode)
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


def decode_values(data: bytes, names: frozenset[str]) -> tuple[dict[str, Value], dict[str, float]]:
    """Some values of stored figures, and the coverage of their groups; raises :class:`StoreError`
    if they cannot be read."""
    form = _unpack(data, _decoder_of(names))
    values = {
        name: float(value) if unit in NUMERIC else value
        for name, value in zip(sorted(names), msgspec.structs.astuple(form.values), strict=True)
        if value is not msgspec.UNSET and _fits(value, unit := FIGURES[name].unit)
    }
    return values, form.coverage


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
