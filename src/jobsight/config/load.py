"""One tree of settings, from files and the environment; what is not understood is refused.

Each value is checked by itself, so that an error names the file, the key's path and what would
be right there.
"""

from __future__ import annotations

import copy
import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from jobsight.config import paths
from jobsight.config.settings import Settings
from jobsight.errors import ConfigError
from jobsight.text import file_text

_PREFIX = "JOBSIGHT_"
_SUFFIXES = (".toml", ".yaml", ".yml")


def load_settings(
    file: Path | str | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Read the settings: the given file or those of the usual places, then the environment."""
    environment = os.environ if environment is None else environment
    if file is None and environment.get(f"{_PREFIX}CONFIG"):
        file = environment[f"{_PREFIX}CONFIG"]
    tree: dict[str, Any] = {}
    for name in [Path(file)] if file is not None else _usual_files():
        _merge(tree, _checked(Settings, _read(name), str(name), ()))
    for variable, value in sorted(environment.items()):
        _merge(tree, _from_variable(variable, value))
    for name, table in tree.get("clusters", {}).items():
        # What a cluster does not say is as it is for all of them.
        tree["clusters"][name] = _merged(tree.get("scheduler", {}), table)
    return _build(Settings, tree)


def _usual_files() -> list[Path]:
    found = []
    for folder in paths.config_directories():
        there = [folder / f"jobsight{suffix}" for suffix in _SUFFIXES]
        # A site may keep its file or folder from users, who then run with what is theirs.
        there = [name for name in there if os.access(name, os.R_OK)]
        if len(there) > 1:
            raise ConfigError(f"{there[0]} and {there[1]} are both there; keep one of them")
        found += there
    return found


def _read(file: Path) -> Any:
    text = file_text(file)
    match file.suffix:
        case ".toml":
            try:
                return tomllib.loads(text)
            except tomllib.TOMLDecodeError as error:
                raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
        case ".yaml" | ".yml":
            # Imported only where it is needed: a megabyte on every node.
            import yaml

            try:
                return yaml.safe_load(text) or {}
            except yaml.YAMLError as error:
                raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
    raise ConfigError(f"{file}: settings are TOML (.toml) or YAML (.yaml)")


def _checked(
    struct: type[msgspec.Struct], data: Any, origin: str, path: tuple[str, ...]
) -> dict[str, Any]:
    """The same tree with every value converted; the first wrong key or value is an error."""
    if not isinstance(data, Mapping):
        where = ".".join(path) or "the file"
        raise ConfigError(f"{origin}: {where}: expected a table of settings, got {_kind(data)}")
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    tree: dict[str, Any] = {}
    for key, value in data.items():
        here = (*path, str(key))
        if key not in fields:
            raise _unknown(origin, here, fields)
        tree[key] = _checked_part(fields[key], value, origin, here)
    return tree


def _checked_part(wanted: Any, value: Any, origin: str, path: tuple[str, ...]) -> Any:
    inner = _struct_of(wanted)
    if inner:
        return _checked(inner, value, origin, path)
    named = _named_structs(wanted)
    if named:
        tables = _value(value, dict[str, Any], origin, path, strict=True)
        return {
            name: _checked(named, table, origin, (*path, name)) for name, table in tables.items()
        }
    return _value(value, wanted, origin, path, strict=True)


def _value(value: Any, wanted: Any, origin: str, path: tuple[str, ...], *, strict: bool) -> Any:
    try:
        return msgspec.convert(value, wanted, strict=strict)
    except msgspec.ValidationError as error:
        reason = re.sub(r" - at `\$(\[\.*\d*\])?`$", "", str(error))
        reason = reason[:1].lower() + reason[1:]
        raise ConfigError(f"{origin}: {'.'.join(path)}: {reason}") from None


def _from_variable(variable: str, value: str) -> dict[str, Any]:
    if not variable.startswith(_PREFIX):
        return {}
    path = tuple(variable.removeprefix(_PREFIX).lower().split("__"))
    struct: type[msgspec.Struct] | None = Settings
    wanted: Any = Settings
    for depth, name in enumerate(path):
        named = _named_structs(wanted)
        if named:
            # A part of the path that the site chose.
            wanted = struct = named
            continue
        fields = {f.name: f.type for f in msgspec.structs.fields(struct)} if struct else {}
        if name not in fields:
            # Some variables are no settings (JOBSIGHT_JOB); a near miss is a mistake.
            if len(path) == 1 and not difflib.get_close_matches(name, fields, cutoff=0.75):
                return {}
            raise _unknown(f"environment variable {variable}", path[: depth + 1], fields)
        wanted = fields[name]
        struct = _struct_of(wanted)
    if struct is not None:
        inner = msgspec.structs.fields(struct)[0].name.upper()
        raise ConfigError(
            f"environment variable {variable}: names a table, not a setting; "
            f"right would be one such as {variable}__{inner}"
        )
    given: Any = value
    if get_origin(wanted) is list:
        given = [part.strip() for part in value.split(",") if part.strip()]
    converted = _value(given, wanted, f"environment variable {variable}", path, strict=False)
    for name in reversed(path):
        converted = {name: converted}
    return dict(converted)


def _unknown(origin: str, path: tuple[str, ...], valid: Iterable[str]) -> ConfigError:
    names = list(valid)
    near = difflib.get_close_matches(path[-1], names, n=1)
    if near:
        hint = f"did you mean {'.'.join((*path[:-1], near[0]))}?"
    else:
        hint = f"valid here: {', '.join(names)}" if names else "this setting holds no others"
    return ConfigError(f"{origin}: unknown key {'.'.join(path)}; {hint}")


def _struct_of(wanted: Any) -> type[msgspec.Struct] | None:
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return wanted
    return None


def _named_structs(wanted: Any) -> type[msgspec.Struct] | None:
    """The structs of a table whose keys are the site's own names."""
    return _struct_of(get_args(wanted)[1]) if get_origin(wanted) is dict else None


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"`{type(value).__name__}`"


def _merge(tree: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _merged(tree: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    whole = copy.deepcopy(dict(tree))
    _merge(whole, other)
    return whole


_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def _build(struct: type[_Struct], tree: Mapping[str, Any]) -> _Struct:
    types = {field.name: field.type for field in msgspec.structs.fields(struct)}
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values[key] = _build_part(types[key], value)
    return struct(**values)


def _build_part(wanted: Any, value: Any) -> Any:
    inner, named = _struct_of(wanted), _named_structs(wanted)
    if named:
        return {name: _build(named, table) for name, table in value.items()}
    return _build(inner, value) if inner else value
