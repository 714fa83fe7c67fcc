"""The engine decides every rule with a reason, and one cause gives one finding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobsight.config.settings import FindingsSettings, PriceSettings
from jobsight.findings.costs import amounts
from jobsight.findings.engine import RuleSet, Selection, worst_first
from jobsight.findings.finding import Cost, Finding, Verdict
from jobsight.findings.vocabulary import FIGURES, FigureSet
from jobsight.util.outer import encode_json
from tests.findings.rule_texts import RULE, figures, rules, with_lines, write


def verdict(judged: RuleSet, data: FigureSet, selection: Selection = Selection()) -> Verdict:  # noqa: B008
    (only,) = judged.judge(data, selection)
    return only


def finding(judged: RuleSet, data: FigureSet) -> Finding:
    (only,) = judged.findings(data)
    return only


def test_a_rule_fires_with_its_figures() -> None:
    decided = verdict(rules(RULE), figures())
    assert decided.outcome == "fired"
    assert decided.figures == {
        "cpu.idle": "100 core hours",
        "cpu.share": "10 %",
        "floor": "50.0 core hours",
        "low": "40 %",
    }
    assert decided.finding is not None
    assert decided.finding.text == "10 % was used"
    assert decided.finding.figures == {"cpu.idle": "100 core hours", "cpu.share": "10 %"}


def test_a_rule_that_does_not_hold_shows_the_figures() -> None:
    decided = verdict(rules(RULE), figures(cpu__share=0.9))
    assert decided.outcome == "not fired"
    assert decided.figures["cpu.share"] == "90 %"
    assert rules(RULE).findings(figures(cpu__share=0.9)) == []


def test_a_short_run_is_withheld() -> None:
    decided = verdict(rules(RULE), figures(run__elapsed=59.96))
    assert (decided.outcome, decided.reason) == (
        "withheld",
        "the run lasted 00:01:00, less than 00:10:00",
    )
    decided = verdict(rules(RULE), figures(run__elapsed=None))
    assert decided.reason == "the elapsed time of the run is not known"


def test_a_run_that_is_hardly_measured_is_withheld() -> None:
    data = figures()
    data.coverage["cpu"] = 0.4
    decided = verdict(rules(RULE), data)
    assert (decided.outcome, decided.reason) == (
        "withheld",
        "its CPU figures stand for 40 % of the run, less than 80 %",
    )


def test_figures_that_are_not_known_are_withheld_with_the_reason() -> None:
    """A store that was not fed must not read as a run that used nothing."""
    data = figures(cpu__share=None, cpu__idle=None)
    data.unknown["cpu"] = "no agent measured the run"
    decided = verdict(rules(RULE), data)
    assert (decided.outcome, decided.reason) == (
        "withheld",
        "cpu.idle is not known: no agent measured the run",
    )


def test_an_empty_run_gives_no_finding_and_no_error() -> None:
    for judged in (rules(RULE), RuleSet.load()):
        assert judged.findings(FigureSet()) == []
        assert {each.outcome for each in judged.judge(FigureSet())} <= {
            "withheld",
            "not applicable",
        }


def test_figures_of_zero_give_no_error() -> None:
    """Division by zero files, cores and nodes."""
    data = FigureSet()
    for name, figure in FIGURES.items():
        zero = {"text": "", "texts": [], "flag": False}.get(figure.unit, 0.0)
        data.set(name, zero)  # type: ignore[arg-type]
    data.set("run.elapsed", 3600)
    division = RULE.replace("cpu.idle > floor", "cpu.idle / cpu.cores > floor")
    assert verdict(rules(division), data).reason == (
        "its condition cannot be evaluated: it divides by zero"
    )
    RuleSet.load().judge(data)


def test_a_share_above_1_is_still_judged() -> None:
    """A program with 101 % of one core is still serial."""
    text = RULE.replace("cpu.share < low", "programs.serial_share > low").replace("40 %", "95 %")
    found = finding(rules(text), figures(programs__serial_share=1.01))
    assert found.figures["programs.serial_share"] == "101 %"


def test_a_default_replaces_a_figure_that_is_not_known() -> None:
    judged = rules(with_lines("defaults: {cpu.share: 0 %}"))
    assert verdict(judged, figures(cpu__share=None)).outcome == "fired"
    assert verdict(judged, figures(cpu__share=0.9)).outcome == "not fired"


def test_an_excuse_needs_evidence() -> None:
    judged = rules(
        with_lines("excuses: [{if: run.interactive, because: 'a person used {cpu.cores} CPUs'}]")
    )
    decided = verdict(judged, figures(run__interactive=True))
    assert (decided.outcome, decided.reason) == ("excused", "a person used 16 CPUs")
    assert decided.finding is None
    assert verdict(judged, figures(run__interactive=False)).outcome == "fired"
    assert verdict(judged, figures()).outcome == "fired"


def test_a_rule_for_other_runs_is_not_applicable() -> None:
    judged = rules(with_lines("requires: 'gpu.count > 0'"))
    assert verdict(judged, figures(gpu__count=0)).reason == "it is for runs with gpu.count > 0"
    decided = verdict(judged, figures())
    assert (decided.outcome, decided.reason) == (
        "not applicable",
        "gpu.count is not known: it was not measured",
    )
    assert verdict(judged, figures(gpu__count=1)).outcome == "fired"


@pytest.mark.parametrize(
    ("when", "running", "outcome"),
    [
        ("ended", True, "not applicable"),
        ("ended", False, "fired"),
        ("running", True, "fired"),
        ("running", False, "not applicable"),
        ("both", True, "fired"),
        ("both", False, "fired"),
    ],
)
def test_when(when: str, running: bool, outcome: str) -> None:
    judged = rules(with_lines(f"when: {when}"))
    assert verdict(judged, figures(run__running=running)).outcome == outcome


def test_severity_by_cost() -> None:
    text = RULE.replace(
        "severity: warning",
        "severity: [{severity: critical, if: 'cpu.idle > much'}, {severity: info}]",
    ).replace("floor: 50 core h", "floor: 50 core h\n      much: 99 core h")
    assert finding(rules(text), figures()).severity == "critical"
    assert finding(rules(text), figures(cpu__idle=98 * 3600.0)).severity == "info"


def test_cost_in_hours() -> None:
    judged = rules(
        with_lines(
            "cost:",
            "  core_time: 'cpu.idle'",
            "  gpu_time: 'gpu.idle'",
            "  memory_time: 'memory.used * run.elapsed'",
            "  energy: 'energy.total * cpu.share'",
        )
    )
    found = finding(judged, figures(memory__used=2e9, energy__total=3.6e7))
    assert found.cost == Cost(
        core_hours=100.0, gpu_hours=None, memory_gb_hours=20.0, energy_kwh=1.0
    )


def test_a_cost_that_cannot_be_computed_is_not_known() -> None:
    judged = rules(with_lines("cost: {core_time: 'cpu.idle / run.nodes'}"))
    assert finding(judged, figures(run__nodes=0)).cost == Cost()


def test_prices() -> None:
    prices = {
        "EUR": PriceSettings(core_hour=0.02, gpu_hour=2.0),
        "g CO2": PriceSettings(energy_kwh=300.0),
        "credits": PriceSettings(core_hour=1.0, memory_gb_hour=0.25),
    }
    cost = Cost(core_hours=100.0, gpu_hours=1.0, memory_gb_hours=None, energy_kwh=None)
    assert amounts(cost, prices) == {"EUR": 4.0, "credits": 100.0}
    assert amounts(Cost(energy_kwh=2.0), prices) == {"g CO2": 600.0}
    assert amounts(Cost(), prices) == {}


def test_the_first_text_whose_figures_are_known_is_taken() -> None:
    text = RULE.replace('"{cpu.share} was used"', '["{fit.cores} fit", "{cpu.share} was used"]')
    text += "    change: ['--ntasks={fit.cores:slurm}', '--mem={fit.memory:slurm}']\n"
    found = finding(rules(text), figures())
    assert (found.text, found.change) == ("10 % was used", "")
    found = finding(rules(text), figures(fit__cores=2))
    assert (found.text, found.change) == ("2 fit", "--ntasks=2")
    found = finding(rules(text), figures(fit__memory=2**34))
    assert (found.text, found.change) == ("10 % was used", "--mem=16G")


def test_evidence() -> None:
    judged = rules(
        with_lines(
            "evidence:",
            "  series: [cpu.time, 'gpu.*.power']",
            "  since: idle.since",
            "  until: run.end",
            "  programs: [programs.top, idle.holders]",
            "  nodes: cpu.unused_node_names",
        )
    )
    found = finding(
        judged,
        figures(
            idle__since=1_763_440_000.5,
            programs__top="/bin/a",
            idle__holders=["/bin/a", "/bin/b"],
            cpu__unused_node_names=[f"n{number}" for number in range(100)],
        ),
    ).evidence
    assert found.series == ("cpu.time", "gpu.*.power")
    assert (found.since, found.until) == (1_763_440_000_500_000_000, None)
    assert found.programs == ("/bin/a", "/bin/b")
    assert len(found.nodes) == 20


def another(name: str, condition: str, *lines: str) -> str:
    return "".join(
        f"    {line}\n" if number else f"  - {line}\n"
        for number, line in enumerate(
            [
                f"name: {name}",
                "title: Another",
                "severity: info",
                f'condition: "{condition}"',
                "text: another",
                *lines,
            ]
        )
    )


def test_one_cause_gives_one_finding() -> None:
    text = RULE + (
        "    explains: [second]\n"
        + another("second", "cpu.cores > 1", "explains: [third]")
        + another("third", "cpu.cores > 1")
    )
    outcomes = {each.kind: each for each in rules(text).judge(figures())}
    assert outcomes["site-idle"].outcome == "fired"
    assert (outcomes["second"].outcome, outcomes["second"].reason) == (
        "covered",
        "site-idle explains it",
    )
    # The cause of a cause.
    assert outcomes["third"].reason == "site-idle explains it"
    assert outcomes["third"].finding is not None
    assert finding(rules(text), figures()).explains == ("second", "third")
    found = finding(rules(text), figures(cpu__share=0.9))
    assert (found.kind, found.explains) == ("second", ("third",))


def test_one_finding_does_not_hide_another() -> None:
    """An idle GPU and memory of which 5 % was used: both."""
    data = figures(
        run__state="COMPLETED",
        memory__requested=1e12,
        memory__used=5e10,
        memory__share=0.05,
        memory__unused_time=9.5e11 * 36_000,
        gpu__count=1,
        gpu__unused=1,
        gpu__unused_time=36_000,
        gpu__idle_share=1,
        gpu__idle=36_000,
    )
    kinds = {each.kind for each in RuleSet.load().findings(data)}
    assert len(kinds) >= 2
    assert any("memory" in kind for kind in kinds)
    assert any("gpu" in kind for kind in kinds)


def test_the_worst_is_first() -> None:
    found = [
        Finding(kind=f"k{number}", severity=severity, title="", text="", cost=cost)
        for number, (severity, cost) in enumerate(
            [
                ("info", Cost(core_hours=1e9)),
                ("warning", Cost(core_hours=5)),
                ("critical", Cost()),
                ("warning", Cost(gpu_hours=5)),
                ("warning", Cost(memory_gb_hours=400)),
                ("warning", Cost()),
            ]
        )
    ]
    assert [each.kind for each in worst_first(found)] == ["k2", "k4", "k3", "k1", "k5", "k0"]


ADJUST = """
adjust:
  - rules: [site-*]
    {selector}
    {change}
"""


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("clusters: [alpha]", True),
        ("clusters: ['*']", True),
        ("clusters: [beta, al*]", True),
        ("clusters: [beta]", False),
        ("partitions: [gpu]", True),
        ("partitions: [g?u, x]", True),
        ("partitions: [GPU]", False),
        ("accounts: [astro]", True),
        ("accounts: [bio]", False),
    ],
)
def test_adjustments_select(selector: str, selected: bool) -> None:
    text = RULE + ADJUST.format(selector=selector, change="enabled: false")
    decided = verdict(rules(text), figures(), Selection("alpha", "gpu", "astro"))
    assert decided.outcome == ("not applicable" if selected else "fired")
    assert verdict(rules(text), figures(), Selection("other", "o", "o")).outcome == (
        "not applicable" if selector == "clusters: ['*']" else "fired"
    )


def test_adjustments_change_and_the_last_one_holds() -> None:
    text = (
        RULE
        + ADJUST.format(selector="clusters: [alpha]", change="parameters: {floor: 500 core h}")
        + "  - {rules: [site-idle], accounts: [astro], parameters: {floor: 1 core h}}\n"
        + "  - {rules: [site-idle], accounts: [bio], severity: critical}\n"
        + "  - {rules: [site-idle], accounts: [new], minimum: {elapsed: 20 h}}\n"
        + "  - {rules: [site-idle], accounts: [late], enabled: false}\n"
        + "  - {rules: [site-idle], clusters: [alpha], accounts: [late], enabled: true}\n"
    )
    judged = rules(text)
    decided = verdict(judged, figures(), Selection("alpha"))
    assert (decided.outcome, decided.figures["floor"]) == ("not fired", "500 core hours")
    assert verdict(judged, figures(), Selection("alpha", "", "astro")).outcome == "fired"
    found = verdict(judged, figures(), Selection("beta", "", "bio")).finding
    assert found is not None
    assert found.severity == "critical"
    assert verdict(judged, figures(), Selection("beta", "", "new")).outcome == "withheld"
    assert verdict(judged, figures(), Selection("beta", "", "late")).outcome == "not applicable"
    assert verdict(judged, figures(), Selection("alpha", "", "late")).outcome == "not fired"


def test_a_site_adjusts_the_shipped_rules(tmp_path: Path) -> None:
    file = write(tmp_path, "adjust: [{rules: ['*'], enabled: false}]")
    judged = RuleSet.load([file])
    assert {each.outcome for each in judged.judge(figures())} == {"not applicable"}


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("title: CPUs were idle", "title: Other", lambda v: v.finding.title == "Other"),
        ("severity: warning", "severity: info", lambda v: v.finding.severity == "info"),
        ("low: 40 %", "low: 5 %", lambda v: v.outcome == "not fired"),
        ("floor: 50 core h", "floor: 500 core h", lambda v: v.outcome == "not fired"),
        ("cpu.share <", "cpu.share >", lambda v: v.outcome == "not fired"),
        ("was used", "is used", lambda v: v.finding.text == "10 % is used"),
        ("name: site-idle", "name: idle", lambda v: v.kind == "idle"),
        ("severity:", "when: running\n    severity:", lambda v: v.outcome == "not applicable"),
        ("severity:", "audience: staff\n    severity:", lambda v: v.finding.audience == "staff"),
        ("severity:", "requires: run.array\n    severity:", lambda v: v.outcome != "fired"),
        ("severity:", "minimum: {elapsed: 11 h}\n    severity:", lambda v: v.outcome != "fired"),
        ("severity:", "minimum: {coverage: 95 %}\n    severity:", lambda v: v.outcome != "fired"),
        ("severity:", "excuses: [{if: 'cpu.cores > 1', because: x}]\n    severity:",
         lambda v: v.outcome == "excused"),
        ("severity:", "cost: {core_time: cpu.idle}\n    severity:",
         lambda v: v.finding.cost.core_hours == 100),
        ("severity:", "change: x\n    severity:", lambda v: v.finding.change == "x"),
        ("severity:", "evidence: {series: [cpu.time]}\n    severity:",
         lambda v: v.finding.evidence.series == ("cpu.time",)),
    ],
)  # fmt: skip
def test_every_key_has_an_effect_and_changes_the_digest(old: str, new: str, change: object) -> None:
    data = figures()
    data.coverage["cpu"] = 0.9
    before = rules(RULE)
    after = rules(RULE.replace(old, new, 1))
    assert verdict(before, data).outcome == "fired"
    assert change(verdict(after, data))  # type: ignore[operator]
    assert before.digest != after.digest


def test_help_and_tests_do_not_change_the_digest() -> None:
    text = with_lines("help: Read this.", "tests: [{figures: {}, outcome: withheld}]")
    assert rules(text).digest == rules(RULE).digest
    assert rules(text).rules["site-idle"].help == "Read this."


def test_every_setting_has_an_effect(tmp_path: Path) -> None:
    plain = RuleSet.of_settings(FindingsSettings())
    assert plain.rules
    assert RuleSet.of_settings(FindingsSettings(shipped_rules=False)).rules == {}
    own = FindingsSettings(rules=[str(write(tmp_path, RULE))], shipped_rules=False)
    assert list(RuleSet.of_settings(own).rules) == ["site-idle"]
    data = figures()
    data.coverage["cpu"] = 0.9
    assert verdict(RuleSet.of_settings(own), data).outcome == "fired"
    for name, value in (("minimum_elapsed", 40_000.0), ("minimum_coverage", 0.95)):
        changed = FindingsSettings(rules=own.rules, shipped_rules=False, **{name: value})  # type: ignore[arg-type]
        assert verdict(RuleSet.of_settings(changed), data).outcome == "withheld"
        assert RuleSet.of_settings(changed).digest != RuleSet.of_settings(own).digest


def test_a_rule_of_a_short_minimum_judges_short_runs() -> None:
    judged = rules(with_lines("minimum: {elapsed: 0 s, coverage: 0 %}"))
    data = figures(run__elapsed=None)
    data.coverage["cpu"] = 0.0
    assert verdict(judged, data).outcome == "fired"


def test_a_milder_rule_leaves_nothing_behind() -> None:
    """A finding is a function of figures and rules: judging again removes what no longer holds."""
    strict = rules(RULE)
    milder = rules(RULE.replace("low: 40 %", "low: 5 %"))
    assert strict.findings(figures())
    assert milder.findings(figures()) == []


def test_hostile_names_are_text_in_the_finding() -> None:
    text = RULE.replace('"{cpu.share} was used"', '"{run.name} by {programs.top}"')
    text += "    change: 'srun {programs.top}'\n    evidence: {programs: [programs.top]}\n"
    name = "<script>alert('{run.user}')</script>\n\x1b[2J${IFS}%s"
    found = finding(rules(text), figures(run__name=name, programs__top=name, run__user="SECRET"))
    assert found.text.isprintable()
    assert "SECRET" not in found.text + found.change
    assert "<script>alert('{run.user}')</script>" in found.text
    assert encode_json(found)
    assert not re.search(r"[^']\$\{IFS\}(?!.*')", found.change)


def test_outcomes_are_selected_and_verdicts_are_equal() -> None:
    judged = RuleSet.load()
    data = figures()
    every = judged.judge(data)
    assert [each.kind for each in every] == list(judged.rules)
    assert judged.judge(data, outcomes=("fired",)) == [
        each for each in every if each.outcome == "fired"
    ]
    assert judged.judge(data, outcomes=("withheld", "not applicable")) == [
        each for each in every if each.outcome in ("withheld", "not applicable")
    ]


def test_many_selections_are_bounded() -> None:
    judged = rules(RULE + ADJUST.format(selector="accounts: ['a*7']", change="enabled: false"))
    for number in range(10_050):
        outcome = verdict(judged, figures(), Selection("c", "p", f"a{number}")).outcome
        assert outcome == ("not applicable" if number % 10 == 7 else "fired")
    assert len(judged._selected) <= 10_000
