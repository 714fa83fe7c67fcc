"""One file of rules: YAML, read with line numbers.

Every key is read or refused, with the file, the line, what is wrong and what is expected. Texts,
expressions and quantities are checked when the file is read, so that a rule that loads can be
applied. See docs/findings-rules.md.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec

from jobsight.errors import ConfigError
from jobsight.findings.conditions import RESERVED, Expression, ExpressionError, Scope
from jobsight.findings.dimensions import EXAMPLES
from jobsight.findings.finding import Audience, Outcome, Severity
from jobsight.findings.texts import Template, TemplateError
from jobsight.findings.units import Unit, Value, parse_quantity
from jobsight.findings.vocabulary import FIGURES, Group
from jobsight.metrics import METRICS, find_metric
from jobsight.text import file_text, yaml_reason
from jobsight.util.outer import parse_rfc3339, to_seconds

When = Literal["ended", "running", "both"]
#: Resources that a rule can have a cost in, and their units.
COSTS: Final[dict[str, Unit]] = {
    "core_time": "core time",
    "gpu_time": "gpu time",
    "memory_time": "memory time",
    "energy": "energy",
}

#: Bytes of a file, levels of nesting, entries of any list or mapping, and characters of a text.
MAX_FILE: Final = 2**20
_MAX_DEPTH: Final = 20
_MAX_ENTRIES: Final = 1000
_MAX_TEXT: Final = 20_000
_MAX_TITLE: Final = 100

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MAX_NAME: Final = 60
_PARAMETER: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")

_FILE: Final = ("rules", "adjust")
_RULE: Final = (
    "name", "title", "when", "severity", "audience", "requires", "parameters", "minimum",
    "condition", "excuses", "defaults", "explains", "cost", "text", "change", "evidence", "help",
    "tests",
)  # fmt: skip
_SELECTORS: Final = ("clusters", "partitions", "accounts")
_ADJUST: Final = ("rules", *_SELECTORS, "parameters", "enabled", "severity", "minimum")
_TEST: Final = (
    "figures", "outcome", "unknown", "coverage", "cluster", "partition", "account",
    "severity", "text", "change", "cost",
)  # fmt: skip

_Choice = TypeVar("_Choice")


class RuleError(ConfigError):
    """A rule file is invalid; the message starts with the file and the line."""


class Parameter(msgspec.Struct, frozen=True):
    """A named threshold of a rule."""

    value: Value
    unit: Unit


class Minimum(msgspec.Struct, frozen=True):
    """What a run must have so that a rule decides; None is the default of the settings."""

    #: Seconds.
    elapsed: float | None = None
    coverage: float | None = None


class EvidenceSource(msgspec.Struct, frozen=True):
    """Metrics, and names of the figures that hold the rest."""

    series: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    programs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class RuleTest(msgspec.Struct, frozen=True, kw_only=True):
    """A test in a rule file: figures of a run and what the rule must decide."""

    line: int
    figures: dict[str, Value]
    unknown: dict[str, str]
    coverage: dict[Group, float]
    #: Cluster, partition and account of the run.
    selection: tuple[str, str, str]
    outcome: Outcome
    severity: Severity | None
    text: str | None
    change: str | None
    #: By resource, in the base of its unit.
    cost: dict[str, float]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as written."""

    name: str
    file: str
    line: int
    title: str
    when: When
    #: In order; the first whose condition holds is taken, and the last has none.
    severities: list[tuple[Severity, Expression | None]]
    audience: Audience
    requires: Expression | None
    parameters: dict[str, Parameter]
    minimum: Minimum
    condition: Expression
    #: Each with the sentence after "because".
    excuses: list[tuple[Expression, Template]]
    defaults: dict[str, Value]
    explains: tuple[str, ...]
    cost: dict[str, Expression]
    #: Alternatives: the first whose figures are all known is taken.
    text: list[Template]
    change: list[Template]
    evidence: EvidenceSource
    #: Markdown.
    help: str
    tests: list[RuleTest]
    #: Everything that decides about findings, for the digest of the rules.
    source: object


class Adjustment(msgspec.Struct, frozen=True, kw_only=True):
    """A change of rules for some clusters, partitions or accounts. Patterns have * and ?."""

    file: str
    line: int
    rules: tuple[str, ...]
    #: None selects all.
    clusters: tuple[str, ...] | None
    partitions: tuple[str, ...] | None
    accounts: tuple[str, ...] | None
    parameters: dict[str, Parameter]
    enabled: bool | None
    severity: Severity | None
    minimum: Minimum
    source: object


class RuleFile(msgspec.Struct, frozen=True):
    """The content of one file."""

    name: str
    rules: list[Rule]
    adjustments: list[Adjustment]


def read_rules(file: Path, *, shipped: bool = False) -> RuleFile:
    """Read and validate a file; a shipped one is known by its bare name."""
    try:
        size = file.stat().st_size
    except OSError as error:
        raise RuleError(f"{file}: cannot be read: {error.strerror}") from None
    name = file.name if shipped else str(file)
    if size > MAX_FILE:
        raise RuleError(f"{name}: has {size:,} bytes; expected at most {MAX_FILE:,} bytes")
    return parse_rules(name, file_text(file))


def parse_rules(name: str, text: str) -> RuleFile:
    """Validate the text of a file."""
    root = _compose(name, text)
    if root is None:
        return RuleFile(name, [], [])
    top = _Entry(name, "", root).mapping(_FILE)
    rules: list[Rule] = []
    seen: dict[str, int] = {}
    for entry in top.entries("rules"):
        rule = _read_rule(entry)
        if rule.name in seen:
            raise entry.error(
                f"{rule.name} is already defined in line {seen[rule.name]}; expected another name"
            )
        seen[rule.name] = rule.line
        rules.append(rule)
    adjustments = [_read_adjustment(entry) for entry in top.entries("adjust")]
    return RuleFile(name, rules, adjustments)


def _compose(name: str, text: str) -> Any:
    """The nodes of the file; its loader keeps the line of each."""
    import yaml

    # The C loader is ten times as fast, but not always built.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, loader):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent):
                # A few lines of aliases expand to any size.
                raise RuleError(f"{name}:{line}: has an alias (*name); expected it written out")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _MAX_DEPTH:
                raise RuleError(f"{name}:{line}: is nested too deeply; expected rules: and adjust:")
        return yaml.compose(text, loader)
    except yaml.YAMLError as error:
        # "line 2, column 5: what is wrong".
        reason = re.sub(r"^line (\d+), column \d+: ", r"\1: ", yaml_reason(error))
        raise RuleError(f"{name}:{'' if reason[0].isdigit() else ' '}{reason}") from None


class _Entry:
    """A node of the file with its place in it."""

    def __init__(self, file: str, path: str, node: Any) -> None:
        self.file = file
        #: "rule NAME: KEY".
        self.path = path
        self._node = node
        self.line: int = node.start_mark.line + 1
        self._fields: dict[str, _Entry] = {}

    def error(self, sentence: str) -> RuleError:
        path = f" {self.path}:" if self.path else ""
        return RuleError(f"{self.file}:{self.line}:{path} {sentence}")

    # Mappings.

    def mapping(self, known: tuple[str, ...] | None = None) -> _Entry:
        """The same entry, which must be a mapping of known keys."""
        if self._node.id != "mapping":
            expected = ", ".join(known) if known else "names and values"
            raise self.error(f"is {self._kind()}; expected a mapping of {expected}")
        if len(self._node.value) > _MAX_ENTRIES:
            raise self.error(f"has too many keys; expected at most {_MAX_ENTRIES:,}")
        for key, value in self._node.value:
            place = _Entry(self.file, self.path, key)
            if key.id != "scalar":
                raise place.error("has a key that is not a name; expected a name")
            name = key.value
            if name in self._fields:
                raise place.error(f"{_quoted(name)} is given twice; expected it once")
            if known is not None and name not in known:
                raise place.error(f"unknown key {_quoted(name)}; {_hint(name, known)}")
            field = _Entry(self.file, f"{self.path}: {name}" if self.path else name, value)
            # The line of the key: a text in the next lines belongs to it.
            field.line = place.line
            self._fields[name] = field
        return self

    def peek(self, key: str) -> str:
        """A valid name in a mapping that has not been checked, for the messages about it."""
        pairs = self._node.value if self._node.id == "mapping" else ()
        texts = (value.value for name, value in pairs if name.value == key and value.id == "scalar")
        name = next(texts, "")
        return name if _is_name(name) else ""

    def field(self, key: str) -> _Entry | None:
        return self._fields.get(key)

    def required(self, key: str) -> _Entry:
        if key not in self._fields:
            raise self.error(f"{key} is missing; expected {key}: in this entry")
        return self._fields[key]

    def fields(self) -> dict[str, _Entry]:
        return self._fields

    # Lists.

    def entries(self, key: str) -> Iterator[_Entry]:
        field = self.field(key)
        return iter(()) if field is None else iter(field.items())

    def items(self) -> list[_Entry]:
        """The entries of a list."""
        if self._node.id != "sequence":
            raise self.error(f"is {self._kind()}; expected a list")
        if len(self._node.value) > _MAX_ENTRIES:
            raise self.error(f"has too many entries; expected at most {_MAX_ENTRIES:,}")
        return [_Entry(self.file, self.path, node) for node in self._node.value]

    def items_or_one(self) -> list[_Entry]:
        return self.items() if self._node.id == "sequence" else [self]

    # Scalars.

    def text(self, limit: int = _MAX_TEXT) -> str:
        if not self._is("str"):
            hint = f": put it in quotes: '{self._node.value}'" if self._node.id == "scalar" else ""
            raise self.error(f"is {self._kind()}; expected a text{hint}")
        if len(self._node.value) > limit:
            raise self.error(
                f"has {len(self._node.value):,} characters; expected at most {limit:,}"
            )
        return str(self._node.value)

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text(_MAX_TITLE) for item in self.items())

    def flag(self) -> bool:
        if not self._is("bool"):
            raise self.error(f"is {self._kind()}; expected true or false")
        return str(self._node.value).lower() in ("true", "yes", "on")

    def choice(self, choices: tuple[_Choice, ...]) -> _Choice:
        text = self._node.value if self._node.id == "scalar" else None
        for choice in choices:
            if choice == text:
                return choice
        given = _quoted(str(text)) if text is not None else self._kind()
        raise self.error(f"is {given}; expected {', '.join(map(str, choices))}")

    def quantity(self, unit: Unit | None = None) -> Parameter:
        """A quantity, of the unit if one is given."""
        if not (self._is("str") or self._is("int") or self._is("float")):
            expected = f"a quantity such as {EXAMPLES[unit or 'share']}"
            raise self.error(f"is {self._kind()}; expected {expected}")
        try:
            quantity = parse_quantity(str(self._node.value))
        except ValueError as error:
            raise self.error(str(error)) from None
        if unit is not None and quantity == (0.0, "count"):
            # Zero is the same in every unit.
            return Parameter(0.0, unit)
        if unit is not None and quantity.unit != unit:
            raise self.error(
                f"{_quoted(self._node.value)} is a {quantity.unit}; "
                f"expected a {unit} such as {EXAMPLES[unit]}"
            )
        return Parameter(quantity.value, quantity.unit)

    def parameter(self) -> Parameter:
        """A threshold: a quantity, a list of texts, or true or false."""
        if self._node.id == "sequence":
            return Parameter(list(self.texts()), "texts")
        if self._is("bool"):
            return Parameter(self.flag(), "flag")
        return self.quantity()

    def value(self, unit: Unit) -> Value:
        """The value of a figure."""
        match unit:
            case "text":
                return self.text()
            case "texts":
                return list(self.texts())
            case "flag":
                return self.flag()
            case "time":
                try:
                    # A date and a time have the tag of a timestamp unless they are in quotes.
                    return to_seconds(parse_rfc3339(str(self._node.value)))
                except ValueError as error:
                    raise self.error(str(error)) from None
        return self.quantity(unit).value

    def source(self) -> object:
        """The content without places, for the digest."""
        match self._node.id:
            case "mapping":
                return {name: field.source() for name, field in _pairs(self)}
            case "sequence":
                return [item.source() for item in self.items()]
        return [self._node.tag, self._node.value]

    def _is(self, tag: str) -> bool:
        return bool(self._node.id == "scalar" and self._node.tag == f"tag:yaml.org,2002:{tag}")

    def _kind(self) -> str:
        match self._node.id:
            case "mapping":
                return "a mapping"
            case "sequence":
                return "a list"
        kind = self._node.tag.rpartition(":")[2]
        names = {"null": "empty", "bool": "true or false", "int": "a number", "float": "a number"}
        return names.get(kind, _quoted(self._node.value))


def _pairs(entry: _Entry) -> list[tuple[str, _Entry]]:
    node = entry._node
    return [(key.value, _Entry(entry.file, entry.path, value)) for key, value in node.value]


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _hint(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"


def _is_name(text: str) -> bool:
    return len(text) <= _MAX_NAME and _NAME.fullmatch(text) is not None


def _read_rule(entry: _Entry) -> Rule:
    name = entry.peek("name")
    entry.path = f"rule {name}" if name else "rule"
    name_entry = entry.mapping(_RULE).required("name")
    name = name_entry.text()
    if not _is_name(name):
        raise name_entry.error(
            f"{_quoted(name)} is not a name; expected words in lower case joined by hyphens, "
            f"at most {_MAX_NAME} characters"
        )
    return _RuleReader(entry, name).read()


class _RuleReader:
    def __init__(self, entry: _Entry, name: str) -> None:
        self._entry = entry
        self._name = name
        self._parameters = _parameters(entry.field("parameters"))
        units = {key: parameter.unit for key, parameter in self._parameters.items()}
        self._scope = Scope(units)
        self._units = {figure.name: figure.unit for figure in FIGURES.values()} | units
        self._used: set[str] = set()

    def read(self) -> Rule:
        entry = self._entry
        condition = self._expression(entry.required("condition"), "flag")
        requires = entry.field("requires")
        rule = Rule(
            name=self._name,
            file=entry.file,
            line=entry.line,
            title=self._title(entry.required("title")),
            when=_optional(entry.field("when"), lambda e: e.choice(get_args(When)), "ended"),
            severities=self._severities(entry.required("severity")),
            audience=_optional(
                entry.field("audience"), lambda e: e.choice(get_args(Audience)), "user"
            ),
            requires=None if requires is None else self._expression(requires, "flag"),
            parameters=self._parameters,
            minimum=_minimum(entry.field("minimum")),
            condition=condition,
            excuses=[self._excuse(each) for each in entry.entries("excuses")],
            defaults=self._defaults(entry.field("defaults"), condition),
            explains=self._explains(entry.field("explains")),
            cost=self._cost(entry.field("cost")),
            text=self._templates(entry.required("text")),
            change=_optional(entry.field("change"), self._changes, []),
            evidence=_evidence(entry.field("evidence")),
            help=_optional(entry.field("help"), lambda e: e.text(), ""),
            tests=[_read_test(each) for each in entry.entries("tests")],
            source={
                key: field.source()
                for key, field in entry.fields().items()
                if key not in ("tests", "help")
            },
        )
        self._check_parameters()
        return rule

    def _check_parameters(self) -> None:
        parameters = self._entry.field("parameters")
        for name in self._parameters:
            if name not in self._used and parameters is not None:
                raise parameters.fields()[name].error(
                    "no expression uses it; expected it in a condition, or no such parameter"
                )

    def _title(self, entry: _Entry) -> str:
        title = entry.text(_MAX_TITLE)
        if not title.strip() or not title.isprintable() or "{" in title or "}" in title:
            raise entry.error("is not a title; expected a few words in one line, without figures")
        return title

    def _expression(self, entry: _Entry, unit: Unit) -> Expression:
        try:
            expression = self._scope.compile(entry.text(), unit)
        except ExpressionError as error:
            raise entry.error(str(error)) from None
        self._used.update(expression.parameters)
        return expression

    def _severities(self, entry: _Entry) -> list[tuple[Severity, Expression | None]]:
        severities: list[tuple[Severity, Expression | None]] = []
        alternatives = entry.items_or_one()
        for number, each in enumerate(alternatives, 1):
            if each is entry:
                severities.append((each.choice(get_args(Severity)), None))
                continue
            each.mapping(("severity", "if"))
            condition = each.field("if")
            if (condition is None) != (number == len(alternatives)):
                raise each.error("expected `if` in all entries of the list except the last one")
            severities.append(
                (
                    each.required("severity").choice(get_args(Severity)),
                    None if condition is None else self._expression(condition, "flag"),
                )
            )
        if not severities:
            raise entry.error("is an empty list; expected info, warning or critical")
        return severities

    def _excuse(self, entry: _Entry) -> tuple[Expression, Template]:
        entry.mapping(("if", "because"))
        condition = self._expression(entry.required("if"), "flag")
        return condition, self._template(entry.required("because"))

    def _defaults(self, entry: _Entry | None, condition: Expression) -> dict[str, Value]:
        if entry is None:
            return {}
        defaults: dict[str, Value] = {}
        for name, field in entry.mapping().fields().items():
            if name not in condition.figures:
                raise field.error(
                    "is not in the condition; "
                    f"expected one of {', '.join(condition.figures) or 'its figures'}"
                )
            defaults[name] = field.value(FIGURES[name].unit)
        return defaults

    def _explains(self, entry: _Entry | None) -> tuple[str, ...]:
        if entry is None:
            return ()
        names = entry.texts()
        if self._name in names:
            raise entry.error("contains the rule itself; expected other rules")
        return tuple(dict.fromkeys(names))

    def _cost(self, entry: _Entry | None) -> dict[str, Expression]:
        if entry is None:
            return {}
        fields = entry.mapping(tuple(COSTS)).fields()
        return {name: self._expression(field, COSTS[name]) for name, field in fields.items()}

    def _templates(self, entry: _Entry) -> list[Template]:
        templates = [self._template(each) for each in entry.items_or_one()]
        if not templates:
            raise entry.error("is an empty list; expected a text")
        return templates

    def _changes(self, entry: _Entry) -> list[Template]:
        return [self._template(each, quoted=True) for each in entry.items_or_one()]

    def _template(self, entry: _Entry, *, quoted: bool = False) -> Template:
        try:
            return Template(entry.text().strip(), self._units, quoted=quoted)
        except TemplateError as error:
            raise entry.error(str(error)) from None


_Read = TypeVar("_Read")


def _optional(entry: _Entry | None, read: Callable[[_Entry], _Read], default: _Read) -> _Read:
    return default if entry is None else read(entry)


def _parameters(entry: _Entry | None) -> dict[str, Parameter]:
    if entry is None:
        return {}
    parameters: dict[str, Parameter] = {}
    for name, field in entry.mapping().fields().items():
        if not _PARAMETER.fullmatch(name) or name in RESERVED:
            raise field.error(
                f"{_quoted(name)} cannot be the name of a parameter; expected lower case letters, "
                "digits and _, and neither reserved by CEL nor the first part of a figure"
            )
        parameters[name] = field.parameter()
    return parameters


def _minimum(entry: _Entry | None) -> Minimum:
    if entry is None:
        return Minimum()
    fields = entry.mapping(("elapsed", "coverage")).fields()
    elapsed = fields["elapsed"].quantity("duration").value if "elapsed" in fields else None
    coverage = fields["coverage"].quantity("share").value if "coverage" in fields else None
    assert elapsed is None or isinstance(elapsed, float)
    assert coverage is None or isinstance(coverage, float)
    if elapsed is not None and elapsed < 0:
        raise fields["elapsed"].error("is negative; expected a duration such as 10 min")
    if coverage is not None and not 0 <= coverage <= 1:
        raise fields["coverage"].error("is not between 0 % and 100 %; expected such as 80 %")
    return Minimum(elapsed, coverage)


def _evidence(entry: _Entry | None) -> EvidenceSource:
    if entry is None:
        return EvidenceSource()
    fields = entry.mapping(("series", "since", "until", "programs", "nodes")).fields()
    series = []
    for each in fields["series"].items() if "series" in fields else ():
        name = each.text()
        if find_metric(name) is None:
            raise each.error(f"{_quoted(name)} is not a metric; {_hint(name, tuple(METRICS))}")
        series.append(name)
    times: dict[str, str | None] = dict.fromkeys(("since", "until"))
    for key in times:
        if key in fields:
            times[key] = _figure(fields[key], ("time",))
    lists = {
        key: tuple(_figure(each, ("text", "texts")) for each in fields[key].items_or_one())
        for key in ("programs", "nodes")
        if key in fields
    }
    return EvidenceSource(
        tuple(series),
        times["since"],
        times["until"],
        lists.get("programs", ()),
        lists.get("nodes", ()),
    )


def _figure(entry: _Entry, units: tuple[Unit, ...]) -> str:
    name = entry.text()
    known = tuple(figure.name for figure in FIGURES.values() if figure.unit in units)
    if name not in known:
        what = f"is a {FIGURES[name].unit}" if name in FIGURES else "is not a figure"
        raise entry.error(
            f"{_quoted(name)} {what}; expected a figure that is a {' or '.join(units)}, "
            f"such as {(difflib.get_close_matches(name, known, n=1) or known)[0]}"
        )
    return name


def _read_test(entry: _Entry) -> RuleTest:
    fields = entry.mapping(_TEST).fields()
    figures: dict[str, Value] = {}
    for name, field in entry.required("figures").mapping().fields().items():
        if name not in FIGURES:
            raise field.error(f"is not a figure; {_hint(name, tuple(FIGURES))}")
        figures[name] = field.value(FIGURES[name].unit)
    groups: tuple[Group, ...] = get_args(Group)
    coverage = _fields(fields.get("coverage"), groups)
    unknown = _fields(fields.get("unknown"), (*groups, *FIGURES))
    cost = _fields(fields.get("cost"), tuple(COSTS))
    selection = [
        _optional(fields.get(key), lambda e: e.text(), "")
        for key in ("cluster", "partition", "account")
    ]
    return RuleTest(
        line=entry.line,
        figures=figures,
        unknown={name: field.text(_MAX_TITLE) for name, field in unknown.items()},
        coverage={
            group: _number(coverage[group].quantity("share"))
            for group in groups
            if group in coverage
        },
        selection=(selection[0], selection[1], selection[2]),
        outcome=entry.required("outcome").choice(get_args(Outcome)),
        severity=_optional(fields.get("severity"), lambda e: e.choice(get_args(Severity)), None),
        text=_optional(fields.get("text"), lambda e: e.text(), None),
        change=_optional(fields.get("change"), lambda e: e.text(), None),
        cost={name: _number(field.quantity(COSTS[name])) for name, field in cost.items()},
    )


def _fields(entry: _Entry | None, known: tuple[str, ...]) -> dict[str, _Entry]:
    return {} if entry is None else entry.mapping(known).fields()


def _number(parameter: Parameter) -> float:
    assert isinstance(parameter.value, float)
    return parameter.value


def _read_adjustment(entry: _Entry) -> Adjustment:
    entry.path = "adjust"
    fields = entry.mapping(_ADJUST).fields()
    rules = entry.required("rules").texts()
    if not rules:
        raise fields["rules"].error("is empty; expected names of rules such as memory-*")
    changes = [key for key in ("parameters", "enabled", "severity", "minimum") if key in fields]
    if not changes:
        raise entry.error("changes nothing; expected parameters, enabled, severity or minimum")
    selectors = {key: _optional(fields.get(key), lambda e: _some(e), None) for key in _SELECTORS}
    return Adjustment(
        file=entry.file,
        line=entry.line,
        rules=rules,
        clusters=selectors["clusters"],
        partitions=selectors["partitions"],
        accounts=selectors["accounts"],
        parameters=_optional(
            fields.get("parameters"),
            lambda e: {name: each.parameter() for name, each in e.mapping().fields().items()},
            {},
        ),
        enabled=_optional(fields.get("enabled"), lambda e: e.flag(), None),
        severity=_optional(fields.get("severity"), lambda e: e.choice(get_args(Severity)), None),
        minimum=_minimum(fields.get("minimum")),
        source=entry.source(),
    )


def _some(entry: _Entry) -> tuple[str, ...]:
    texts = entry.texts()
    if not texts:
        raise entry.error("is empty and selects nothing; expected patterns, or no such key")
    return texts
