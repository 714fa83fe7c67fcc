"""The seeds' settings: SAMS's YAML file as it stands on a site, read letter by letter.

A file that worked must load, so an unknown key is a warning with the nearest name. What would be
understood wrongly (a wrong type, a module that does not exist) is an error that says what is right.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from jobsight.agent.outputs.worker import OutputPlan
from jobsight.agent.sampling import SamplerPlan
from jobsight.agent.seed_modules import load_output, load_sampler
from jobsight.agent.seed_sections import (
    DEFAULT_FORMAT,
    OTHER_SECTION,
    SECTION,
    Sections,
    parse_level,
    read_tree,
)
from jobsight.errors import ConfigError

PID_FINDER: Final = "sams.pidfinder.Slurm"

#: Sections of SAMS's other programs in a shared file are none of the collector's business.
_OTHERS: Final = re.compile(
    r"sams[.-](post-receiver|aggregator|software-updater|software-extractor|loader|backend|"
    r"software|xmlwriter)(\..*)?"
)

Seconds = Annotated[float, msgspec.Meta(ge=0, le=10**9)]


class _Collector(msgspec.Struct, kw_only=True):
    pid_finder: str = PID_FINDER
    pid_finder_update_interval: Seconds = 30.0
    samplers: list[str] = msgspec.field(default_factory=list)
    outputs: list[str] = msgspec.field(default_factory=list)
    listeners: list[str] = msgspec.field(default_factory=list)
    umask: str | int = "077"
    logfile: str | None = None
    loglevel: str | None = None
    logformat: str | None = None


class _Common(msgspec.Struct, kw_only=True):
    logfile: str | None = None
    loglevel: str | None = None


class _PidFinder(msgspec.Struct, kw_only=True):
    grace_period: Seconds = 600.0


class SeedSettings(msgspec.Struct, kw_only=True):
    """What the file says, checked and with the defaults filled in."""

    file: str
    pid_finder: str
    pid_finder_update_interval: float
    grace_period: float
    samplers: list[SamplerPlan]
    #: The listeners are among them: both take documents.
    outputs: list[OutputPlan]
    umask: int
    logfile: str | None
    loglevel: str
    logformat: str
    warnings: list[str]


def is_seed_tree(tree: Mapping[str, Any]) -> bool:
    return SECTION in tree or OTHER_SECTION in tree


def load_seed_settings(file: Path | str) -> SeedSettings:
    """Read a file and find every module it names."""
    return settings_of(read_tree(Path(file)), str(file))


def settings_of(tree: Mapping[str, Any], file: str) -> SeedSettings:
    sections = Sections(file, tree)
    name = SECTION if SECTION in tree else OTHER_SECTION
    if name not in tree:
        near = _near(SECTION, [*tree])
        raise ConfigError(
            f"{file}: there is no section {SECTION}"
            + (f"; is {near[0]} meant to be it?" if near else "")
        )
    if SECTION in tree and OTHER_SECTION in tree:
        sections.warn(f"{OTHER_SECTION}: is not read, because {SECTION} is there as well")
    collector = sections.read(name, _Collector)
    common = sections.read("common", _Common)
    samplers = [load_sampler(sections, one) for one in collector.samplers]
    outputs = [load_output(sections, "output", one) for one in collector.outputs]
    outputs += [load_output(sections, "listener", one) for one in collector.listeners]
    if collector.pid_finder != PID_FINDER:
        raise ConfigError(
            f"{file}: {name}.pid_finder: there is no pid finder named {collector.pid_finder!r}; "
            f"valid names: {PID_FINDER}"
        )
    grace_period = sections.read(PID_FINDER, _PidFinder).grace_period
    _warn_of_unused(sections, name)
    return SeedSettings(
        file=file,
        pid_finder=collector.pid_finder,
        pid_finder_update_interval=collector.pid_finder_update_interval,
        grace_period=grace_period,
        samplers=samplers,
        outputs=outputs,
        umask=parse_umask(f"{file}: {name}.umask", collector.umask),
        logfile=collector.logfile if collector.logfile is not None else common.logfile,
        loglevel=parse_level(f"{file}: loglevel", collector.loglevel or common.loglevel or "ERROR"),
        logformat=_checked_format(f"{file}: {name}.logformat", collector.logformat),
        warnings=sections.warnings,
    )


def parse_umask(where: str, given: str | int) -> int:
    try:
        umask = given if isinstance(given, int) else int(given, 8)
    except ValueError:
        umask = -1
    if not 0 <= umask <= 0o777:
        raise ConfigError(f"{where}: {given!r} is no umask; right: an octal number such as '077'")
    return umask


def _checked_format(where: str, given: str | None) -> str:
    if given is None:
        return DEFAULT_FORMAT
    try:
        logging.Formatter(given).format(logging.makeLogRecord({"asctime": ""}))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where}: {given!r} cannot be used: {error}") from None
    return given


def _warn_of_unused(sections: Sections, collector: str) -> None:
    """A section that nobody reads may be a name with a slip in it."""
    for name in sections.tree:
        used = name in sections.used or name in (SECTION, OTHER_SECTION)
        if used or _OTHERS.fullmatch(name) or sections.is_module(name):
            continue
        near = _near(name, [*sections.used, *sections.modules()])
        hint = f"did you mean {near[0]}?" if near else "nothing reads it"
        sections.warn(f"{name}: unknown section; {hint}")


def _near(name: str, among: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(among), n=1)
