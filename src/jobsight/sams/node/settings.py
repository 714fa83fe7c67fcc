"""Settings of SAMS's collector, read from a site's existing YAML file.

A file that worked with SAMS must load, so an unknown key is a warning with the nearest name. A
wrong type or an unknown module is an error. :func:`load_sampler` and :func:`load_output` find the
modules that the file names and validate their sections.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from jobsight.agent.job import JobView, Output, Sampler
from jobsight.agent.outputs.worker import OutputPlan
from jobsight.agent.registry import PartError, import_from_string
from jobsight.agent.sampling import SamplerPlan
from jobsight.errors import ConfigError
from jobsight.sams.node import base_classes
from jobsight.sams.node.plugins import (
    PluginListener,
    PluginMapper,
    PluginOutput,
    PluginSampler,
    is_site_plugin,
    plugin_config,
)
from jobsight.sams.settings import (
    DEFAULT_FORMAT,
    OTHER_SECTION,
    REGEXP,
    SECTION,
    TABLES,
    Sections,
    read_tree,
)
from jobsight.text import path_bytes
from jobsight.util.logging import parse_level

PID_FINDER: Final = "sams.pidfinder.Slurm"

#: Sections of SAMS's other programs, which a shared file may contain.
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


class SamsSettings(msgspec.Struct, kw_only=True):
    """The validated settings, with defaults."""

    file: str
    pid_finder: str
    pid_finder_update_interval: float
    grace_period: float
    samplers: list[SamplerPlan]
    #: Including the listeners: both receive documents.
    outputs: list[OutputPlan]
    #: The directory of Slurm's commands, from the scontrol of sams.sampler.SlurmInfo.
    slurm_directory: str | None = None
    umask: int
    logfile: str | None
    loglevel: str
    logformat: str
    warnings: list[str]


def _slurm_directory(sections: Sections) -> str | None:
    section = sections.tree.get("sams.sampler.SlurmInfo")
    scontrol = section.get("scontrol") if isinstance(section, Mapping) else None
    if not isinstance(scontrol, str) or "/" not in scontrol:
        return None
    return str(Path(scontrol).parent)


def is_sams_tree(tree: Mapping[str, Any]) -> bool:
    return SECTION in tree or OTHER_SECTION in tree


def load_sams_settings(file: Path | str) -> SamsSettings:
    """Read a file and load the modules it names."""
    return settings_of(read_tree(Path(file)), str(file))


def settings_of(tree: Mapping[str, Any], file: str) -> SamsSettings:
    sections = Sections(file, tree)
    name = SECTION if SECTION in tree else OTHER_SECTION
    if name not in tree:
        near = _near(SECTION, [*tree])
        raise ConfigError(
            f"{file}: there is no section {SECTION}"
            + (f"; did you mean {near[0]}?" if near else "")
        )
    if SECTION in tree and OTHER_SECTION in tree:
        sections.warn(f"{OTHER_SECTION}: is ignored, because there is also a section {SECTION}")
    collector = sections.read(name, _Collector)
    common = sections.read("common", _Common)
    samplers = [load_sampler(sections, module) for module in collector.samplers]
    outputs = [load_output(sections, "output", module) for module in collector.outputs]
    outputs += [load_output(sections, "listener", module) for module in collector.listeners]
    if collector.pid_finder != PID_FINDER:
        raise ConfigError(
            f"{file}: {name}.pid_finder: there is no pid finder named {collector.pid_finder!r}; "
            f"valid names: {PID_FINDER}"
        )
    grace_period = sections.read(PID_FINDER, _PidFinder).grace_period
    _warn_of_unused(sections, name)
    return SamsSettings(
        file=file,
        pid_finder=collector.pid_finder,
        pid_finder_update_interval=collector.pid_finder_update_interval,
        grace_period=grace_period,
        samplers=samplers,
        outputs=outputs,
        slurm_directory=_slurm_directory(sections),
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
        raise ConfigError(
            f"{where}: {given!r} is not a umask; expected an octal number such as '077'"
        )
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
    """Warn about sections that no module uses; one may be misspelled."""
    for name in sections.tree:
        used = name in sections.used or name in (SECTION, OTHER_SECTION)
        if used or _OTHERS.fullmatch(name) or sections.is_module(name):
            continue
        near = _near(name, [*sections.used, *sections.modules()])
        hint = f"did you mean {near[0]}?" if near else "it is not used"
        sections.warn(f"{name}: unknown section; {hint}")


def _near(name: str, among: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(among), n=1)


#: The class that a site's own module must contain.
_CLASSES: Final = {
    "sampler": "Sampler",
    "output": "Output",
    "listener": "Listener",
    "software mapper": "Software",
}
#: Paths whose software name is cached: each is mapped again at every interval.
_MAPPER_CACHE_SIZE: Final = 4096


class _SamplerKeys(msgspec.Struct, kw_only=True):
    sampler_interval: Annotated[float, msgspec.Meta(ge=0, le=10**9)] = 60.0


class _OutputKeys(msgspec.Struct, kw_only=True):
    #: Attempts to write a record; 0 and 1 both mean one attempt.
    retry_count: Annotated[int, msgspec.Meta(ge=0)] = 3
    retry_sleep: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 3.0


def find(sections: Sections, kind: str, name: str) -> Any:
    """The class of a module: jobsight's own, or the site's."""
    table = TABLES.get(kind, {})
    if name in table:
        return import_from_string(kind, table[name])
    own = name if ":" in name else f"{name}:{_CLASSES[kind]}"
    base_classes.offer()
    try:
        return import_from_string(kind, own)
    except PartError as error:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        valid = ", ".join(sorted(known for known in table if "." in known))
        raise ConfigError(
            f"{sections.file}: there is no {kind} named {name!r}; {hint}valid names: {valid}; "
            f"a site's own module needs a class {_CLASSES[kind]} ({error})"
        ) from None
    except ImportError as error:
        raise ConfigError(f"{sections.file}: {kind} {name!r} cannot be loaded: {error}") from None


def load_sampler(sections: Sections, name: str) -> SamplerPlan:
    """A sampler with its section. One instance is created and closed, so that it validates now."""
    part = find(sections, "sampler", name)
    section = sections.of(name)
    if is_site_plugin(part):
        keys = sections.convert(name, section, _SamplerKeys, tuple(section))
        return SamplerPlan(
            name,
            lambda view: PluginSampler(
                part, name, keys.sampler_interval, plugin_config(sections.tree, view)
            ),
            keys.sampler_interval,
        )
    known = tuple(_keywords(part))
    keys = sections.convert(name, section, _SamplerKeys, known if known else tuple(section))
    options = {key: value for key, value in section.items() if not known or key in known}
    options = {key: value for key, value in options.items() if value is not None}
    options["sampler_interval"] = keys.sampler_interval
    mapper = options.get("software_mapper")
    if isinstance(mapper, str):
        try:
            options["software_mapper"] = load_mapper(sections, mapper)
        except ConfigError as error:
            # As in SAMS: the record is complete without the names.
            sections.warnings.append(f"{error}; software_mapper is not used")
            del options["software_mapper"]

    def make(view: JobView | None = None) -> Sampler:
        sampler: Sampler = part(**options)
        return sampler

    try:
        make().close()
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"{sections.file}: {name}: {_without(name, str(error))}") from None
    return SamplerPlan(name, make, keys.sampler_interval)


def load_mapper(sections: Sections, name: str) -> Callable[[str], str | None]:
    """The mapper of paths to software names: the rules in this file, or a site's own module."""
    if name != REGEXP:
        mapper: Callable[[str], str | None] = PluginMapper(
            find(sections, "software mapper", name), name, sections.tree
        )
        return lru_cache(_MAPPER_CACHE_SIZE)(mapper)
    # Imported only if needed: the rules are not part of the agent.
    from jobsight.software.rule_file import parse_rules
    from jobsight.software.rules import RuleSet

    rules = RuleSet([parse_rules(sections.file, sections.of(REGEXP))])
    sections.warnings.extend(rules.warnings)

    def software(path: str) -> str | None:
        named = rules.name(path_bytes(path))
        return None if named is None or named.ignored else named.software

    return lru_cache(_MAPPER_CACHE_SIZE)(software)


def load_output(sections: Sections, kind: str, name: str) -> OutputPlan:
    """An output or a listener with its section."""
    part = find(sections, kind, name)
    section = sections.of(name)
    extra = tuple(field.name for field in msgspec.structs.fields(_OutputKeys))
    make: Callable[[JobView], Output]
    if is_site_plugin(part):
        keys = sections.convert(name, section, _OutputKeys, tuple(section))
        plugin = PluginListener if kind == "listener" else PluginOutput

        def make(view: JobView) -> Output:
            return plugin(part, name, plugin_config(sections.tree, view))

    elif hasattr(part, "Options"):
        options = sections.convert(name, section, part.Options, extra)
        own = {key: value for key, value in section.items() if key in extra}
        keys = sections.convert(name, own, _OutputKeys)

        def make(view: JobView) -> Output:
            output: Output = part(options, view, name)
            return output

    else:
        keys = sections.convert(name, section, _OutputKeys, tuple(section))

        def make(view: JobView) -> Output:
            output: Output = part(section, view)
            return output

    return OutputPlan(name, make, keys.retry_count, keys.retry_sleep)


def _keywords(part: Any) -> list[str]:
    """The settings of a sampler: the keyword arguments of its constructors."""
    names: dict[str, None] = {}
    for base in getattr(part, "__mro__", ()):
        code = getattr(vars(base).get("__init__"), "__code__", None)
        if code is not None:
            first = code.co_argcount
            names.update(dict.fromkeys(code.co_varnames[first : first + code.co_kwonlyargcount]))
    names.pop("node", None)
    return list(names)


def _without(name: str, text: str) -> str:
    return text.removeprefix(f"{name}: ")
