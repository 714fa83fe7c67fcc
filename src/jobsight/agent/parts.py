"""Replaceable parts by name: a short name of ours, or anyone's ``package.module:Name``.

Nothing is imported before it is asked for, so the agent pays only for the parts it uses.
"""

from __future__ import annotations

import importlib
from typing import Any

from jobsight.agent.outputs import LISTENERS, OUTPUTS
from jobsight.agent.samplers import SAMPLERS
from jobsight.errors import ConfigError

#: Kind of part -> short name -> import string.
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
    """A part cannot be found or imported."""


def names(kind: str) -> list[str]:
    """The short names of a kind of part."""
    return sorted(PARTS[kind])


def load_part(kind: str, name: str) -> Any:
    """Import the part that a name stands for."""
    table = PARTS[kind]
    if ":" in name:
        return import_from_string(kind, name)
    if name not in table:
        valid = ", ".join(sorted(table)) or "none yet"
        raise PartError(
            f"there is no {kind} named {name!r}; valid names: {valid}; "
            f"your own {kind} is given as package.module:Name"
        )
    return import_from_string(kind, table[name])


def import_from_string(kind: str, text: str) -> Any:
    """Import ``package.module:Name``; the error says which half of it is wrong."""
    module_name, _, attributes = text.partition(":")
    if not module_name or not attributes:
        raise PartError(f"{kind} {text!r}: right would be the form package.module:Name")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that is missing inside the part is the part's trouble: let its trace be seen.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise PartError(f"{kind} {text!r}: there is no module {error.name}") from None
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise PartError(f"{kind} {text!r}: {module_name} has no {attributes}") from None
    return found
