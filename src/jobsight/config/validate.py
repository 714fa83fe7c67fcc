"""Validation: a tree from TOML, YAML or JSON becomes a struct, or an error that names the key.

Each value is checked separately, so that an error names the file, the path of the key and the
expected type. An unknown key is an error in jobsight's own files (``unknown="refuse"``) and a
warning with the nearest valid name in the files of other systems (``unknown="warn"``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from jobsight.errors import ConfigError

Unknown = Literal["refuse", "warn"]
StructType = TypeVar("StructType", bound=msgspec.Struct)


def convert(
    tree: Any,
    struct: type[StructType],
    *,
    origin: str,
    path: tuple[str, ...] = (),
    unknown: Unknown = "refuse",
    warn: Callable[[str], None] | None = None,
    ignored: Iterable[str] = (),
) -> StructType:
    """Validate a tree and build its struct.

    ``origin`` names the file in messages, ``path`` the place of the tree in it. With "warn" the
    rules are those of SAMS: a number in quotes is a number, a key without a value is absent, and
    ``warn`` gets a sentence for each unknown key. ``ignored`` keys are valid and dropped.
    """
    return build(
        struct,
        check(tree, struct, origin, path, unknown=unknown, warn=warn, ignored=ignored),
        origin,
        path,
    )


def check(
    tree: Any,
    struct: type[msgspec.Struct],
    origin: str,
    path: tuple[str, ...] = (),
    *,
    unknown: Unknown = "refuse",
    warn: Callable[[str], None] | None = None,
    ignored: Iterable[str] = (),
) -> dict[str, Any]:
    """The same tree with every value converted, as several files are merged before the structs
    are built. The first invalid key or value is an error."""
    if not isinstance(tree, Mapping):
        raise ConfigError(
            f"{origin}: {'.'.join(path) or 'the file'}: expected a table of settings, "
            f"got {'nothing' if tree is None else f'`{type(tree).__name__}`'}"
        )
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    ignored = frozenset(ignored)
    checked: dict[str, Any] = {}
    for name, value in tree.items():
        key = str(name)
        if key in fields:
            if value is not None or unknown == "refuse":
                checked[key] = _check_value(
                    value, fields[key], origin, (*path, key), unknown=unknown, warn=warn
                )
        elif key not in ignored:
            sentence = unknown_key(origin, (*path, key), [*fields, *sorted(ignored)])
            if unknown == "refuse":
                raise ConfigError(sentence)
            if warn is not None:
                warn(sentence)
    return checked


def build(
    struct: type[StructType], tree: Mapping[str, Any], origin: str = "", path: tuple[str, ...] = ()
) -> StructType:
    """The struct of a tree whose values are converted."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        here = (*path, field.name)
        if field.name not in tree:
            if field.required:
                raise ConfigError(f"{origin}: {'.'.join(here)}: is missing")
            continue
        value = tree[field.name]
        if (inner := struct_of(field.type)) is not None:
            value = build(inner, value, origin, here)
        elif (inner := struct_of_table(field.type)) is not None:
            value = {
                name: build(inner, part, origin, (*here, name)) for name, part in value.items()
            }
        values[field.name] = value
    try:
        return struct(**values)
    except ConfigError as error:
        # From __post_init__, which knows the name of the field only.
        raise ConfigError(f"{origin}: {'.'.join((*path, str(error)))}") from None


def convert_value(
    value: Any, wanted: Any, origin: str, path: tuple[str, ...], *, strict: bool = True
) -> Any:
    """One value; without ``strict`` a number or a boolean may be text."""
    try:
        return msgspec.convert(value, wanted, strict=strict)
    except msgspec.ValidationError as error:
        reason = re.sub(r" - at `\$(\[\.*\d*\])?`$", "", str(error))
        reason = re.sub(r" - at `\$(.*)`$", r" (at \1)", reason)
        reason = reason[:1].lower() + reason[1:]
        hint = ""
        if not strict and "expected `str" in reason and isinstance(value, int | float):
            hint = f"; expected the value in quotes, '{value}'"
        raise ConfigError(f"{origin}: {'.'.join(path)}: {reason}{hint}") from None


def unknown_key(origin: str, path: tuple[str, ...], valid: Iterable[str]) -> str:
    """The sentence about a key that does not exist, with the nearest that does."""
    # Imported only for the error: it would cost every command time and the agent memory.
    import difflib

    names = list(valid)
    near = difflib.get_close_matches(path[-1], names, n=1)
    if near:
        hint = f"did you mean {'.'.join((*path[:-1], near[0]))}?"
    else:
        hint = f"valid here: {', '.join(names)}" if names else "this setting has no sub-keys"
    return f"{origin}: unknown key {'.'.join(path)}; {hint}"


def struct_of(wanted: Any) -> type[msgspec.Struct] | None:
    """The type if it is a struct."""
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return wanted
    return None


def struct_of_table(wanted: Any) -> type[msgspec.Struct] | None:
    """The struct of a table whose keys are names that the site chose."""
    return struct_of(get_args(wanted)[1]) if get_origin(wanted) is dict else None


def _check_value(
    value: Any,
    wanted: Any,
    origin: str,
    path: tuple[str, ...],
    *,
    unknown: Unknown,
    warn: Callable[[str], None] | None,
) -> Any:
    if (inner := struct_of(wanted)) is not None:
        return check(value, inner, origin, path, unknown=unknown, warn=warn)
    if (inner := struct_of_table(wanted)) is not None:
        tables = convert_value(value, dict[str, Any], origin, path)
        return {
            name: check(table, inner, origin, (*path, name), unknown=unknown, warn=warn)
            for name, table in tables.items()
        }
    return convert_value(value, wanted, origin, path, strict=unknown == "refuse")
