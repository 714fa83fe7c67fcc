"""The engine: applies the rules to the figures of a run.

:meth:`RuleSet.judge` gives the decision of every rule with its reason, and :meth:`RuleSet.findings`
the findings alone, worst first. A rule is decided in this order: is it enabled and for such a run,
did the run last long enough, are its figures known, do they stand for enough of the run, does the
condition hold, is there an excuse. A finding that another one explains is covered by it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jobsight.config.settings import FindingsSettings
from jobsight.findings.conditions import Bound, Expression, Failure, nearest
from jobsight.findings.costs import cost_of, weight
from jobsight.findings.finding import (
    SEVERITIES,
    Cost,
    Evidence,
    Finding,
    Outcome,
    Severity,
    Verdict,
)
from jobsight.findings.rule_file import Adjustment, Rule, RuleError, RuleFile, read_rules
from jobsight.findings.texts import Template, show
from jobsight.findings.units import Value
from jobsight.findings.vocabulary import FIGURES, FigureSet, Group
from jobsight.util.outer import from_seconds

#: Incremented when the same rules and figures produce other findings than before.
_EDITION: Final = 1
_SHIPPED: Final = Path(__file__).parent / "rules"
#: Selections whose rules are kept.
_MAX_SELECTIONS: Final = 10_000
#: Names in the evidence of one finding.
_MAX_EVIDENCE: Final = 20

#: Groups of figures that are measured and have a coverage, as named in a sentence.
_MEASURED: Final[dict[Group, str]] = {
    "cpu": "CPU",
    "memory": "memory",
    "io": "I/O",
    "executables": "program",
    "gpu": "GPU",
}
_ALL: Final[frozenset[Outcome]] = frozenset(
    {"fired", "not fired", "withheld", "excused", "covered", "not applicable"}
)
_FIRED: Final[frozenset[Outcome]] = frozenset({"fired"})


class Selection(NamedTuple):
    """What the rules of a run are selected by."""

    cluster: str = ""
    partition: str = ""
    account: str = ""


#: A run of which nothing is known.
ANY: Final = Selection()


class RuleSet:
    """The rules of several files, compiled."""

    def __init__(
        self,
        files: Sequence[RuleFile],
        *,
        minimum_elapsed: float | None = None,
        minimum_coverage: float | None = None,
    ) -> None:
        defaults = FindingsSettings()
        self.files = list(files)
        self._elapsed = defaults.minimum_elapsed if minimum_elapsed is None else minimum_elapsed
        self._coverage = defaults.minimum_coverage if minimum_coverage is None else minimum_coverage
        #: By name, in the order of the files.
        self.rules: dict[str, Rule] = {}
        for file in files:
            for rule in file.rules:
                self._add(rule)
        self._adjustments = [each for file in files for each in file.adjustments]
        self._explaining = _check_explains(self.rules)
        self._changes = [_check_adjustment(each, self.rules) for each in self._adjustments]
        #: If it differs, runs may have other findings.
        self.digest = self._digest()
        self._bound: dict[tuple[int, ...], _BoundRules] = {}
        self._selected: dict[Selection, _BoundRules] = {}

    @classmethod
    def load(
        cls,
        files: Sequence[Path] = (),
        *,
        shipped: bool = True,
        minimum_elapsed: float | None = None,
        minimum_coverage: float | None = None,
    ) -> RuleSet:
        """The shipped rules, and those of files; seconds and share are the engine-wide minimum."""
        ready = shipped_files() if shipped else []
        return cls(
            [*(read_rules(file, shipped=True) for file in ready), *map(read_rules, files)],
            minimum_elapsed=minimum_elapsed,
            minimum_coverage=minimum_coverage,
        )

    @classmethod
    def of_settings(cls, settings: FindingsSettings) -> RuleSet:
        """The rules of the settings."""
        return cls.load(
            [Path(file).expanduser() for file in settings.rules],
            shipped=settings.shipped_rules,
            minimum_elapsed=settings.minimum_elapsed,
            minimum_coverage=settings.minimum_coverage,
        )

    def judge(
        self,
        figures: FigureSet,
        selection: Selection = ANY,
        *,
        outcomes: Collection[Outcome] = _ALL,
    ) -> list[Verdict]:
        """What each rule decided, in the order of the rules; with ``outcomes`` only those."""
        decided: list[tuple[_BoundRule, Outcome, str]] = []
        fired: dict[str, _BoundRule] = {}
        run = _Run(figures)
        rules = self._rules_for(selection)
        for bound in rules.every if "not applicable" in outcomes else rules.of(run.running):
            outcome, reason = bound.decide(run)
            if outcome == "fired":
                fired[bound.rule.name] = bound
            if outcome == "fired" or outcome in outcomes:
                decided.append((bound, outcome, reason))
        covering = self._covering(fired)
        verdicts: list[Verdict] = []
        for bound, outcome, reason in decided:
            finding: Finding | None = None
            kind = bound.rule.name
            if kind in covering:
                outcome, reason = "covered", f"{covering[kind]} explains it"
            if outcome not in outcomes:
                continue
            if kind in fired:
                explained = [other for other, cause in covering.items() if cause == kind]
                finding = bound.finding(figures, explained)
            verdicts.append(
                Verdict(
                    kind=kind,
                    outcome=outcome,
                    reason=reason,
                    figures=bound.shown(figures),
                    finding=finding,
                )
            )
        return verdicts

    def fired(self, figures: FigureSet, selection: Selection = ANY) -> list[str]:
        """The names of the rules that fire, whether or not another one explains them."""
        run = _Run(figures)
        rules = self._rules_for(selection).of(run.running)
        return [each.rule.name for each in rules if each.decide(run)[0] == "fired"]

    def findings(self, figures: FigureSet, selection: Selection = ANY) -> list[Finding]:
        """The findings, worst first; those that another one explains are named in it."""
        verdicts = self.judge(figures, selection, outcomes=_FIRED)
        return worst_first([each.finding for each in verdicts if each.finding is not None])

    def _add(self, rule: Rule) -> None:
        other = self.rules.get(rule.name)
        if other is not None:
            raise RuleError(
                f"{rule.file}:{rule.line}: rule {rule.name}: is already defined in "
                f"{other.file}:{other.line}; expected another name, or an entry of adjust"
            )
        self.rules[rule.name] = rule

    def _digest(self) -> str:
        source = [
            _EDITION,
            self._elapsed,
            self._coverage,
            [[rule.name, rule.source] for rule in self.rules.values()],
            [each.source for each in self._adjustments],
        ]
        return sha256(msgspec.json.encode(source, order="deterministic")).hexdigest()

    def _rules_for(self, selection: Selection) -> _BoundRules:
        rules = self._selected.get(selection)
        if rules is None:
            chosen = tuple(
                number for number, each in enumerate(self._adjustments) if _selects(each, selection)
            )
            rules = self._bound.get(chosen)
            if len(self._selected) >= _MAX_SELECTIONS:
                self._selected.clear()
                self._bound.clear()
            if rules is None:
                rules = self._bound[chosen] = _BoundRules(
                    [self._bind(rule, chosen) for rule in self.rules.values()]
                )
            self._selected[selection] = rules
        return rules

    def _bind(self, rule: Rule, chosen: Sequence[int]) -> _BoundRule:
        """A rule with the adjustments of a selection; a later one takes precedence."""
        parameters = {name: each.value for name, each in rule.parameters.items()}
        elapsed, coverage = rule.minimum.elapsed, rule.minimum.coverage
        enabled, severity = True, None
        for number in chosen:
            if rule.name not in self._changes[number]:
                continue
            change = self._adjustments[number]
            parameters |= {
                name: each.value for name, each in change.parameters.items() if name in parameters
            }
            enabled = enabled if change.enabled is None else change.enabled
            severity = change.severity or severity
            elapsed = elapsed if change.minimum.elapsed is None else change.minimum.elapsed
            coverage = coverage if change.minimum.coverage is None else change.minimum.coverage
        return _BoundRule(
            rule,
            parameters,
            enabled=enabled,
            severity=severity,
            elapsed=self._elapsed if elapsed is None else elapsed,
            coverage=self._coverage if coverage is None else coverage,
        )

    def _covering(self, fired: Mapping[str, object]) -> dict[str, str]:
        """Kinds that are explained by another one that fired, and the first cause of each."""
        cause = {
            kind: next(other for other in self._explaining[kind] if other in fired)
            for kind in fired
            if any(other in fired for other in self._explaining.get(kind, ()))
        }
        for kind in cause:
            while cause[kind] in cause:
                cause[kind] = cause[cause[kind]]
        return cause


class _Run:
    """The figures of a run, with sentences that several rules need."""

    __slots__ = ("_sentences", "coverage", "elapsed", "figures", "running", "values")

    def __init__(self, figures: FigureSet) -> None:
        self.figures = figures
        self.values = figures.values
        self.coverage = figures.coverage
        elapsed = self.values.get("run.elapsed")
        self.elapsed = elapsed if isinstance(elapsed, float) else None
        self.running = self.values.get("run.running") is True
        self._sentences: dict[float, str] = {}

    def too_short(self, minimum: float) -> str:
        """Why a rule with this minimum decides nothing; empty if the run lasted long enough."""
        sentence = self._sentences.get(minimum)
        if sentence is None:
            sentence = ""
            if minimum > 0 and self.elapsed is None:
                sentence = "the elapsed time of the run is not known"
            elif self.elapsed is not None and self.elapsed < minimum:
                sentence = (
                    f"the run lasted {show(self.elapsed, 'duration')}, "
                    f"less than {show(minimum, 'duration')}"
                )
                if self.running:
                    sentence = sentence.replace("lasted", "has lasted", 1)
            self._sentences[minimum] = sentence
        return sentence


class _BoundRule:
    """A rule with the parameters of a selection."""

    __slots__ = (
        "_condition", "_cost", "_coverage", "_elapsed", "_enabled", "_excuses", "_figures",
        "_groups", "_measured", "_parameters", "_required", "_requires", "_severities", "_shown",
        "rule", "when",
    )  # fmt: skip

    def __init__(
        self,
        rule: Rule,
        parameters: dict[str, Value],
        *,
        enabled: bool,
        severity: Severity | None,
        elapsed: float,
        coverage: float,
    ) -> None:
        def bind(expression: Expression | None) -> Bound | None:
            return None if expression is None else expression.bind(parameters)

        self.rule = rule
        self._parameters = parameters
        self._enabled = enabled
        self._elapsed = elapsed
        self._coverage = coverage
        #: Whether it is for running runs; None is for both.
        self.when = None if rule.when == "both" else rule.when == "running"
        self._requires = bind(rule.requires)
        self._required = frozenset(rule.requires.figures if rule.requires else ())
        self._condition = rule.condition.bind(parameters)
        self._figures = frozenset(rule.condition.figures)
        groups = {FIGURES[name].group for name in self._figures}
        self._groups: list[Group] = [group for group in _MEASURED if group in groups]
        #: The figures of the condition by group.
        self._measured = {
            group: {name for name in self._figures if FIGURES[name].group == group}
            for group in self._groups
        }
        self._excuses = [(each.bind(parameters), because) for each, because in rule.excuses]
        self._severities: list[tuple[Severity, Bound | None]] = (
            [(each, bind(condition)) for each, condition in rule.severities]
            if severity is None
            else [(severity, None)]
        )
        self._cost = {name: each.bind(parameters) for name, each in rule.cost.items()}
        self._shown = {
            name: show(parameters[name], rule.parameters[name].unit)
            for name in rule.condition.parameters
        }

    def decide(self, run: _Run) -> tuple[Outcome, str]:
        """The outcome and its reason; "covered" is decided by the rule set."""
        values: Mapping[str, Value] = run.values
        if self.when is not None and self.when is not run.running:
            return "not applicable", "the run has not ended" if run.running else "the run has ended"
        if not self._enabled:
            return "not applicable", "it is disabled for this cluster, partition or account"
        if self._requires is not None:
            if not self._required <= values.keys():
                return "not applicable", self._not_known(run, self._required)
            if self._requires.evaluate(values) is not True:
                return "not applicable", f"it is for runs with {self._requires.expression.text}"
        sentence = run.too_short(self._elapsed)
        if sentence:
            return "withheld", sentence
        if not self._figures <= values.keys():
            missing = self._figures - values.keys()
            if not missing <= self.rule.defaults.keys():
                return "withheld", self._not_known(run, missing - self.rule.defaults.keys())
            values = {**self.rule.defaults, **values}
        sentence = self._too_little_seen(run)
        if sentence:
            return "withheld", sentence
        result = self._condition.evaluate(values)
        if result is False:
            return "not fired", ""
        if isinstance(result, Failure):
            return "withheld", f"its condition cannot be evaluated: {result.reason}"
        for excuse, because in self._excuses:
            if _holds(excuse, values):
                return "excused", because.fill({**self._parameters, **run.values})
        return "fired", ""

    def _too_little_seen(self, run: _Run) -> str:
        """Why the condition's figures stand for too little of the run; empty if they do not."""
        for group in self._groups:
            if not self._measured[group] & run.values.keys():
                # All its figures have the rule's defaults.
                continue
            share = run.coverage.get(group, 1.0)
            if share < self._coverage:
                return (
                    f"its {_MEASURED[group]} figures stand for {show(share, 'share')} of the run, "
                    f"less than {show(self._coverage, 'share')}"
                )
        return ""

    def finding(self, figures: FigureSet, explains: Sequence[str]) -> Finding:
        """The finding of a rule that fired."""
        values = figures.values
        every = {**self._parameters, **values}
        rule = self.rule
        return Finding(
            kind=rule.name,
            severity=self._severity(values),
            audience=rule.audience,
            title=rule.title,
            text=(_known(rule.text, every) or rule.text[-1]).fill(every),
            change=_filled(_known(rule.change, every), every),
            cost=self._cost_of(values),
            evidence=self._evidence(values),
            figures=self.shown(figures, parameters=False),
            explains=tuple(explains),
        )

    def shown(self, figures: FigureSet, *, parameters: bool = True) -> dict[str, str]:
        """The known figures of the condition and its parameters, as shown."""
        values = figures.values
        shown = {
            name: show(values[name], FIGURES[name].unit)
            for name in self.rule.condition.figures
            if name in values
        }
        return shown | self._shown if parameters else shown

    def _not_known(self, run: _Run, names: Collection[str]) -> str:
        name = min(name for name in names if name not in run.values)
        return f"{name} is not known: {run.figures.reason(name)}"

    def _severity(self, values: Mapping[str, Value]) -> Severity:
        for severity, condition in self._severities:
            if condition is None or _holds(condition, values):
                return severity
        raise AssertionError(self.rule.name)

    def _cost_of(self, values: Mapping[str, Value]) -> Cost:
        costs: dict[str, float] = {}
        for name, bound in self._cost.items():
            if all(figure in values for figure in bound.expression.figures):
                result = bound.evaluate(values)
                if isinstance(result, float):
                    costs[name] = result
        return cost_of(**costs)

    def _evidence(self, values: Mapping[str, Value]) -> Evidence:
        source = self.rule.evidence
        return Evidence(
            series=source.series,
            since=_time(values, source.since),
            until=_time(values, source.until),
            programs=_texts(values, source.programs),
            nodes=_texts(values, source.nodes),
        )


class _BoundRules:
    """The rules of a selection."""

    __slots__ = ("_ended", "_running", "every")

    def __init__(self, every: list[_BoundRule]) -> None:
        self.every = every
        self._running = [each for each in every if each.when is not False]
        self._ended = [each for each in every if each.when is not True]

    def of(self, running: bool) -> list[_BoundRule]:
        """Those that can apply to a run that is running, or that has ended."""
        return self._running if running else self._ended


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """Findings by severity, then by cost."""
    return sorted(
        findings,
        key=lambda each: (-SEVERITIES.index(each.severity), -weight(each.cost), each.kind),
    )


def shipped_files() -> list[Path]:
    """The files of the shipped rules."""
    return sorted(_SHIPPED.glob("*.yaml"))


def _holds(bound: Bound, values: Mapping[str, Value]) -> bool:
    """Whether a condition is certain to hold: what is not known proves nothing."""
    known = all(figure in values for figure in bound.expression.figures)
    return known and bound.evaluate(values) is True


def _known(templates: Sequence[Template], values: Mapping[str, Value]) -> Template | None:
    return next((each for each in templates if each.is_known(values)), None)


def _filled(template: Template | None, values: Mapping[str, Value]) -> str:
    return "" if template is None else template.fill(values)


def _time(values: Mapping[str, Value], name: str | None) -> int | None:
    value = values.get(name) if name else None
    return from_seconds(value) if isinstance(value, float) else None


def _texts(values: Mapping[str, Value], names: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        value = values.get(name, [])
        found += [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(dict.fromkeys(found))[:_MAX_EVIDENCE]


def _selects(adjustment: Adjustment, selection: Selection) -> bool:
    patterns = (adjustment.clusters, adjustment.partitions, adjustment.accounts)
    return all(
        wanted is None or any(fnmatchcase(given, pattern) for pattern in wanted)
        for wanted, given in zip(patterns, selection, strict=True)
    )


def _check_adjustment(adjustment: Adjustment, rules: Mapping[str, Rule]) -> frozenset[str]:
    """The rules that an adjustment changes; RuleError if a part of it has no effect."""

    def error(sentence: str) -> RuleError:
        return RuleError(f"{adjustment.file}:{adjustment.line}: adjust: {sentence}")

    chosen: set[str] = set()
    for pattern in adjustment.rules:
        matching = [name for name in rules if fnmatchcase(name, pattern)]
        if not matching:
            raise error(f"rules: no rule is called {pattern!r}; {_near_rule(pattern, rules)}")
        chosen.update(matching)
    for name, parameter in adjustment.parameters.items():
        having = [rules[each] for each in chosen if name in rules[each].parameters]
        if not having:
            known = {each for rule in chosen for each in rules[rule].parameters}
            raise error(
                f"parameters: {name}: none of these rules has it; "
                f"expected one of {', '.join(sorted(known)) or 'none'}"
            )
        for rule in having:
            expected = rule.parameters[name].unit
            if parameter.unit != expected:
                raise error(
                    f"parameters: {name}: is a {parameter.unit}, and a {expected} in the rule "
                    f"{rule.name}; expected a {expected}"
                )
    return frozenset(chosen)


def _near_rule(name: str, rules: Mapping[str, Rule]) -> str:
    hint = nearest(name, rules)
    return hint if hint.startswith("did") else "expected the name of a rule, or a pattern with *"


def _check_explains(rules: Mapping[str, Rule]) -> dict[str, list[str]]:
    """Which rules explain a rule; RuleError if they explain each other or do not exist."""
    explaining: dict[str, list[str]] = {}
    for rule in rules.values():
        for name in rule.explains:
            if name not in rules:
                raise RuleError(
                    f"{rule.file}:{rule.line}: rule {rule.name}: explains: no rule is called "
                    f"{name!r}; {_near_rule(name, rules)}"
                )
            explaining.setdefault(name, []).append(rule.name)
    done: set[str] = set()
    for start in rules:
        _check_cycle(start, rules, done)
    return explaining


def _check_cycle(start: str, rules: Mapping[str, Rule], done: set[str]) -> None:
    """Depth first without recursion: a site may have a chain of any length."""
    path: list[str] = []
    stack = [(start, False)]
    while stack:
        name, left = stack.pop()
        if left:
            path.pop()
            done.add(name)
            continue
        if name in path:
            rule = rules[name]
            raise RuleError(
                f"{rule.file}:{rule.line}: rule {name}: explains: it explains itself by "
                f"{', '.join(path[path.index(name) + 1 :])}; expected causes before effects"
            )
        if name in done:
            continue
        path.append(name)
        stack.append((name, True))
        stack += [(other, False) for other in rules[name].explains]
