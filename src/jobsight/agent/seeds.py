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
from jobsight.agent.seed_modules import Sections, load_output, load_sampler
from jobsight.errors import ConfigError
from jobsight.text import file_text

SECTION: Final = "sams.collector"
#: As seed 000 writes it.
OTHER_SECTION: Final = "sams-collector"
PID_FINDER: Final = "sams.pidfinder.Slurm"

#: Sections of SAMS's other programs in a shared file are none of the collector's business.
_OTHERS: Final = re.compile(
    r"sams[.-](post-receiver|aggregator|software-updater|software-extractor|loader|backend|"
    r"software|xmlwriter)(\..*)?"
)
_LEVELS: Final = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")
DEFAULT_FORMAT: Final = "%(asctime)s %(name)s:%(levelname)s %(message)s"

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


def is_seed_tree(tree: Mapping[str, Any]) -> bool:
    return SECTION in tree or OTHER_SECTION in tree


def _keep_umask_as_written(text: str, tree: dict[Any, Any]) -> None:
    """YAML reads 077 as 63 and 77 as 77; a umask is octal either way, so the letters count."""
    import yaml

    document = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(document, yaml.MappingNode)
    for name, section in document.value:
        if name.value not in (SECTION, OTHER_SECTION) or not isinstance(section, yaml.MappingNode):
            continue
        for key, value in section.value:
            if key.value == "umask" and isinstance(value, yaml.ScalarNode):
                tree[name.value]["umask"] = value.value


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


def parse_level(where: str, given: str) -> str:
    if given.upper() not in _LEVELS:
        raise ConfigError(f"{where}: there is no log level {given!r}; right: {', '.join(_LEVELS)}")
    return given.upper()


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
