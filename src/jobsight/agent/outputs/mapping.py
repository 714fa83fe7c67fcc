"""SAMS's mapping of documents to the metric names of another system.

Documents are flattened to names such as ``/sams.sampler.SlurmCGroup/memory_usage``. Each entry of
``metrics`` is a regular expression over these names and a template. Values for ``%(name)s`` in
the template come from the named groups of the expression, from ``map`` (a path in the latest
documents) and from ``static_map`` (constants); ``jobid`` and ``node`` are always defined.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from jobsight.agent.job import Document, JobView
from jobsight.errors import ConfigError

#: A % in a template: an escaped percent sign, a placeholder, or an error.
_PERCENT: Final = re.compile(
    r"%(?:(?P<sign>%)|\((?P<name>[^()]*)\)(?P<form>[-+ #0]*\d*(?:\.\d+)?[diuoxXeEfFgGsr]))?"
)
_NUMBER: Final = re.compile(r"\s*[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?\s*")
_INTEGER_FORMS: Final = frozenset("diuoxX")


class MappingOptions(msgspec.Struct, kw_only=True):
    """The options of every output with a mapping."""

    map: dict[str, str] = msgspec.field(default_factory=dict)
    static_map: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    metrics: dict[str, str] = msgspec.field(default_factory=dict)


class Value(NamedTuple):
    """One number, the template of its rule, and the values for the template."""

    template: str
    fields: dict[str, Any]
    number: int | float


class Rule(NamedTuple):
    expression: re.Pattern[str]
    template: str
    #: The entries of ``map`` that the template uses.
    lookups: dict[str, tuple[str, ...]]


def placeholders(where: str, template: str) -> dict[str, str]:
    """The names in a template and their conversions (``s``, ``d``). Raises ConfigError."""
    conversions = {}
    for match in _PERCENT.finditer(template):
        if match["name"] is not None:
            conversions[match["name"]] = match["form"]
        elif not match["sign"]:
            raise ConfigError(
                f"{where}: {template!r} has a % at character {match.start() + 1} that starts no "
                "placeholder; expected %(name)s, or %% for a percent sign"
            )
    return conversions


def check_template(where: str, template: str, known: Mapping[str, Any]) -> None:
    """Refuse a template that cannot be filled from the known names."""
    for name in placeholders(where, template):
        if name not in known:
            raise ConfigError(
                f"{where}: %({name})s in {template!r} is not known; expected "
                + ", ".join(sorted(known))
            )
    try:
        template % dict(known)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {template!r} cannot be filled: {error}") from None


def flatten(documents: Mapping[str, Any], base: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values, with a leading slash as in SAMS."""
    for key, value in documents.items():
        name = f"{base}/{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, name)
        else:
            yield name, value


def as_number(value: Any) -> int | float | None:
    """The value as a number; None for ``max``, ``[N/A]``, NaN and other texts."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        # float() would also accept "nan", "infinity" and "1_000".
        if not _NUMBER.fullmatch(value):
            return None
        try:
            return int(value)
        except ValueError:
            value = float(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    return None


class Mapper:
    """The rules of one output, and the latest documents of one job."""

    def __init__(self, options: MappingOptions) -> None:
        self.rules = compile_rules(options)
        self._static = dict(options.static_map)
        self._documents: dict[str, Document] = {}
        #: Sampler -> values of its latest document for which an entry of ``map`` is not known.
        self._unknown: dict[str, int] = {}
        #: Values that are not numbers, and values for which an entry of ``map`` was not yet known.
        self.not_numeric = 0
        self.not_known = 0

    def values(self, view: JobView, sampler: str, document: Document) -> list[Value]:
        """Apply the rules to one sample, and again to those that waited for it."""
        return [
            value
            for values in self.by_sampler(view, sampler, document).values()
            for value in values
        ]

    def by_sampler(self, view: JobView, sampler: str, document: Document) -> dict[str, list[Value]]:
        """The values of one sample, by its sampler.

        The values of earlier samples are returned again if this document has an entry of ``map``
        that was not yet known for some of them.
        """
        self._documents[sampler] = document
        results = {sampler: self._apply(view, sampler)}
        for other, unknown in list(self._unknown.items()):
            values = self._apply(view, other) if other != sampler else []
            if self._unknown.get(other, 0) < unknown:
                results[other] = values
        return results

    def _apply(self, view: JobView, sampler: str) -> list[Value]:
        always = {"jobid": view.sighting.job_id, "node": view.sighting.node}
        values = []
        unknown = 0
        for name, value in flatten({sampler: self._documents[sampler]}):
            for rule in self.rules:
                # Expressions in the documentation of SAMS lack the leading slash.
                match = rule.expression.match(name) or rule.expression.match(name[1:])
                if match is None:
                    continue
                number = as_number(value)
                if number is None:
                    self.not_numeric += 1
                    continue
                mapped = self._mapped_values(rule)
                if mapped is None:
                    unknown += 1
                    continue
                groups = {key: text or "" for key, text in match.groupdict().items()}
                fields = always | self._static | groups | mapped
                values.append(Value(rule.template, fields, number))
        self.not_known += unknown
        if unknown:
            self._unknown[sampler] = unknown
        else:
            self._unknown.pop(sampler, None)
        return values

    def _mapped_values(self, rule: Rule) -> dict[str, Any] | None:
        """Values of ``map`` for the template; None if one of them is not yet known."""
        values = {}
        for name, path in rule.lookups.items():
            value: Any = self._documents
            for part in path:
                if not isinstance(value, Mapping) or part not in value:
                    return None
                value = value[part]
            if value is None or isinstance(value, Mapping):
                return None
            values[name] = value
        return values


def compile_rules(options: MappingOptions) -> list[Rule]:
    """Compile ``metrics``, checked against ``map`` and ``static_map``. Raises ConfigError."""
    for name, path in options.map.items():
        if not path.strip("/"):
            raise ConfigError(f"map.{name}: is empty; expected sampler/field")
    rules = []
    for text, template in options.metrics.items():
        where = f"metrics.{text}"
        try:
            expression = re.compile(text)
        except re.error as error:
            raise ConfigError(f"{where}: is not a regular expression: {error}") from None
        known: dict[str, Any] = {"jobid": 1, "node": "n"} | options.static_map
        known |= dict.fromkeys(expression.groupindex, "g") | dict.fromkeys(options.map, "m")
        used = placeholders(where, template)
        # Values of map are known only later: check a numeric conversion with a number.
        trial = {k: 1 if used.get(k, "s")[-1] in _INTEGER_FORMS else v for k, v in known.items()}
        check_template(where, template, trial)
        lookups = {
            name: tuple(options.map[name].strip("/").split("/"))
            for name in used
            if name in options.map
        }
        rules.append(Rule(expression, template, lookups))
    return rules


def fill(template: str, fields: Mapping[str, Any], clean: Callable[[str], str]) -> str:
    """Fill a template with cleaned strings; numbers stay numbers, so that ``%(jobid)d`` works."""
    safe = {k: v if isinstance(v, int | float) else clean(str(v)) for k, v in fields.items()}
    return template % safe
