"""Settings from files and environment variables.

The files of /etc and of the user are merged, then the environment variables apply. Each file is
validated by itself (:mod:`jobsight.config.validate`), so that an error names its file.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin

import msgspec

from jobsight.config import paths
from jobsight.config.settings import LogSettings, Settings
from jobsight.config.slurm import slurm_cluster_name
from jobsight.config.validate import (
    build,
    check,
    convert_value,
    struct_of,
    struct_of_table,
    unknown_key,
)
from jobsight.errors import ConfigError, JobsightError
from jobsight.text import NESTED, file_text, yaml_reason

_PREFIX = "JOBSIGHT_"
_SUFFIXES = (".toml", ".yaml", ".yml")


def load_settings(
    file: Path | str | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings of the given file, or of the default files, and of the environment."""
    environment = os.environ if environment is None else environment
    tree: dict[str, Any] = {}
    for name in _files(file, environment):
        _merge(tree, check(_read(name), Settings, str(name)))
    for variable, value in sorted(environment.items()):
        if variable.startswith(_PREFIX):
            _merge(tree, _from_variable(variable, value))
    for name, table in tree.get("clusters", {}).items():
        # A setting that a cluster does not have is that of [scheduler].
        merged = copy.deepcopy(tree.get("scheduler", {}))
        _merge(merged, table)
        tree["clusters"][name] = merged
    settings = build(Settings, tree)
    if not settings.cluster:
        settings.cluster = slurm_cluster_name(environment) or ""
    return settings


def load_log_settings(
    file: Path | str | None = None, environment: Mapping[str, str] | None = None
) -> LogSettings:
    """The table ``log`` alone; the defaults if it cannot be read.

    Every command logs, also one that mends or checks the settings. A command that needs them
    reports what is wrong with them.
    """
    environment = os.environ if environment is None else environment
    tree: dict[str, Any] = {}
    try:
        for name in _files(file, environment):
            read = _read(name)
            if isinstance(read, Mapping) and "log" in read:
                _merge(tree, check({"log": read["log"]}, Settings, str(name)))
        for variable, value in sorted(environment.items()):
            if variable.startswith(f"{_PREFIX}LOG__"):
                _merge(tree, _from_variable(variable, value))
        return build(Settings, tree).log
    except JobsightError:
        return LogSettings()


def _files(file: Path | str | None, environment: Mapping[str, str]) -> list[Path]:
    """The given file, else that of JOBSIGHT_CONFIG, else the default ones."""
    given = file if file is not None else environment.get(f"{_PREFIX}CONFIG")
    return [Path(given)] if given else _default_files()


def _default_files() -> list[Path]:
    files: list[Path] = []
    for directory in paths.config_directories():
        # A file that the user may not read is skipped: the user's own settings apply.
        names = [directory / f"jobsight{suffix}" for suffix in _SUFFIXES]
        names = [name for name in names if os.access(name, os.R_OK)]
        if len(names) > 1:
            raise ConfigError(f"{names[0]} and {names[1]} both exist; expected one of them")
        files += names
    return files


def _read(file: Path) -> Any:
    text = file_text(file)
    match file.suffix:
        case ".toml":
            # Imported here, as yaml below: a command without a file needs neither.
            import tomllib

            try:
                return tomllib.loads(text)
            except tomllib.TOMLDecodeError as error:
                raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
            except RecursionError:
                raise ConfigError(f"{file}: {NESTED}") from None
        case ".yaml" | ".yml":
            import yaml

            try:
                return yaml.safe_load(text) or {}
            except yaml.YAMLError as error:
                raise ConfigError(f"{file}: {yaml_reason(error)}") from None
            except RecursionError:
                raise ConfigError(f"{file}: {NESTED}") from None
    raise ConfigError(f"{file}: expected a TOML (.toml) or YAML (.yaml) file")


def _from_variable(variable: str, value: str) -> dict[str, Any]:
    """The tree of one variable; JOBSIGHT_SERVER__PORT sets server.port."""
    path = tuple(variable.removeprefix(_PREFIX).lower().split("__"))
    origin = f"environment variable {variable}"
    wanted: Any = Settings
    for depth, name in enumerate(path):
        table = struct_of_table(wanted)
        if table is not None:
            # This part of the path is a name that the site chose.
            wanted = table
            continue
        struct = struct_of(wanted)
        fields = {f.name: f.type for f in msgspec.structs.fields(struct)} if struct else {}
        if name not in fields:
            # Some variables are no settings (JOBSIGHT_JOB); a similar name is a mistake.
            if len(path) == 1 and not _similar(name, fields):
                return {}
            raise ConfigError(unknown_key(origin, path[: depth + 1], fields))
        wanted = fields[name]
    struct = struct_of(wanted)
    if struct is not None:
        field = msgspec.structs.fields(struct)[0].name.upper()
        raise ConfigError(
            f"{origin}: names a table, not a setting; expected one such as {variable}__{field}"
        )
    given: Any = value
    if get_origin(wanted) is list:
        given = [part.strip() for part in value.split(",") if part.strip()]
    tree = convert_value(given, wanted, origin, path, strict=False)
    for name in reversed(path):
        tree = {name: tree}
    return dict(tree)


def _similar(name: str, names: Mapping[str, Any]) -> bool:
    import difflib

    return bool(difflib.get_close_matches(name, names, cutoff=0.75))


def _merge(tree: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value
