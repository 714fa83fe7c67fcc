"""Settings of SAMS's programs, read from a site's existing YAML file.

:class:`Sections` validates the sections of a file; an unknown key is a warning, so that a site's
file always loads. Below it are the settings of the server programs: post receiver, aggregator,
software updater and software extractor. Keys keep SAMS's spelling. Keys marked "jobsight" exist
only here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from datetime import tzinfo
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote
from zoneinfo import ZoneInfo

import msgspec

from jobsight.agent.outputs import LISTENERS, OUTPUTS
from jobsight.agent.samplers import SAMPLERS
from jobsight.config.load import load_settings
from jobsight.config.settings import ExportSettings, Settings
from jobsight.config.validate import convert
from jobsight.errors import ConfigError
from jobsight.sams.record import MAX_SIZE
from jobsight.text import NESTED, file_text, yaml_reason
from jobsight.util.logging import parse_level
from jobsight.util.urls import without_credentials

SECTION: Final = "sams.collector"
#: The spelling in SAMS's README.
OTHER_SECTION: Final = "sams-collector"

#: The modules that may have a section, by kind.
TABLES: Final = {"sampler": SAMPLERS, "output": OUTPUTS, "listener": LISTENERS}

DEFAULT_FORMAT: Final = "%(asctime)s %(name)s:%(levelname)s %(message)s"

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def read_tree(file: Path) -> dict[str, Any]:
    """The sections of a file."""
    text = file_text(file)
    # Imported only where it is needed: it takes a megabyte of memory on every node.
    import yaml

    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: {yaml_reason(error)}") from None
    except RecursionError:
        raise ConfigError(f"{file}: {NESTED}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: contains no sections; expected {SECTION}")
    _keep_umask_as_written(text, tree)
    return {str(key): value for key, value in tree.items()}


def _keep_umask_as_written(text: str, tree: dict[Any, Any]) -> None:
    """YAML reads 077 as 63 and 77 as 77, but a umask is always octal: use the text."""
    if "umask" not in text:
        return
    import yaml

    document = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(document, yaml.MappingNode)
    for name, section in document.value:
        if name.value not in (SECTION, OTHER_SECTION) or not isinstance(section, yaml.MappingNode):
            continue
        for key, value in section.value:
            if key.value == "umask" and isinstance(value, yaml.ScalarNode):
                tree[name.value]["umask"] = value.value


class Sections:
    """The sections of one file, and the warnings about them."""

    def __init__(self, file: str, tree: Mapping[str, Any]) -> None:
        self.file = file
        self.tree = tree
        self.used: set[str] = set()
        self.warnings: list[str] = []

    def warn(self, sentence: str) -> None:
        self.warnings.append(f"{self.file}: {sentence}")

    def of(self, name: str) -> dict[str, Any]:
        """The keys of a section; none if it is empty or missing."""
        self.used.add(name)
        section = self.tree.get(name)
        if section is None:
            return {}
        if not isinstance(section, Mapping):
            raise ConfigError(
                f"{self.file}: {name}: expected keys and values, got `{type(section).__name__}`"
            )
        return {str(key): value for key, value in section.items()}

    def read(self, name: str, struct: type[_Struct]) -> _Struct:
        """Validate a section."""
        return self.convert(name, self.of(name), struct)

    def convert(
        self, name: str, section: dict[str, Any], struct: type[_Struct], also: tuple[str, ...] = ()
    ) -> _Struct:
        """Validate the keys of a section; keys in ``also`` are valid and dropped."""
        return convert(
            section,
            struct,
            origin=self.file,
            path=(name,),
            unknown="warn",
            warn=self.warnings.append,
            ignored=also,
        )

    @staticmethod
    def modules() -> list[str]:
        return [name for table in TABLES.values() for name in table]

    def is_module(self, name: str) -> bool:
        return any(name in table for table in TABLES.values()) or name == "sams.pidfinder.Slurm"


AGGREGATOR: Final = "sams.aggregator"
RECEIVER: Final = "sams.post-receiver"
FILE: Final = "sams.loader.File"
FALLBACK: Final = "sams.loader.FileSlurmInfoFallback"
#: SAMS's two databases; here both mean the store.
DATABASES: Final = ("sams.aggregator.SoftwareAccounting", "sams.aggregator.SoftwareAccountingPW")

_Size = Annotated[int, msgspec.Meta(ge=1024, le=2**31)]


class LogSettings(msgspec.Struct, kw_only=True):
    file: str | None
    level: str
    format: str


class LogKeys(msgspec.Struct, kw_only=True):
    """Log keys, which the section of every program may have."""

    logfile: str | None = None
    loglevel: str | None = None
    logformat: str | None = None


class _Aggregator(LogKeys, kw_only=True):
    loaders: list[str] = msgspec.field(default_factory=list)
    aggregators: list[str] = msgspec.field(default_factory=list)
    #: jobsight: the store, and the cluster of the records.
    store: str | None = None
    cluster: str | None = None


class _Receiver(LogKeys, kw_only=True):
    base_path: str = "/tmp"
    jobid_hash_size: Annotated[int, msgspec.Meta(ge=0)] = 0
    bind: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    #: jobsight: the largest accepted record, in bytes.
    max_size: _Size = MAX_SIZE


class _Loader(msgspec.Struct, kw_only=True):
    in_path: str
    archive_path: str
    error_path: str
    file_pattern: str = "^.*$"
    #: jobsight.
    max_size: _Size = MAX_SIZE


class _FallbackLoader(_Loader, kw_only=True):
    sacct: str = "/usr/bin/sacct"
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    #: jobsight: seconds for one sacct command.
    timeout: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0


class DatabaseKeys(msgspec.Struct, kw_only=True):
    """Keys of SAMS's databases; only the cluster is used."""

    cluster: str | None = None
    clustername: str | None = None
    db_path: str | None = None
    file_pattern: str | None = None
    jobid_hash_size: int | None = None
    sqlite_temp_store: str | None = None
    create_tables: str | bool | None = None
    database: str | None = None
    database_options: dict[str, object] | None = None

    def location(self, *, password: bool) -> str | None:
        """The path or the URL of the database, as ``jobsight import sams`` reads it."""
        options = {name: str(value) for name, value in (self.database_options or {}).items()}
        name = options.get("database")
        if self.db_path or self.database in (None, "sqlite"):
            return self.db_path or name
        secret = f":{quote(options['password'], safe='')}" if options.get("password") else ""
        user = quote(options.get("user", ""), safe="") + (secret if password else "")
        port = f":{options['port']}" if options.get("port") else ""
        host = f"{user}@" * bool(user) + options.get("host", "") + port
        return f"{self.database}://{host}/{name or ''}"


class LoaderSettings(msgspec.Struct, kw_only=True):
    name: str
    in_path: Path
    archive_path: Path
    error_path: Path
    pattern: re.Pattern[str]
    max_size: int
    #: Only for the loader with the fallback.
    sacct: str | None = None
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    timeout: float = 60.0
    #: The time zone of records without a timestamp in seconds since 1970.
    zone: tzinfo | None = None


class AggregatorSettings(msgspec.Struct, kw_only=True):
    loaders: list[LoaderSettings]
    store: str
    #: Empty if neither file has it.
    cluster: str
    #: jobsight's own settings.
    own: Settings
    log: LogSettings
    warnings: list[str]
    #: Where the data are stored, for readers who expect SAMS's databases.
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
    """Read a site's file; missing keys come from jobsight's own settings."""
    sections = sections_with(file, AGGREGATOR)
    found = sections.read(AGGREGATOR, _Aggregator)
    own = load_settings() if own is None else own
    loaders = [_loader(sections, name) for name in found.loaders]
    if not loaders:
        raise ConfigError(f"{file}: {AGGREGATOR}.loaders: names no loader; expected [{FILE}]")
    location = found.store or own.store.location
    cluster, notes = found.cluster, []
    for name in found.aggregators:
        database = _database(sections, name)
        cluster = cluster or database.cluster or database.clustername
        old = database.location(password=False)
        notes.append(
            f"{name}: records are stored in {without_credentials(location)}"
            + (f"; `jobsight import sams {old}` imports earlier ones" if old else "")
        )
    return AggregatorSettings(
        loaders=loaders,
        store=location,
        cluster=cluster or own.cluster,
        own=own,
        log=log_of(sections, found),
        warnings=sections.warnings,
        notes=notes,
    )


def sections_with(file: Path | str, needed: str) -> Sections:
    """The sections of a file, which must contain that of a program."""
    tree = read_tree(Path(file))
    if needed not in tree:
        near = difflib.get_close_matches(needed, list(tree), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
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
        raise ConfigError(
            f"{where}.file_pattern: {text!r} is not a regular expression: {error}"
        ) from None


def _zone(where: str, name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name.removeprefix(":"))
    except (OSError, ValueError, LookupError):
        raise ConfigError(
            f"{where}.environment: there is no time zone {name!r}; expected e.g. Europe/Stockholm"
        ) from None


def _database(sections: Sections, name: str) -> DatabaseKeys:
    if name not in DATABASES:
        raise ConfigError(
            f"{sections.file}: {AGGREGATOR}.aggregators: there is no aggregator named {name!r}; "
            f"valid names: {', '.join(DATABASES)}"
        )
    return sections.read(name, DatabaseKeys)


def log_of(sections: Sections, found: LogKeys) -> LogSettings:
    """The log settings of a program: from its own section, then from the common one."""
    common = sections.read("common", LogKeys)
    level = found.loglevel or common.loglevel or "ERROR"
    return LogSettings(
        file=found.logfile or common.logfile,
        level=parse_level(f"{sections.file}: loglevel", level),
        format=found.logformat or DEFAULT_FORMAT,
    )


UPDATER: Final = "sams.software-updater"
EXTRACTOR: Final = "sams.software-extractor"
REGEXP: Final = "sams.software.Regexp"
XML: Final = "sams.xmlwriter.File"
#: SAMS's two databases; here both mean the store.
BACKENDS: Final = ("sams.backend.SoftwareAccounting", "sams.backend.SoftwareAccountingPW")


class _Updater(LogKeys, kw_only=True):
    backend: str = BACKENDS[0]
    updater: str = REGEXP
    #: jobsight: the store, and whether the ready rules follow the site's.
    store: str | None = None
    ready_rules: bool = False


class _Extractor(LogKeys, kw_only=True):
    backend: str = BACKENDS[0]
    xmlwriter: str = XML
    #: jobsight; see jobsight.config.settings.
    store: str | None = None
    cluster: str | None = None
    record_name: str | None = None
    timezone: str | None = None
    undetermined: bool = False


class _Xml(msgspec.Struct, kw_only=True):
    output_path: str = "/var/spool/softwareaccounting/records"
    remove_less_then: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    jobs_per_file: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1000


class UpdaterSettings(msgspec.Struct, kw_only=True):
    store: str
    #: Rule files, in order.
    rules: list[Path]
    ready_rules: bool
    log: LogSettings
    warnings: list[str]


class ExtractorSettings(msgspec.Struct, kw_only=True):
    store: str
    export: ExportSettings
    #: SAMS's own databases, which the import has read.
    databases: list[str] = msgspec.field(default_factory=list)
    log: LogSettings
    warnings: list[str]


def load_updater(file: Path | None, own: Settings | None = None) -> UpdaterSettings:
    """Read a site's file; without a file or without rules in it, jobsight's own settings apply."""
    own = load_settings() if own is None else own
    rules = [Path(name).expanduser() for name in own.software.rules]
    if file is None:
        return UpdaterSettings(
            store=own.store.location,
            rules=rules,
            ready_rules=own.software.ready_rules,
            log=_default_log(),
            warnings=[],
        )
    sections = sections_with(file, UPDATER)
    found = sections.read(UPDATER, _Updater)
    _check(sections, f"{UPDATER}.updater", found.updater, (REGEXP,))
    _check_backend(sections, UPDATER, found.backend)
    has_rules = REGEXP in sections.tree
    return UpdaterSettings(
        store=found.store or own.store.location,
        rules=[file] if has_rules else rules,
        ready_rules=found.ready_rules if has_rules else own.software.ready_rules,
        log=log_of(sections, found),
        warnings=sections.warnings,
    )


def load_extractor(file: Path | None, own: Settings | None = None) -> ExtractorSettings:
    """Read a site's file; without one, jobsight's own settings apply."""
    own = load_settings() if own is None else own
    if file is None:
        return ExtractorSettings(
            store=own.store.location, export=own.export, log=_default_log(), warnings=[]
        )
    sections = sections_with(file, EXTRACTOR)
    found = sections.read(EXTRACTOR, _Extractor)
    _check(sections, f"{EXTRACTOR}.xmlwriter", found.xmlwriter, (XML,))
    keys = _check_backend(sections, EXTRACTOR, found.backend)
    written = sections.read(XML, _Xml)
    return ExtractorSettings(
        store=found.store or own.store.location,
        export=ExportSettings(
            output_path=written.output_path,
            remove_less_then=written.remove_less_then,
            jobs_per_file=written.jobs_per_file,
            cluster=found.cluster,
            record_name=found.record_name,
            timezone=found.timezone,
            undetermined=found.undetermined,
        ),
        databases=_existing(keys.location(password=True)),
        log=log_of(sections, found),
        warnings=sections.warnings,
    )


def _existing(location: str | None) -> list[str]:
    """A database that may have been removed after the import."""
    if location is None or not ("://" in location or Path(location).exists()):
        return []
    return [location]


def _check_backend(sections: Sections, program: str, name: str) -> DatabaseKeys:
    _check(sections, f"{program}.backend", name, BACKENDS)
    # Only --skip of the extractor reads the files; an unknown key still deserves a warning.
    return sections.read(name, DatabaseKeys)


def _check(sections: Sections, key: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ConfigError(
            f"{sections.file}: {key}: there is no module named {name!r}; "
            f"expected {', '.join(known)}"
        )


def _default_log() -> LogSettings:
    return LogSettings(file=None, level="ERROR", format=DEFAULT_FORMAT)
