"""Expressions of rules: CEL over the figures of a run and the parameters of a rule.

:class:`Scope` compiles an expression: CEL checks names and types, ``dimensions.py`` the units.
:meth:`Expression.bind` fixes the parameters, and :meth:`Bound.evaluate` returns the value or a
:class:`Failure`, never an exception. A condition is mostly a conjunction of plain comparisons;
these are decided here, which is faster than CEL and gives the same result.

Two things are more convenient than in plain CEL: ``n > 1`` means ``n > 1.0``, because all figures
are doubles, and a division by zero is a failure instead of infinity.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from jobsight.findings.dimensions import UnitError, example, named, shown, units_of
from jobsight.findings.tree import Node, read_tree
from jobsight.findings.units import Unit, Value
from jobsight.findings.vocabulary import FIGURES

#: Characters of one expression. CEL bounds the depth (32) and the passes of loops by itself.
MAX_LENGTH: Final = 2000

_FIGURE_UNITS: Final[dict[str, Unit]] = {name: each.unit for name, each in FIGURES.items()}
#: What a parameter cannot be called: ``cpu`` would make ``cpu.shar`` a field of it.
RESERVED: Final = frozenset(name.partition(".")[0] for name in FIGURES) | {
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function",
    "if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while",
    "size", "double", "int", "uint", "string", "bytes", "bool", "list", "map", "type", "dyn",
    "math", "duration", "timestamp",
}  # fmt: skip

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "_<_": operator.lt,
    "_<=_": operator.le,
    "_>_": operator.gt,
    "_>=_": operator.ge,
    "_==_": operator.eq,
    "_!=_": operator.ne,
}
_MIRRORED: Final = {"_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_"}
#: Operators whose integer literals become doubles, unless an operand is an integer itself.
_NUMERIC_CALLS: Final = frozenset(
    {*_COMPARISONS, "_+_", "_-_", "_*_", "_/_", "-_", "_?_:_", "@in", "math.@min", "math.@max"}
)
_INTEGER: Final = re.compile(r"-?\s*(?:0[xX][0-9a-fA-F]+|[0-9]+)")
_ERROR: Final = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_UNDECLARED: Final = re.compile(r"undeclared reference to '(.*)' \(in container ''\)")
_OVERLOAD: Final = re.compile(r"found no matching overload for '(.*)' applied to '\((.*)\)'")
_WORDS: Final = {"double": "number", "string": "text", "bool": "flag", "list(string)": "texts"}
#: Fails when it is evaluated; the division of integers has this error, that of doubles has not.
_FAIL: Final = "double(1 / 0)"


class ExpressionError(ValueError):
    """An expression that cannot be used; the message says what is expected."""


class Failure(msgspec.Struct, frozen=True):
    """Why an expression has no value for a run, such as a division by zero."""

    reason: str


Result: TypeAlias = "Value | Failure"
#: A comparison of a figure with a constant or another figure.
_Test: TypeAlias = tuple[str, Callable[[Any, Any], bool], Any]


class Expression:
    """A compiled expression."""

    __slots__ = ("_compiled", "_complete", "_tests", "figures", "parameters", "text")

    def __init__(
        self, text: str, compiled: Any, tree: Node, parameters: Iterable[str], unit: Unit
    ) -> None:
        self.text = text
        names = sorted(_names(tree))
        #: Names of the figures in it.
        self.figures = tuple(name for name in names if name in FIGURES)
        self.parameters = tuple(name for name in names if name in frozenset(parameters))
        self._compiled = compiled
        tests = [_simple(part) for part in _conjunction(tree)] if unit == "flag" else [None]
        self._tests = [test for test in tests if test is not None]
        #: The plain comparisons are the whole expression.
        self._complete = None not in tests

    def bind(self, parameters: Mapping[str, Value]) -> Bound:
        """The expression with the values of its parameters."""
        return Bound(
            self,
            self._compiled,
            self._tests,
            self._complete,
            {name: parameters[name] for name in self.parameters},
        )


class Bound:
    """An expression with the values of its parameters."""

    __slots__ = ("_compiled", "_complete", "_constant", "_pairs", "_parameters", "expression")

    def __init__(
        self,
        expression: Expression,
        compiled: Any,
        tests: Iterable[tuple[str, str, Any, bool]],
        complete: bool,
        parameters: dict[str, Value],
    ) -> None:
        self.expression = expression
        self._compiled = compiled
        self._parameters = parameters
        self._constant: list[_Test] = []
        self._pairs: list[_Test] = []
        self._complete = complete
        for left, operation, right, is_name in tests:
            if left in parameters:
                # Two parameters, or a parameter and a number: not worth a case of its own.
                self._complete = False
            elif is_name and right in FIGURES:
                self._pairs.append((left, _COMPARISONS[operation], right))
            else:
                value = parameters[right] if is_name else right
                self._constant.append((left, _COMPARISONS[operation], value))

    def evaluate(self, values: Mapping[str, Value]) -> Result:
        """The value for a run whose ``values`` contain every figure of the expression."""
        try:
            for name, compare, value in self._constant:
                if not compare(values[name], value):
                    return False
            for name, compare, other in self._pairs:
                if not compare(values[name], values[other]):
                    return False
            if self._complete:
                return True
            return self._by_cel(values)
        except (TypeError, ValueError, RuntimeError) as error:
            # A figure of the wrong type is an error of the program that computes it.
            return Failure(_one_line(str(error)))

    def _by_cel(self, values: Mapping[str, Value]) -> Result:
        data = {name: values[name] for name in self.expression.figures}
        data.update(self._parameters)
        result = self._compiled.eval(data=data)
        value = result.plain_value()
        if isinstance(value, bool):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else Failure("the result is not a finite number")
        if isinstance(value, int):
            return float(value)
        return Failure(_failure(str(value)))


class Scope:
    """Compiles the expressions of a rule: the figures and the rule's own parameters."""

    def __init__(self, parameters: Mapping[str, Unit]) -> None:
        self._parameters = dict(parameters)
        self._units = _FIGURE_UNITS | self._parameters
        self._environment: Any = None

    def compile(self, text: str, unit: Unit) -> Expression:
        """Compile an expression that must have the unit; ExpressionError says what is wrong."""
        if len(text) > MAX_LENGTH:
            raise ExpressionError(
                f"has {len(text):,} characters; expected at most {MAX_LENGTH:,} characters"
            )
        if not text.strip():
            raise ExpressionError("is empty; expected a condition such as cpu.share < low")
        environment = self._env()
        try:
            parsed = read_tree(environment.compile(text, disable_check=True).serialize())
            compiled = environment.compile(_edited(text, parsed))
        except RuntimeError as error:
            raise ExpressionError(self._message(str(error))) from None
        tree = read_tree(compiled.serialize())
        _check_patterns(tree)
        try:
            units = units_of(_without_guards(tree), self._units)
        except UnitError as error:
            raise ExpressionError(str(error)) from None
        if unit not in units:
            raise ExpressionError(
                f"{shown(_without_guards(tree))} is {named(units)}; "
                f"expected {example(frozenset({unit}))}"
            )
        return Expression(text, compiled, tree, self._parameters, unit)

    def _env(self) -> Any:
        if self._environment is None:
            # Imported here: it takes 50 MB, and most commands compile no rule.
            from cel_expr_python import cel
            from cel_expr_python.ext import ext_math

            types = {
                "text": cel.Type.STRING,
                "texts": cel.Type.List(cel.Type.STRING),
                "flag": cel.Type.BOOL,
            }
            self._environment = cel.NewEnv(
                variables={
                    name: types.get(unit, cel.Type.DOUBLE) for name, unit in self._units.items()
                },
                extensions=[ext_math.ExtMath()],
            )
        return self._environment

    def _message(self, error: str) -> str:
        """An error of CEL in our words: the first one, with the nearest name."""
        match = _ERROR.search(error)
        if match is None or "recursion" in match[3]:
            reason = _one_line(error if match is None else match[3]).rstrip(".")
            return f"is refused by CEL: {reason}; expected a simpler expression"
        column, problem = int(match[2]), match[3]
        undeclared = _UNDECLARED.fullmatch(problem)
        if undeclared is not None:
            name = undeclared[1]
            return f"{name[:80]} is not a figure or a parameter; {nearest(name, self._units)}"
        overload = _OVERLOAD.fullmatch(problem)
        if overload is not None:
            types = ", ".join(_WORDS.get(each, each) for each in _split_types(overload[2]))
            sign = overload[1].strip("_").replace("_", "")
            return f"{sign} cannot be applied to ({types}); expected operands of one type"
        if problem.startswith("Syntax error"):
            problem = problem.partition(" expecting ")[0]
            return f"column {column}: {_one_line(problem)}; expected a CEL expression"
        return f"{_one_line(problem)}; expected figures, parameters and operators of CEL"


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint of an error about an unknown name."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "expected a name of docs/findings.md"


def _names(node: Node) -> set[str]:
    """The variables of a tree; those of loops are no figures and no parameters."""
    found = {node.name} if node.kind == "name" else set()
    for each in node.operands():
        found |= _names(each)
    return found


def _check_patterns(node: Node) -> None:
    """Refuse a regular expression that is invalid or computed, as CEL compiles it for each run."""
    if node.kind == "call" and node.name == "matches":
        pattern = node.operands()[-1]
        if pattern.kind != "constant":
            raise ExpressionError(f"matches {shown(pattern)}; expected a pattern in quotes")
        import re2

        try:
            re2.compile(str(pattern.value))
        except re2.error as error:
            reason = error.args[0]
            reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
            raise ExpressionError(
                f"{shown(pattern)} is not a regular expression of RE2: {_one_line(str(reason))}; "
                "expected such as '^python3?$'"
            ) from None
    for each in node.operands():
        _check_patterns(each)


def _conjunction(node: Node) -> list[Node]:
    if node.kind == "call" and node.name == "_&&_":
        return [part for each in node.arguments for part in _conjunction(each)]
    return [node]


def _simple(node: Node) -> tuple[str, str, Any, bool] | None:
    """A comparison of a variable with a constant or a variable: left, operation, right, and
    whether right is a name. A flag is compared with true or false."""
    if node.kind == "name":
        return node.name, "_==_", True, False
    if node.kind != "call":
        return None
    if node.name == "!_" and node.arguments[0].kind == "name":
        return node.arguments[0].name, "_==_", False, False
    if node.name not in _COMPARISONS or node.target is not None:
        return None
    operation = node.name
    left, right = node.arguments
    if left.kind != "name" or (left.name not in FIGURES and right.kind == "name"):
        left, right, operation = right, left, _MIRRORED.get(operation, operation)
    if left.kind != "name":
        return None
    if right.kind == "name":
        return left.name, operation, right.name, True
    if right.kind == "constant" and isinstance(right.value, bool | float | str):
        return left.name, operation, right.value, False
    return None


def _edited(text: str, tree: Node) -> str:
    """The source with integer literals as doubles where figures are, and guarded divisors."""
    edits: dict[int, tuple[int, str]] = {}
    _collect(tree, text, edits, integer=False)
    for start in sorted(edits, reverse=True):
        end, replacement = edits[start]
        text = text[:start] + replacement + text[end:]
    return text


def _integer(text: str) -> int:
    """An integer as CEL reads it: a leading zero is allowed, and not octal."""
    digits = "".join(text.split())
    return int(digits, 16 if "x" in digits.lower() else 10)


def _collect(node: Node, text: str, edits: dict[int, tuple[int, str]], *, integer: bool) -> None:
    if node.kind == "constant":
        if isinstance(node.value, int) and not isinstance(node.value, bool) and not integer:
            match = _INTEGER.match(text, node.position or 0)
            # A macro such as exists_one has integers of its own, which are not in the text.
            if match is not None and _integer(match[0]) == node.value:
                edits[match.start()] = (match.end(), f"{node.value}.0")
        return
    if node.kind == "call" and node.name in _NUMERIC_CALLS:
        operands = node.operands()
        inner = integer or any(map(_is_integer, operands))
        for operand in operands:
            _collect(operand, text, edits, integer=inner)
        if node.name == "_/_":
            _guard(operands[1], text, edits)
        return
    # The index of a list is an integer.
    integer = node.kind == "call" and node.name == "_[_]"
    for operand in node.operands():
        _collect(operand, text, edits, integer=integer)


def _is_integer(node: Node) -> bool:
    """Whether a part is an integer whatever its literals are: size(...)."""
    if node.kind != "call":
        return False
    if node.name in ("size", "int"):
        return True
    return node.name in ("_+_", "_-_", "_*_", "_/_", "-_", "_?_:_") and any(
        map(_is_integer, node.operands())
    )


def _guard(divisor: Node, text: str, edits: dict[int, tuple[int, str]]) -> None:
    if divisor.kind == "constant":
        if not divisor.value:
            raise ExpressionError("divides by 0; expected a figure, a parameter or another number")
        return
    name, start = _dotted(divisor)
    if not name or start is None or not text.startswith(name, start):
        raise ExpressionError(
            f"divides by {shown(divisor)}; expected a figure, a parameter or a number after /: "
            "multiply the other side of the comparison instead"
        )
    edits[start] = (start + len(name), f"({name} == 0.0 ? {_FAIL} : {name})")


def _dotted(node: Node) -> tuple[str, int | None]:
    """The name of a variable as parsed, a chain of selects, and where it starts."""
    if node.kind == "name":
        return node.name, node.position
    if node.kind == "select":
        name, start = _dotted(node.arguments[0])
        return (f"{name}.{node.name}" if name else ""), start
    return "", None


def _without_guards(node: Node) -> Node:
    """The tree as the author wrote it, for the unit check and its messages."""
    if node.kind == "call" and node.name == "_?_:_":
        failing = node.arguments[1]
        if failing.kind == "call" and failing.name == "double" and node.arguments[2].kind == "name":
            return node.arguments[2]
    return msgspec.structs.replace(
        node,
        arguments=[_without_guards(each) for each in node.arguments],
        target=None if node.target is None else _without_guards(node.target),
    )


def _split_types(text: str) -> list[str]:
    return [part.strip() for part in re.split(r",\s*(?![^()]*\))", text)]


def _failure(error: str) -> str:
    """A runtime error of CEL in our words."""
    text = _one_line(error.partition(": ")[2] or error)
    return "it divides by zero" if text == "divide by zero" else text


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
