"""Units at the outer surfaces: API, JSON and CSV output, documents of sinks.

Inside, times are nanoseconds since 1970 and durations are nanoseconds, both as integers. Outside,
times are RFC 3339 strings in UTC, durations are seconds, and the unit is part of the name. A struct
declares its fields as :data:`Time`, :data:`Duration` or :data:`Size`; :func:`to_outer` and
:func:`from_outer` convert by that declaration, and :func:`outer_schemas` describes the result.

A field keeps its encoded name if that ends with the unit; otherwise the unit is appended.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

import msgspec

from jobsight.util.decoding import decode_json_as

_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1)
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def _unit(name: str, schema: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(extra={"outer": name}, extra_json_schema={"outer": schema})


#: Nanoseconds since 1970; outside an RFC 3339 string such as 2026-11-15T05:43:06.313222990Z.
Time = Annotated[int, _unit("time", {"type": "string", "format": "date-time"})]
#: Nanoseconds; outside seconds.
Duration = Annotated[int, _unit("seconds", {"type": "number"})]
#: Bytes, inside and outside.
Size = Annotated[int, _unit("bytes", {"type": "integer"})]

_Value = TypeVar("_Value")
_Converter = Callable[[Any], Any]


def format_rfc3339(time: int) -> str:
    """Nine digits of fraction always, so that the strings sort by time."""
    seconds, fraction = divmod(time, _SECOND)
    date = datetime.fromtimestamp(seconds, UTC)
    return f"{date:%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


def parse_rfc3339(text: str) -> int:
    """Nanoseconds since 1970; raises ValueError."""
    match = _RFC3339.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an RFC 3339 time; expected 2026-11-15T05:43:06Z")
    day, clock, fraction, zone = match.groups()
    # Without the offset, because a date at the limits of datetime may exceed them with it.
    seconds = (datetime.fromisoformat(f"{day}T{clock}") - _EPOCH) // timedelta(seconds=1)
    if zone not in "Zz":
        offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        seconds -= -offset if zone[0] == "-" else offset
    return seconds * _SECOND + int((fraction or "").ljust(9, "0"))


def to_seconds(duration: int) -> float:
    return duration / _SECOND


def from_seconds(seconds: float) -> int:
    # A text multiplied by the nanoseconds of a second would be gigabytes of text.
    if not isinstance(seconds, int | float):
        raise TypeError(f"{type(seconds).__name__}, expected a number of seconds")
    return round(seconds * _SECOND)


def to_outer(value: Any) -> Any:
    """A struct, or lists and mappings of structs, as builtin types in outer units."""
    return msgspec.to_builtins(_convert(value))


def encode_json(value: Any) -> bytes:
    """JSON in outer units."""
    return msgspec.json.encode(_convert(value))


def _convert(value: Any) -> Any:
    """Structs without a unit stay as they are, because msgspec encodes them faster."""
    if isinstance(value, msgspec.Struct):
        convert = _struct_converter(type(value), outward=True)
        return value if convert is None else convert(value)
    if isinstance(value, Mapping):
        return {key: _convert(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_convert(part) for part in value]
    return value


def from_outer(document: Any, kind: type[_Value]) -> _Value:
    """The struct that :func:`to_outer` converted; raises msgspec.ValidationError."""
    convert = _converter(cast(Any, kind), outward=False)
    try:
        inner = document if convert is None else convert(document)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise msgspec.ValidationError(f"{kind.__name__}: {error}") from None
    return msgspec.convert(inner, kind)


def decode_outer(data: bytes, kind: type[_Value]) -> _Value:
    """The struct that :func:`encode_json` wrote; raises msgspec.DecodeError."""
    return from_outer(decode_json_as(object, data), kind)


def outer_names(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Attribute -> outer name."""
    return {
        field.name: _outer_name(field.encode_name, field.type)
        for field in msgspec.structs.fields(kind)
    }


def outer_schemas(kinds: Iterable[Any], ref_template: str) -> dict[str, Any]:
    """JSON schemas of structs in outer units, by name.

    The structs must declare encoded names that end with the unit.
    """
    _, schemas = msgspec.json.schema_components(kinds, ref_template=ref_template)
    replaced = _replace_units(schemas)
    assert isinstance(replaced, dict)
    return replaced


def _replace_units(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        if "outer" in schema:
            return schema["outer"]
        return {key: _replace_units(part) for key, part in schema.items()}
    return [_replace_units(part) for part in schema] if isinstance(schema, list) else schema


def _unit_of(kind: Any) -> str | None:
    """The unit of an annotation, which may be optional."""
    if get_origin(kind) is Annotated:
        for meta in get_args(kind)[1:]:
            if isinstance(meta, msgspec.Meta) and meta.extra and "outer" in meta.extra:
                return str(meta.extra["outer"])
    if get_origin(kind) in (Union, types.UnionType):
        return next((unit for part in get_args(kind) if (unit := _unit_of(part))), None)
    return None


def _outer_name(name: str, kind: Any) -> str:
    unit = _unit_of(kind)
    if unit in (None, "time") or name == unit or name.endswith(f"_{unit}"):
        return name
    return f"{name}_{unit}"


_OUTWARD: dict[str, _Converter] = {"time": format_rfc3339, "seconds": to_seconds}
_INWARD: dict[str, _Converter] = {"time": parse_rfc3339, "seconds": from_seconds}


@cache
def _converter(kind: Any, *, outward: bool) -> _Converter | None:
    """The conversion of values of a type; None if they stay as they are."""
    origin, arguments = get_origin(kind), get_args(kind)
    unit = _unit_of(kind)
    if unit is not None:
        return _optional((_OUTWARD if outward else _INWARD).get(unit))
    if origin in (Union, types.UnionType):
        parts = (_converter(part, outward=outward) for part in arguments)
        return _optional(next((part for part in parts if part is not None), None))
    if origin in (list, tuple):
        return _each(_converter(arguments[0], outward=outward))
    if origin is dict:
        return _each_value(_converter(arguments[1], outward=outward))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct_converter(kind, outward=outward)
    return None


def _optional(convert: _Converter | None) -> _Converter | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _each(convert: _Converter | None) -> _Converter | None:
    if convert is None:
        return None
    return lambda values: [convert(value) for value in values]


def _each_value(convert: _Converter | None) -> _Converter | None:
    if convert is None:
        return None
    return lambda values: {key: convert(value) for key, value in values.items()}


@cache
def _struct_converter(kind: type[msgspec.Struct], *, outward: bool) -> _Converter | None:
    fields = msgspec.structs.fields(kind)
    converters = {field.name: _converter(field.type, outward=outward) for field in fields}
    names = outer_names(kind)
    if not any(converters.values()) and all(f.encode_name == names[f.name] for f in fields):
        return None

    def to_document(struct: Any) -> dict[str, Any]:
        document = {}
        for name, convert in converters.items():
            value = getattr(struct, name)
            document[names[name]] = value if convert is None else convert(value)
        return document

    def to_fields(document: Any) -> dict[str, Any]:
        inner = {}
        for field in fields:
            if names[field.name] in document:
                convert, value = converters[field.name], document[names[field.name]]
                inner[field.encode_name] = value if convert is None else convert(value)
        return inner

    return to_document if outward else to_fields
