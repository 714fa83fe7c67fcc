"""Series in the Prometheus text format, created from mapping templates."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.mapping import Mapper, MappingOptions, Value, fill
from jobsight.errors import ConfigError
from jobsight.prometheus.exposition import escape_label

_HELP: Final = "Job Usage Metrics"
_LABEL: Final = re.compile(
    r'\s*(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"(?P<value>(?:[^"\\\n]|\\.)*)"\s*(?P<next>,|$)'
)
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_EXPECTED: Final = 'expected name{label="%(name)s"}'


class SeriesTemplate(NamedTuple):
    """A parsed template, so that the value of each label can be escaped separately."""

    name: str
    labels: tuple[tuple[str, str], ...]


def parse_series(where: str, template: str) -> SeriesTemplate:
    """Parse ``name{label="value", ...}``. Raises ConfigError."""
    text = template.strip()
    name, brace, rest = text.partition("{")
    name = name.strip()
    if not _NAME.fullmatch(re.sub(r"%\([^()]*\)[a-z]", "x", name)):
        raise ConfigError(f"{where}: {name!r} is not the name of a Prometheus metric; {_EXPECTED}")
    if not brace:
        return SeriesTemplate(name, ())
    if not rest.endswith("}"):
        raise ConfigError(f"{where}: {template!r} does not end with a brace; {_EXPECTED}")
    inner, position = rest[:-1].strip(), 0
    labels: list[tuple[str, str]] = []
    while position < len(inner):
        match = _LABEL.match(inner, position)
        if match is None:
            raise ConfigError(f"{where}: no label can be read at {inner[position:]!r}; {_EXPECTED}")
        if match["name"] in dict(labels):
            raise ConfigError(f"{where}: the label {match['name']} is given twice")
        labels.append((match["name"], match["value"]))
        position = match.end()
    return SeriesTemplate(name, tuple(labels))


def _metric_name(text: str) -> str:
    cleaned = re.sub(r"[^a-zA-Z0-9_:]", "_", text)
    return cleaned if not cleaned[:1].isdigit() else f"_{cleaned}"


class ExpositionOptions(MappingOptions, kw_only=True):
    def __post_init__(self) -> None:
        Exposition(self)


class Exposition:
    """The latest value of every series of one job."""

    def __init__(self, options: MappingOptions) -> None:
        self.mapper = Mapper(options)
        self._templates = {
            rule.template: parse_series(f"metrics.{rule.expression.pattern}", rule.template)
            for rule in self.mapper.rules
        }
        self._families: dict[str, dict[str, int | float]] = {}
        self._by_sampler: dict[str, list[tuple[str, str]]] = {}

    def update(self, view: JobView, sampler: str, document: Document) -> bool:
        """Add a sample; False if nothing changed. Series that the document no longer has (a GPU,
        a mount point) are removed."""
        results = self.mapper.by_sampler(view, sampler, document)
        changed = [self._replace(each, values) for each, values in results.items()]
        return any(changed)

    def _replace(self, sampler: str, values: list[Value]) -> bool:
        before = self._by_sampler.pop(sampler, [])
        for name, labels in before:
            family = self._families[name]
            family.pop(labels, None)
            if not family:
                del self._families[name]
        now = self._by_sampler[sampler] = []
        for value in values:
            name, labels = self._series(value)
            self._families.setdefault(name, {})[labels] = value.number
            now.append((name, labels))
        return bool(before or now)

    def _series(self, value: Value) -> tuple[str, str]:
        template = self._templates[value.template]
        name = _metric_name(fill(template.name, value.fields, _metric_name))
        labels = ",".join(
            f'{label}="{fill(text, value.fields, escape_label)}"' for label, text in template.labels
        )
        return name, f"{{{labels}}}" if labels else ""

    def text(self) -> str:
        lines = []
        for name, series in sorted(self._families.items()):
            lines += [f"# HELP {name} {_HELP}", f"# TYPE {name} gauge"]
            lines += [f"{name}{labels} {number!r}" for labels, number in sorted(series.items())]
        return "".join(line + "\n" for line in lines)
