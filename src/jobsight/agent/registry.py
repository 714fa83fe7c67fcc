"""Loads probes, samplers and outputs by name: a built-in name, or ``package.module:Class``.

A part is imported when it is loaded, so the agent needs memory only for the parts in use.
"""

from __future__ import annotations

import importlib
from typing import Any

from jobsight.agent.outputs import LISTENERS, OUTPUTS
from jobsight.agent.samplers import SAMPLERS
from jobsight.errors import ConfigError

#: Kind of part -> built-in name -> import string.
PARTS: dict[str, dict[str, str]] = {
    "listener": dict(LISTENERS),
    "output": {
        "embedded": "jobsight.server.receiver:EmbeddedTarget",
        "server": "jobsight.transport.delivery:HttpTarget",
        **OUTPUTS,
    },
    "probe": {
        "cgroup": "jobsight.agent.probes.cgroup:CgroupProbe",
        "process-tree": "jobsight.agent.probes.process_tree:ProcessTreeProbe",
    },
    "sampler": SAMPLERS,
}


class PartError(ConfigError):
    """A part does not exist or cannot be imported."""


def names(kind: str) -> list[str]:
    """The built-in names of a kind of part."""
    return sorted(PARTS[kind])


def load_part(kind: str, name: str) -> Any:
    """Import a part by its name."""
    table = PARTS[kind]
    if ":" in name:
        return import_from_string(kind, name)
    if name not in table:
        valid = ", ".join(names(kind))
        raise PartError(
            f"there is no {kind} named {name!r}; valid names: {valid}; "
            f"expected one of them, or package.module:Name for your own"
        )
    return import_from_string(kind, table[name])


def import_from_string(kind: str, text: str) -> Any:
    """Import ``package.module:Name``; the error names the half that is wrong."""
    module_name, _, attributes = text.partition(":")
    if not module_name or not attributes:
        raise PartError(f"{kind} {text!r}: expected the form package.module:Name")
    try:
        part: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that the part itself fails to import is reported with its traceback.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise PartError(f"{kind} {text!r}: there is no module {error.name}") from None
    for attribute in attributes.split("."):
        try:
            part = getattr(part, attribute)
        except AttributeError:
            raise PartError(f"{kind} {text!r}: {module_name} has no {attributes}") from None
    return part
