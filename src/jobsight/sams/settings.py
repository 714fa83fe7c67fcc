"""The sections of SAMS's server programs, from the YAML file that stands on a site."""

from __future__ import annotations

import difflib
import re
from datetime import tzinfo
from pathlib import Path
from typing import Annotated, Final, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from jobsight.agent.seed_sections import DEFAULT_FORMAT, Sections, parse_level, read_tree
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.errors import ConfigError
from jobsight.sams.record import MAX_SIZE

AGGREGATOR: Final = "sams.aggregator"
RECEIVER: Final = "sams.post-receiver"
FILE: Final = "sams.loader.File"
FALLBACK: Final = "sams.loader.FileSlurmInfoFallback"
#: SAMS's own two databases. Here both mean this store.
DATABASES: Final = ("sams.aggregator.SoftwareAccounting", "sams.aggregator.SoftwareAccountingPW")

_Size = Annotated[int, msgspec.Meta(ge=1024, le=2**31)]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class LogSettings(msgspec.Struct, kw_only=True):
    file: str | None
    level: str
    format: str


class LogKeys(msgspec.Struct, kw_only=True):
    """Keys that each program's section may have."""

    logfile: str | None = None
    loglevel: str | None = None
    logformat: str | None = None


class _Aggregator(LogKeys, kw_only=True):
    loaders: list[str] = msgspec.field(default_factory=list)
    aggregators: list[str] = msgspec.field(default_factory=list)
    #: Ours: where the records go, and the cluster they are of.
    store: str | None = None
    cluster: str | None = None


class _Receiver(LogKeys, kw_only=True):
    base_path: str = "/tmp"
    jobid_hash_size: Annotated[int, msgspec.Meta(ge=0)] = 0
    bind: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    #: Ours: the largest record that is taken, in bytes.
    max_size: _Size = MAX_SIZE


class _Loader(msgspec.Struct, kw_only=True):
    in_path: str
    archive_path: str
    error_path: str
    file_pattern: str = "^.*$"
    #: Ours.
    max_size: _Size = MAX_SIZE


class _FallbackLoader(_Loader, kw_only=True):
    sacct: str = "/usr/bin/sacct"
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    #: Ours: seconds within which sacct must answer.
    timeout: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0


class DatabaseKeys(msgspec.Struct, kw_only=True):
    """Keys of SAMS's databases; all but the cluster describe files that are not written here."""

    cluster: str | None = None
    clustername: str | None = None
    db_path: str | None = None
    file_pattern: str | None = None
    jobid_hash_size: int | None = None
    sqlite_temp_store: str | None = None
    create_tables: str | bool | None = None
    database: str | None = None
    database_options: dict[str, object] | None = None


class LoaderSettings(msgspec.Struct, kw_only=True):
    name: str
    in_path: Path
    archive_path: Path
    error_path: Path
    pattern: re.Pattern[str]
    max_size: int
    #: Only the loader with the fallback has one.
    sacct: str | None = None
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    timeout: float = 60.0
    #: The zone of times in records that carry no seconds since 1970.
    zone: tzinfo | None = None


class AggregatorSettings(msgspec.Struct, kw_only=True):
    loaders: list[LoaderSettings]
    store: str
    cluster: str
    log: LogSettings
    warnings: list[str]
    #: Where the data go now, for somebody who looks for them where SAMS had put them.
    notes: list[str]


class ReceiverSettings(msgspec.Struct, kw_only=True):
    base_path: Path
    jobid_hash_size: int
    bind: str
    port: int
    max_size: int
    log: LogSettings
    warnings: list[str]


def load_receiver(file: Path | str) -> ReceiverSettings:
    sections = sections_with(file, RECEIVER)
    found = sections.read(RECEIVER, _Receiver)
    return ReceiverSettings(
        base_path=Path(found.base_path),
        jobid_hash_size=found.jobid_hash_size,
        bind=found.bind,
        port=found.port,
        max_size=found.max_size,
        log=log_of(sections, found),
        warnings=sections.warnings,
    )


def load_aggregator(file: Path | str, own: Settings | None = None) -> AggregatorSettings:
    """Read a site's file; what it does not say comes from jobsight's own settings."""
    sections = sections_with(file, AGGREGATOR)
    found = sections.read(AGGREGATOR, _Aggregator)
    own = load_settings() if own is None else own
    loaders = [_loader(sections, name) for name in found.loaders]
    if not loaders:
        raise ConfigError(f"{file}: {AGGREGATOR}.loaders: names no loader; right: [{FILE}]")
    location = found.store or own.store.location
    cluster, notes = found.cluster, []
    for name in found.aggregators:
        database = _database(sections, name)
        cluster = cluster or database.cluster or database.clustername
        place = database.db_path or (database.database_options or {}).get("database")
        notes.append(
            f"{name}: records go into the store {location}"
            + (f"; `jobsight import sams {place}` brings those of before along" if place else "")
        )
    return AggregatorSettings(
        loaders=loaders,
        store=location,
        cluster=cluster or own.cluster,
        log=log_of(sections, found),
        warnings=sections.warnings,
        notes=notes,
    )


def sections_with(file: Path | str, needed: str) -> Sections:
    """The sections of a file that must have the one of a program."""
    tree = read_tree(Path(file))
    if needed not in tree:
        near = difflib.get_close_matches(needed, list(tree), n=1)
        hint = f"; is {near[0]} meant to be it?" if near else ""
        raise ConfigError(f"{file}: there is no section {needed}{hint}")
    return Sections(str(file), tree)


def _loader(sections: Sections, name: str) -> LoaderSettings:
    if name not in (FILE, FALLBACK):
        raise ConfigError(
            f"{sections.file}: {AGGREGATOR}.loaders: there is no loader named {name!r}; "
            f"valid names: {FILE}, {FALLBACK}"
        )
    kind = _FallbackLoader if name == FALLBACK else _Loader
    section = sections.of(name)
    # A file of a site that changed the loader often keeps the other's section for the paths.
    found = sections.convert(name, section, kind)
    fallback = found if isinstance(found, _FallbackLoader) else None
    where = f"{sections.file}: {name}"
    return LoaderSettings(
        name=name,
        in_path=Path(found.in_path),
        archive_path=Path(found.archive_path),
        error_path=Path(found.error_path),
        pattern=_pattern(where, found.file_pattern),
        max_size=found.max_size,
        sacct=fallback.sacct if fallback else None,
        environment=fallback.environment if fallback else {},
        timeout=fallback.timeout if fallback else 60.0,
        zone=_zone(where, fallback.environment.get("TZ")) if fallback else None,
    )


def _pattern(where: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"{where}.file_pattern: {text!r} is no pattern: {error}") from None


def _zone(where: str, name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name.removeprefix(":"))
    except (OSError, ValueError, LookupError):
        raise ConfigError(
            f"{where}.environment: there is no zone {name!r}; right: UTC or Europe/Stockholm"
        ) from None


def _database(sections: Sections, name: str) -> DatabaseKeys:
    if name not in DATABASES:
        raise ConfigError(
            f"{sections.file}: {AGGREGATOR}.aggregators: there is no aggregator named {name!r}; "
            f"valid names: {', '.join(DATABASES)}"
        )
    return sections.read(name, DatabaseKeys)


def log_of(sections: Sections, found: LogKeys) -> LogSettings:
    """Where a program logs: its own section, then the common one."""
    common = sections.read("common", LogKeys)
    level = found.loglevel or common.loglevel or "ERROR"
    return LogSettings(
        file=found.logfile or common.logfile,
        level=parse_level(f"{sections.file}: loglevel", level),
        format=found.logformat or DEFAULT_FORMAT,
    )
