"""Expressions are checked for names, types and units when they are compiled, and never raise."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobsight.findings.conditions import (
    MAX_LENGTH,
    Bound,
    ExpressionError,
    Failure,
    Result,
    Scope,
)
from jobsight.findings.units import NUMERIC, Unit, Value
from jobsight.findings.vocabulary import FIGURES

PARAMETERS: dict[str, Unit] = {
    "low": "share",
    "floor": "core time",
    "names": "texts",
    "many": "count",
    "long": "duration",
}
VALUES: dict[str, Value] = {
    "low": 0.5,
    "floor": 3600.0,
    "names": ["a", "b"],
    "many": 8.0,
    "long": 60.0,
}
SCOPE = Scope(PARAMETERS)
OPERATORS = ["<", "<=", ">", ">=", "==", "!="]
NUMBERS = sorted(name for name, each in FIGURES.items() if each.unit in NUMERIC)


def bound(text: str, unit: Unit = "flag") -> Bound:
    return SCOPE.compile(text, unit).bind(VALUES)


def evaluate(text: str, **given: Value) -> Result:
    return bound(text).evaluate({name.replace("__", "."): value for name, value in given.items()})


def refused(text: str, unit: Unit = "flag") -> str:
    with pytest.raises(ExpressionError) as caught:
        SCOPE.compile(text, unit)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu.share < low", True),
        ("low > cpu.share", True),
        ("cpu.share >= low || cpu.cores > 1", True),
        ("cpu.cores > 1", True),
        ("cpu.cores > 1.5 && cpu.cores - 1 == 15", True),
        ("cpu.cores == 0x10", True),
        ("cpu.cores > -1", True),
        ("cpu.cores in [1, 16]", True),
        ("cpu.idle > 0 && cpu.idle > floor", True),
        ("cpu.idle / run.elapsed > 2", True),
        ("cpu.idle < cpu.cores * run.elapsed", True),
        ("memory.used / memory.requested < low", True),
        ("memory.used * run.elapsed < memory.unused_time * 100", True),
        ("run.end - run.start > long", True),
        ("run.end > run.start + long", True),
        ("cpu.cores * cpu.share > 1 && cpu.cores * low == many", True),
        ("size(programs.software) > 1", True),
        ("size(programs.software) + 1 > 2 && cpu.cores > 2", True),
        ("programs.software[0] == 'a'", True),
        ("programs.software.exists(name, name in names)", True),
        ("programs.software.exists_one(name, name == 'a')", True),
        ("programs.software.all(name, name in names)", False),
        ("programs.software.filter(name, name != 'a').size() == 1", True),
        ("run.state in ['TIMEOUT', 'COMPLETED']", True),
        ("run.name.matches('^tr[a-z]*n$') && run.name.startsWith('t')", True),
        ("!run.array && run.exclusive", True),
        ("run.exclusive ? cpu.share < low : run.array", True),
        ("math.least(cpu.share, low) < low", True),
        ("math.greatest(cpu.cores, 2) > many", True),
        ("cpu.cores >\n  many", True),
        ("low > low", False),
    ],
)
def test_what_a_condition_can_say(text: str, expected: bool) -> None:
    values: dict[str, Value] = {
        "cpu.share": 0.1,
        "cpu.cores": 16.0,
        "cpu.idle": 200_000.0,
        "run.elapsed": 36_000.0,
        "memory.used": 1e9,
        "memory.requested": 1e10,
        "memory.unused_time": 1e13,
        "run.start": 1e9,
        "run.end": 1e9 + 36_000,
        "run.state": "COMPLETED",
        "run.name": "train",
        "run.array": False,
        "run.exclusive": True,
        "programs.software": ["a", "c"],
    }
    assert bound(text).evaluate(values) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "cpu.share < 65",
            "cpu.share is a share, 65 is a count; expected a share such as 65 %: name a parameter",
        ),
        # petricore compared a percentage with a ratio: memory < 0.95.
        ("memory.share < 0.95", "memory.share is a share, 0.95 is a count; expected a share"),
        ("1 - cpu.share < low", "1 is a count, cpu.share is a share; expected a share"),
        ("cpu.share < floor", "floor is a core time; expected the same unit on both sides of <"),
        ("cpu.idle > 2 * run.elapsed", "cpu.idle is a core time, 2 * run.elapsed is a duration"),
        ("gpu.idle > floor", "gpu.idle is a GPU time, floor is a core time"),
        ("cpu.share in [1, 2]", "cpu.share is a share, 1 is a count"),
        ("run.end - run.start > 3600", "expected a duration such as 10 min: name a parameter"),
        ("run.end + run.start > run.end", "are times; expected `-`"),
        ("run.end * 2 > run.end", "has no unit"),
        ("memory.used * memory.used > memory.used", "has no unit"),
        ("cpu.shar < low", "cpu.shar is not a figure or a parameter; did you mean cpu.share?"),
        ("cpu.share < lo", "lo is not a figure or a parameter; did you mean low?"),
        ("run.name == 1", "== cannot be applied to (text, number); expected operands of one type"),
        ("run.name", "run.name is a text; expected true or false"),
        ("cpu.share", "cpu.share is a share; expected true or false"),
        ("cpu.share <", "column 12: Syntax error"),
        ("", "is empty; expected a condition such as cpu.share < low"),
        ("cpu.idle / (cpu.time + cpu.idle) > 1", "expected a figure, a parameter or a number"),
        ("cpu.idle / 0 > floor", "divides by 0"),
        ("null == null", "null, bytes and unsigned integers cannot be used"),
        ("b'a' == b'a'", "null, bytes and unsigned integers cannot be used"),
        ("cpu.cores == 1u", "== cannot be applied to"),
        ("dyn(cpu.share) > 1", "dyn cannot be used; expected operators and size"),
        ("duration('1h') > duration('2h')", "duration cannot be used"),
        ("{'a': 'b'}.a == 'b'", "expected figures, parameters, numbers and texts"),
        ("[1.0, 2.0] == [1.0]", "a list of numbers can stand only after `in`"),
        ("run.name.matches(run.user)", "matches run.user; expected a pattern in quotes"),
        ("run.name.matches('(')", "is not a regular expression of RE2"),
        ("'a' in [run.name, 1]", "'a' is a text, 1 is a count; expected the same unit"),
    ],
)
def test_what_is_refused_and_what_is_expected(text: str, message: str) -> None:
    assert message in refused(text)


def test_the_unit_of_a_cost_is_checked() -> None:
    assert bound("cpu.cores * idle.duration", "core time")
    assert "expected a core time such as 50 core h" in refused("cpu.cores", "core time")
    assert "expected an energy such as 1 kWh" in refused("cpu.idle", "energy")


def test_endless_and_huge_expressions_are_refused() -> None:
    names = "programs.software"
    nested = f"{names}.all(a, {names}.all(b, {names}.all(c, a == b || b == c)))"
    assert "a loop (exists, all, filter ...) contains another loop" in refused(nested)
    assert f"expected at most {MAX_LENGTH:,} characters" in refused("true || " * 1000 + "true")
    assert "expected a simpler expression" in refused("(" * 200 + "true" + ")" * 200)
    assert "expected a simpler expression" in refused("true ? (" * 60 + "true" + ") : true" * 60)
    assert "expected a simpler expression" in refused("cpu.cores" + " + 1" * 480 + " > 1")


def test_a_loop_over_too_many_names_fails_and_ends() -> None:
    condition = bound("programs.software.all(name, name != 'x')")
    assert condition.evaluate({"programs.software": ["a"] * 100}) is True
    assert isinstance(condition.evaluate({"programs.software": ["a"] * 100_000}), Failure)


def test_division_by_zero_is_a_failure_with_a_reason() -> None:
    assert evaluate("cpu.idle / run.elapsed > 2", cpu__idle=1.0, run__elapsed=0.0) == Failure(
        "it divides by zero"
    )
    # A condition that tests the divisor first is decided.
    guarded = "cpu.cores > 0 && cpu.idle / cpu.cores > floor"
    assert evaluate(guarded, cpu__cores=0.0, cpu__idle=1.0) is False


@pytest.mark.parametrize("value", ["text", None, ["a"], b"bytes"])
def test_a_figure_of_the_wrong_type_is_a_failure(value: Value) -> None:
    assert isinstance(evaluate("cpu.cores > many", cpu__cores=value), Failure)
    assert isinstance(evaluate("cpu.cores * 2 > many", cpu__cores=value), Failure)


def test_text_that_is_not_unicode_is_a_failure_or_decided() -> None:
    assert evaluate("run.name == 'a'", run__name="\udcff") is False
    assert isinstance(evaluate("run.name.contains('a')", run__name="\udcff"), bool | Failure)


def test_figures_and_parameters_of_an_expression() -> None:
    expression = SCOPE.compile("cpu.share < low && cpu.cores > 1", "flag")
    assert expression.figures == ("cpu.cores", "cpu.share")
    assert expression.parameters == ("low",)


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.sampled_from(OPERATORS))
def test_figures_are_compared_only_with_their_own_unit(
    first: str, second: str, operator: str
) -> None:
    text = f"{first} {operator} {second}"
    if FIGURES[first].unit == FIGURES[second].unit:
        assert SCOPE.compile(text, "flag")
    else:
        assert "expected the same unit on both sides" in refused(text)


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.sampled_from("+-"))
def test_figures_are_added_only_with_their_own_unit(first: str, second: str, sign: str) -> None:
    units: tuple[Unit, Unit] = (FIGURES[first].unit, FIGURES[second].unit)
    text = f"{first} {sign} {second}"
    if units[0] == units[1] != "time":
        assert SCOPE.compile(text, units[0])
    elif units == ("time", "duration"):
        assert SCOPE.compile(text, "time")
    elif units == ("time", "time") and sign == "-":
        assert SCOPE.compile(text, "duration")
    elif units == ("duration", "time") and sign == "+":
        assert SCOPE.compile(text, "time")
    else:
        refused(text, units[0])


COMPARISON = st.builds(
    "{} {} {}".format,
    st.sampled_from(["cpu.cores", "cpu.peak_cores", "run.nodes", "many", "3", "0", "2.5"]),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    st.sampled_from(["cpu.cores", "cpu.peak_cores", "run.nodes", "many", "3", "0", "2.5"]),
)
PART = COMPARISON | st.sampled_from(
    ["run.array", "!run.array", "run.name == 'a'", "run.name < 'b'", "(run.array || cpu.cores > 2)"]
)
NUMBER = st.sampled_from([0.0, 2.5, 3.0, 8.0, float("inf"), float("nan"), -1.0])


@given(st.lists(PART, min_size=1, max_size=5), NUMBER, NUMBER, NUMBER, st.booleans())
@example(["cpu.cores != cpu.peak_cores"], float("nan"), float("nan"), 0.0, True)
def test_plain_comparisons_are_decided_as_cel_decides_them(
    parts: list[str], cores: float, peak: float, nodes: float, array: bool
) -> None:
    condition = bound(" && ".join(parts))
    values: dict[str, Value] = {
        "cpu.cores": cores,
        "cpu.peak_cores": peak,
        "run.nodes": nodes,
        "run.array": array,
        "run.name": "a",
    }
    assert condition.evaluate(values) == condition._by_cel(values)


@given(st.text(max_size=60) | st.text(alphabet="cpu.share<>=&|!()[]'\"0123456789 \n", max_size=60))
def test_any_text_is_compiled_or_refused_in_one_line(text: str) -> None:
    message = ""
    try:
        SCOPE.compile(text, "flag")
    except ExpressionError as error:
        message = str(error)
    assert "\n" not in message
    assert not message or "expected" in message or "did you mean" in message


def test_cel_is_loaded_only_to_compile() -> None:
    code = (
        "import sys; import jobsight.findings.engine, jobsight.cli.report, jobsight.cli.agent; "
        "print('cel_expr_python' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
