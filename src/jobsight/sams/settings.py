"""The sections of a seed's settings file, as all programs of the seeds read them.

The sections of SAMS's server programs, from the YAML file that stands on a site.

The sections of SAMS's programs that name software and report it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from datetime import tzinfo
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from jobsight.agent.outputs import LISTENERS, OUTPUTS
from jobsight.agent.samplers import SAMPLERS
from jobsight.config.load import load_settings
from jobsight.config.settings import ExportSettings, Settings
from jobsight.errors import ConfigError
from jobsight.sams.record import MAX_SIZE
from jobsight.text import file_text
from jobsight.util.logging import parse_level

SECTION: Final = "sams.collector"
#: As seed 000 writes it.
OTHER_SECTION: Final = "sams-collector"

#: What a section may be of, by the kind of its module.
TABLES: Final = {"sampler": SAMPLERS, "output": OUTPUTS, "listener": LISTENERS}

DEFAULT_FORMAT: Final = "%(asctime)s %(name)s:%(levelname)s %(message)s"

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def read_tree(file: Path) -> dict[str, Any]:
    """The file's sections."""
    text = file_text(file)
    # Imported only where it is needed: a megabyte on every node.
    import yaml

    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: holds no sections; right: one named {SECTION}")
    _keep_umask_as_written(text, tree)
    return {str(key): value for key, value in tree.items()}


def _keep_umask_as_written(text: str, tree: dict[Any, Any]) -> None:
    """YAML reads 077 as 63 and 77 as 77; a umask is octal either way, so the letters count."""
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
    """The sections of one file, and what was noticed while they were read."""

    def __init__(self, file: str, tree: Mapping[str, Any]) -> None:
        self.file = file
        self.tree = tree
        self.used: set[str] = set()
        self.warnings: list[str] = []

    def warn(self, sentence: str) -> None:
        self.warnings.append(f"{self.file}: {sentence}")

    def of(self, name: str) -> dict[str, Any]:
        """A section as it stands; one that is empty or not there has no keys."""
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
        """Read a section; each value is checked by itself, so that an error names it."""
        return self.convert(name, self.of(name), struct)

    def convert(
        self, name: str, section: dict[str, Any], struct: type[_Struct], also: tuple[str, ...] = ()
    ) -> _Struct:
        fields = {field.name: field for field in msgspec.structs.fields(struct)}
        values = {}
        for key, value in section.items():
            if key in fields:
                # A key without a value is one that was left out.
                if value is not None:
                    values[key] = self._value(f"{name}.{key}", value, fields[key].type)
            elif key not in also:
                self._unknown(name, key, [*fields, *also])
        for key, field in fields.items():
            if field.required and key not in values:
                raise ConfigError(f"{self.file}: {name}.{key}: is missing")
        try:
            return struct(**values)
        except ConfigError as error:
            raise ConfigError(f"{self.file}: {name}.{error}") from None

    def _value(self, path: str, value: Any, wanted: Any) -> Any:
        try:
            # Not strict: a number in quotes is the number.
            return msgspec.convert(value, wanted, strict=False)
        except msgspec.ValidationError as error:
            reason = re.sub(r" - at `\$(.*)`$", r" (at \1)", str(error))
            reason = reason[:1].lower() + reason[1:]
            hint = ""
            if "expected `str" in reason and isinstance(value, int | float):
                hint = f"; right: the value in quotes, '{value}'"
            raise ConfigError(f"{self.file}: {path}: {reason}{hint}") from None

    def _unknown(self, name: str, key: str, known: list[str]) -> None:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        self.warn(f"{name}.{key}: unknown key; {hint}")

    @staticmethod
    def modules() -> list[str]:
        return [name for table in TABLES.values() for name in table]

    def is_module(self, name: str) -> bool:
        return any(name in table for table in TABLES.values()) or name == "sams.pidfinder.Slurm"


AGGREGATOR: Final = "sams.aggregator"
RECEIVER: Final = "sams.post-receiver"
FILE: Final = "sams.loader.File"
FALLBACK: Final = "sams.loader.FileSlurmInfoFallback"
#: SAMS's own two databases. Here both mean this store.
DATABASES: Final = ("sams.aggregator.SoftwareAccounting", "sams.aggregator.SoftwareAccountingPW")

_Size = Annotated[int, msgspec.Meta(ge=1024, le=2**31)]


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


UPDATER: Final = "sams.software-updater"
EXTRACTOR: Final = "sams.software-extractor"
REGEXP: Final = "sams.software.Regexp"
XML: Final = "sams.xmlwriter.File"
#: SAMS's own two databases. Here both mean this store.
BACKENDS: Final = ("sams.backend.SoftwareAccounting", "sams.backend.SoftwareAccountingPW")


class _Updater(LogKeys, kw_only=True):
    backend: str = BACKENDS[0]
    updater: str = REGEXP
    #: Ours: the store, and whether the ready rules come after the site's.
    store: str | None = None
    ready_rules: bool = False


class _Extractor(LogKeys, kw_only=True):
    backend: str = BACKENDS[0]
    xmlwriter: str = XML
    #: Ours; see jobsight.config.settings.
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
    #: Files of rules in their order.
    rules: list[Path]
    ready_rules: bool
    log: LogSettings
    warnings: list[str]


class ExtractorSettings(msgspec.Struct, kw_only=True):
    store: str
    export: ExportSettings
    log: LogSettings
    warnings: list[str]


def load_updater(file: Path | None, own: Settings | None = None) -> UpdaterSettings:
    """Read a site's file; without one, and where it has no rules, jobsight's own settings."""
    own = load_settings() if own is None else own
    rules = [Path(name).expanduser() for name in own.software.rules]
    if file is None:
        return UpdaterSettings(
            store=own.store.location,
            rules=rules,
            ready_rules=own.software.ready_rules,
            log=_plain_log(),
            warnings=[],
        )
    sections = sections_with(file, UPDATER)
    found = sections.read(UPDATER, _Updater)
    _check(sections, f"{UPDATER}.updater", found.updater, (REGEXP,))
    _check_backend(sections, UPDATER, found.backend)
    its_own = REGEXP in sections.tree
    return UpdaterSettings(
        store=found.store or own.store.location,
        rules=[file] if its_own else rules,
        ready_rules=found.ready_rules if its_own else own.software.ready_rules,
        log=log_of(sections, found),
        warnings=sections.warnings,
    )


def load_extractor(file: Path | None, own: Settings | None = None) -> ExtractorSettings:
    """Read a site's file; without one, jobsight's own settings."""
    own = load_settings() if own is None else own
    if file is None:
        return ExtractorSettings(
            store=own.store.location, export=own.export, log=_plain_log(), warnings=[]
        )
    sections = sections_with(file, EXTRACTOR)
    found = sections.read(EXTRACTOR, _Extractor)
    _check(sections, f"{EXTRACTOR}.xmlwriter", found.xmlwriter, (XML,))
    _check_backend(sections, EXTRACTOR, found.backend)
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
        log=log_of(sections, found),
        warnings=sections.warnings,
    )


def _check_backend(sections: Sections, program: str, name: str) -> None:
    _check(sections, f"{program}.backend", name, BACKENDS)
    # Its keys describe files that are not read here; a slip in one is still worth a word.
    sections.read(name, DatabaseKeys)


def _check(sections: Sections, key: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ConfigError(
            f"{sections.file}: {key}: there is no module named {name!r} here; "
            f"right: {', '.join(known)}"
        )


def _plain_log() -> LogSettings:
    return LogSettings(file=None, level="ERROR", format=DEFAULT_FORMAT)
