"""Every key of a rule file is read or refused, with the file, the line and what is expected."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jobsight.errors import ConfigError
from jobsight.findings.conditions import MAX_LENGTH
from jobsight.findings.engine import RuleSet, shipped_files
from jobsight.findings.rule_file import MAX_FILE, RuleError, parse_rules, read_rules
from tests.findings.rule_texts import RULE, rules, with_lines, write


def refused(text: str) -> str:
    with pytest.raises(RuleError) as caught:
        rules(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def changed(old: str, new: str) -> str:
    assert old in RULE
    return RULE.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            changed("severity: warning", "severty: warning"),
            "1.yaml:5: rule site-idle: unknown key 'severty'; did you mean severity?",
        ),
        (changed("rules:", "rule:"), "1.yaml:2: unknown key 'rule'; did you mean rules?"),
        (
            changed("low: 40 %", "low: 40 %\n      high: 90 %"),
            "1.yaml:8: rule site-idle: parameters: high: no expression uses it; expected it in a "
            "condition, or no such parameter",
        ),
        (
            changed("low: 40 %", "low: 40 percent"),
            "1.yaml:7: rule site-idle: parameters: low: '40 percent' is not a quantity",
        ),
        (
            changed("low: 40 %", "low: 40"),
            "1.yaml:9: rule site-idle: condition: cpu.share is a share, low is a count",
        ),
        (
            changed("low: 40 %", "low: 40 %\n      low: 50 %"),
            "1.yaml:8: rule site-idle: parameters: 'low' is given twice; expected it once",
        ),
        (
            changed("low: 40 %", "cpu: 40 %"),
            "1.yaml:7: rule site-idle: parameters: cpu: 'cpu' cannot be the name of a parameter",
        ),
        (
            changed("cpu.share <", "cpu.shar <"),
            "1.yaml:9: rule site-idle: condition: cpu.shar is not a figure or a parameter; "
            "did you mean cpu.share?",
        ),
        (
            changed("{cpu.share}", "{cpu.shar}"),
            "1.yaml:10: rule site-idle: text: {cpu.shar} is not a figure or a parameter; "
            "did you mean cpu.share?",
        ),
        (changed("{cpu.share}", "{cpu.share"), "text: '{cpu.share was used' is not a placeholder"),
        (changed("{cpu.share}", "{cpu.share:slrm}"), "{cpu.share:slrm} has an unknown format"),
        (
            changed("{cpu.share}", "{cpu.share:slurm}"),
            "{cpu.share:slurm} is a share; expected a size, a duration or a count",
        ),
        (changed("name: site-idle", "name: CPU idle"), "1.yaml:3: rule: name: 'CPU idle' is not a"),
        (changed("name: site-idle", "name: 5"), "rule: name: is a number; expected a text"),
        (changed("- name: site-idle\n    ", "- "), "1.yaml:3: rule: name is missing"),
        (
            changed("    severity: warning\n", ""),
            "1.yaml:3: rule site-idle: severity is missing; expected severity: in this entry",
        ),
        (
            changed("warning", "fatal"),
            "1.yaml:5: rule site-idle: severity: is 'fatal'; expected info, warning, critical",
        ),
        (changed("title: CPUs were idle", "title: '{cpu.share}'"), "title: is not a title"),
        (with_lines("when: later"), "when: is 'later'; expected ended, running, both"),
        (with_lines("audience: all"), "audience: is 'all'; expected user, staff"),
        (with_lines("requires: cpu.cores"), "requires: cpu.cores is a count; expected true or"),
        (
            with_lines("minimum: {elapsed: 80 %}"),
            "minimum: elapsed: '80 %' is a share; expected a duration such as 10 min",
        ),
        (with_lines("minimum: {coverage: 120 %}"), "coverage: is not between 0 % and 100 %"),
        (with_lines("minimum: {elapsed: -1 s}"), "elapsed: is negative"),
        (with_lines("defaults: {cpu.cores: 1}"), "defaults: cpu.cores: is not in the condition"),
        (with_lines("defaults: {cpu.share: 1 h}"), "cpu.share: '1 h' is a duration; expected a"),
        (with_lines("explains: [site-idle]"), "explains: contains the rule itself"),
        (
            with_lines("explains: [memory]"),
            "1.yaml:3: rule site-idle: explains: no rule is called 'memory'",
        ),
        (with_lines("cost: {cores: cpu.idle}"), "cost: unknown key 'cores'; expected one of"),
        (with_lines("cost: {gpu_time: cpu.idle}"), "cost: gpu_time: cpu.idle is a core time; "),
        (with_lines("excuses: [{if: run.array}]"), "excuses: because is missing"),
        (with_lines("excuses: {if: run.array}"), "excuses: is a mapping; expected a list"),
        (
            with_lines("evidence: {series: [cpu.tim]}"),
            "evidence: series: 'cpu.tim' is not a metric; did you mean cpu.time?",
        ),
        (with_lines("evidence: {since: run.star}"), "expected a figure that is a time, such as"),
        (with_lines("evidence: {programs: [cpu.share]}"), "'cpu.share' is a share; expected a"),
        (with_lines("tests: [{outcome: fired}]"), "tests: figures is missing"),
        (with_lines("tests: [{figures: {}, outcome: gone}]"), "outcome: is 'gone'; expected"),
        (
            with_lines("tests: [{figures: {cpu.shar: 5 %}, outcome: fired}]"),
            "figures: cpu.shar: is not a figure; did you mean cpu.share?",
        ),
        (
            with_lines("tests: [{figures: {cpu.share: 5}, outcome: fired}]"),
            "figures: cpu.share: '5' is a count; expected a share such as 65 %",
        ),
        (
            with_lines("tests: [{figures: {run.start: now}, outcome: fired}]"),
            "'now' is not an RFC 3339 time; expected 2026-11-15T05:43:06Z",
        ),
        (
            changed("severity: warning", "severity: [{severity: info, if: run.array}]"),
            "expected `if` in all entries of the list except the last one",
        ),
        (changed("severity: warning", "severity: []"), "severity: is an empty list"),
        (changed('"{cpu.share} was used"', "[]"), "text: is an empty list"),
        (RULE + RULE.replace("rules:\n", ""), "1.yaml:12: rule site-idle: site-idle is already"),
        (RULE + "    text: again\n", "1.yaml:11: rule site-idle: 'text' is given twice"),
        (RULE + "adjust: [{rules: [site-*]}]", "1.yaml:11: adjust: changes nothing; expected"),
        (
            RULE + "adjust: [{rules: [gpu-*], enabled: false}]",
            "1.yaml:11: adjust: rules: no rule is called 'gpu-*'",
        ),
        (
            RULE + "adjust: [{rules: [site-idel], enabled: false}]",
            "no rule is called 'site-idel'; did you mean site-idle?",
        ),
        (
            RULE + "adjust: [{rules: [site-*], parameters: {lo: 5 %}}]",
            "adjust: parameters: lo: none of these rules has it; expected one of floor, low",
        ),
        (
            RULE + "adjust: [{rules: [site-*], parameters: {low: 5}}]",
            "adjust: parameters: low: is a count, and a share in the rule site-idle",
        ),
        (
            RULE + "adjust: [{rules: [site-*], enabled: 1}]",
            "enabled: is a number; expected true or",
        ),
        (
            RULE + "adjust: [{rules: [site-*], partitions: [], enabled: true}]",
            "partitions: is empty and selects nothing",
        ),
        (
            RULE + "adjust: [{rules: [site-*], users: [eve], enabled: true}]",
            "adjust: unknown key 'users'; did you mean clusters?",
        ),
        ("rules: 5", "1.yaml:1: rules: is a number; expected a list"),
        ("- a", "1.yaml:1: is a list; expected a mapping of rules, adjust"),
        ("rules: [a\n", "1.yaml:2: did not find expected"),
        ("rules: [&a [1], *a]", "1.yaml:1: has an alias (*name); expected it written out"),
        ("[" * 3000, "1.yaml:1: is nested too deeply"),
        ("rules: [{? [a] : b}]", "1.yaml:1: rule: has a key that is not a name"),
    ],
)
def test_a_wrong_file_says_where_and_what_is_expected(text: str, message: str) -> None:
    assert message in refused(text)


def test_aliases_do_not_expand_without_bound() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    assert "has an alias" in refused("\n".join(lines))


_NESTED = "programs.software.exists(a, programs.software.exists(b, a == b))"
_HUGE = "cpu.share < low || " * 1000 + "cpu.idle > floor"
_DEEP = "(" * 200 + "cpu.share < low && cpu.idle > floor" + ")" * 200


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (_NESTED, "a loop (exists, all, filter ...) contains another loop"),
        (_HUGE, f"has {len(_HUGE):,} characters; expected at most {MAX_LENGTH:,} characters"),
        (_DEEP, "expected a simpler expression"),
    ],
    ids=["nested", "huge", "deep"],
)
def test_endless_and_huge_conditions_are_refused_where_they_stand(
    condition: str, expected: str
) -> None:
    message = refused(changed("cpu.share < low && cpu.idle > floor", condition))
    assert message.startswith("1.yaml:9: rule site-idle: condition: ")
    assert expected in message
    # The same of every other expression.
    message = refused(with_lines(f"requires: {condition!r}"))
    assert message.startswith("1.yaml:11: rule site-idle: requires: ")
    assert expected in message
    message = refused(with_lines("excuses:", f"  - if: {condition!r}", "    because: it is so"))
    assert message.startswith("1.yaml:12: rule site-idle: excuses: if: ")
    assert expected in message


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "#" * (MAX_FILE + 1))
    with pytest.raises(RuleError, match=f"expected at most {MAX_FILE:,} bytes"):
        read_rules(file)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="cannot be read: No such file"):
        RuleSet.load([tmp_path / "none.yaml"])
    with pytest.raises(ConfigError, match="cannot be read"):
        RuleSet.load([tmp_path])


def test_an_empty_file_has_no_rules() -> None:
    assert rules("").rules == {}
    assert rules("rules: []\nadjust: []").rules == {}


def test_the_same_name_in_two_files_is_refused() -> None:
    with pytest.raises(RuleError) as caught:
        rules(RULE, RULE)
    assert str(caught.value) == (
        "2.yaml:3: rule site-idle: is already defined in 1.yaml:3; "
        "expected another name, or an entry of adjust"
    )


def test_rules_that_explain_each_other_are_refused() -> None:
    text = RULE.replace("rules:\n", "").replace("site-idle", "{name}") + "    explains: [{other}]\n"
    chain = "".join(
        text.replace("{name}", f"r{n}").replace("{other}", f"r{(n + 1) % 3}") for n in range(3)
    )
    assert "explains: it explains itself by r1, r2; expected causes before effects" in refused(
        "rules:\n" + chain
    )


def test_quantities_of_zero_need_no_unit() -> None:
    assert rules(with_lines("defaults: {cpu.share: 0}")).rules["site-idle"].defaults == {
        "cpu.share": 0.0
    }


def _files() -> list[Any]:
    """The smallest in every run, the others where there is more time."""
    first, *others = sorted(shipped_files(), key=lambda file: file.stat().st_size)
    return [first, *(pytest.param(file, marks=pytest.mark.long) for file in others)]


@pytest.mark.parametrize("file", _files(), ids=lambda file: file.name)
def test_every_key_of_the_shipped_files_is_read(file: Path) -> None:
    """Each key in turn is misspelled, and refused."""
    text = file.read_text()
    assert parse_rules(file.name, text).rules
    root = yaml.compose(text, yaml.CSafeLoader)
    lines = text.splitlines()
    for key in _keys(root):
        line, column = key.start_mark.line, key.start_mark.column
        wrong = [*lines]
        wrong[line] = f"{lines[line][:column]}x-{lines[line][column:]}"
        with pytest.raises(RuleError, match=f"^{file.name}:{line + 1}: "):
            RuleSet([parse_rules(file.name, "\n".join(wrong))])


def _keys(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for key, value in node.value for each in [key, *_keys(value)]]
    if isinstance(node, yaml.SequenceNode):
        return [each for value in node.value for each in _keys(value)]
    return []


@given(st.text(max_size=200))
def test_any_text_is_a_rule_file_or_an_error(text: str) -> None:
    with contextlib.suppress(RuleError):
        parse_rules("any.yaml", text)


VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["40 %", "cpu.share", "cpu.share < low", "{cpu.share}", "warning", "fired"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["if", "because", "severity", "figures", "outcome", "low", "cpu.share"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
KEYS = [
    "name", "title", "when", "severity", "audience", "requires", "parameters", "minimum",
    "condition", "excuses", "defaults", "explains", "cost", "text", "change", "evidence", "help",
    "tests", "other",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(KEYS), VALUE, min_size=1, max_size=4))
def test_any_value_of_any_key_is_read_or_refused_with_the_line(changes: dict[str, object]) -> None:
    tree = yaml.safe_load(RULE)
    tree["rules"][0] |= changes
    message = "any.yaml:1: "
    try:
        RuleSet([parse_rules("any.yaml", yaml.safe_dump(tree))])
    except RuleError as error:
        message = str(error)
    assert message.startswith("any.yaml:")
    assert message.split(":")[1].isdigit()
