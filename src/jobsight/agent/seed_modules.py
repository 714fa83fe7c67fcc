"""The modules that a seed's settings name: found, given their section, and checked at once."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from jobsight.agent.foreign import ForeignConfig, ForeignOutput, ForeignSampler, is_foreign
from jobsight.agent.job import JobView, Output, Sampler
from jobsight.agent.outputs.worker import OutputPlan
from jobsight.agent.parts import PartError, import_from_string
from jobsight.agent.sampling import SamplerPlan
from jobsight.agent.seed_sections import TABLES, Sections
from jobsight.errors import ConfigError

#: The class that a module of a site's own must hold.
_CLASSES: Final = {"sampler": "Sampler", "output": "Output", "listener": "Listener"}


class _SamplerKeys(msgspec.Struct, kw_only=True):
    sampler_interval: Annotated[float, msgspec.Meta(ge=0, le=10**9)] = 60.0


class _OutputKeys(msgspec.Struct, kw_only=True):
    #: Attempts to write a record; 0 and 1 both mean that it is tried once.
    retry_count: Annotated[int, msgspec.Meta(ge=0)] = 3
    retry_sleep: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 3.0


def find(sections: Sections, kind: str, name: str) -> Any:
    """The class behind a name: one of ours, or a module of the site's."""
    table = TABLES[kind]
    if name in table:
        return import_from_string(kind, table[name])
    own = name if ":" in name else f"{name}:{_CLASSES[kind]}"
    try:
        return import_from_string(kind, own)
    except PartError as error:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        seeds = ", ".join(sorted(known for known in table if "." in known))
        raise ConfigError(
            f"{sections.file}: there is no {kind} named {name!r}; {hint}valid names: {seeds}; "
            f"a module of your own needs a class {_CLASSES[kind]} ({error})"
        ) from None
    except ImportError as error:
        raise ConfigError(f"{sections.file}: {kind} {name!r} cannot be loaded: {error}") from None


def load_sampler(sections: Sections, name: str) -> SamplerPlan:
    """A sampler with its section. One is made and closed at once, so that it can object now."""
    part = find(sections, "sampler", name)
    section = sections.of(name)
    if is_foreign(part):
        keys = sections.convert(name, section, _SamplerKeys, tuple(section))
        return SamplerPlan(
            name,
            lambda view: ForeignSampler(
                part, name, keys.sampler_interval, ForeignConfig(sections.tree, view)
            ),
            keys.sampler_interval,
        )
    known = tuple(_keywords(part))
    keys = sections.convert(name, section, _SamplerKeys, known if known else tuple(section))
    options = {key: value for key, value in section.items() if not known or key in known}
    options = {key: value for key, value in options.items() if value is not None}
    options["sampler_interval"] = keys.sampler_interval

    def make(view: JobView | None = None) -> Sampler:
        sampler: Sampler = part(**options)
        return sampler

    try:
        make().close()
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"{sections.file}: {name}: {_without(name, str(error))}") from None
    return SamplerPlan(name, make, keys.sampler_interval)


def load_output(sections: Sections, kind: str, name: str) -> OutputPlan:
    """An output or a listener with its section."""
    part = find(sections, kind, name)
    section = sections.of(name)
    extra = tuple(field.name for field in msgspec.structs.fields(_OutputKeys))
    make: Callable[[JobView], Output]
    if is_foreign(part):
        if kind == "listener":
            raise ConfigError(
                f"{sections.file}: {name}: SAMS's listeners take its own samplers; "
                "right: sams.listener.Prometheus, or a class that takes documents"
            )
        keys = sections.convert(name, section, _OutputKeys, tuple(section))

        def make(view: JobView) -> Output:
            return ForeignOutput(part, name, ForeignConfig(sections.tree, view))

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
    """The settings that a sampler takes: the keyword arguments of its constructors."""
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
