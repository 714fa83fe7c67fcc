"""The sections of SAMS's programs that name software and report it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from jobsight.agent.seed_sections import DEFAULT_FORMAT, Sections
from jobsight.config.load import load_settings
from jobsight.config.settings import ExportSettings, Settings
from jobsight.errors import ConfigError
from jobsight.sams.settings import DatabaseKeys, LogKeys, LogSettings, log_of, sections_with

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
