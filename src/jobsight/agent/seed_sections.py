"""The sections of a seed's settings file, as all programs of the seeds read them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from jobsight.agent.outputs import LISTENERS, OUTPUTS
from jobsight.agent.samplers import SAMPLERS
from jobsight.errors import ConfigError
from jobsight.text import file_text

SECTION: Final = "sams.collector"
#: As seed 000 writes it.
OTHER_SECTION: Final = "sams-collector"

#: What a section may be of, by the kind of its module.
TABLES: Final = {"sampler": SAMPLERS, "output": OUTPUTS, "listener": LISTENERS}

_LEVELS: Final = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")
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


def parse_level(where: str, given: str) -> str:
    if given.upper() not in _LEVELS:
        raise ConfigError(f"{where}: there is no log level {given!r}; right: {', '.join(_LEVELS)}")
    return given.upper()


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
