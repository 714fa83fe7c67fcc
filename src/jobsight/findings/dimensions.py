"""The unit check: whether an expression combines quantities that can be combined.

An expression has a set of possible units: a ratio of two sizes can be a share or a count, and CPUs
times a duration can be a duration or core time. Two quantities can be compared and added if their
sets have a common unit. Runs on the tree that CEL has already checked for types.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Final, TypeAlias

from jobsight.findings.tree import Node
from jobsight.findings.units import NUMERIC, Unit

Units: TypeAlias = frozenset[Unit]

#: A quantity of each unit as it is written in a rule.
EXAMPLES: Final[dict[Unit, str]] = {
    "share": "65 %",
    "duration": "10 min",
    "size": "4 GiB",
    "count": "2",
    "core time": "50 core h",
    "gpu time": "5 GPU h",
    "memory time": "100 GB h",
    "energy": "1 kWh",
    "rate": "10 /s",
    "byte rate": "1 MB/s",
}
_RATIO: Final[Units] = frozenset({"share", "count"})
#: Zero is the same in every unit.
_ZERO: Final[Units] = NUMERIC - {"time"}
_FLAG: Final[Units] = frozenset({"flag"})
_TEXT: Final[Units] = frozenset({"text"})
_TEXTS: Final[Units] = frozenset({"texts"})
_COUNT: Final[Units] = frozenset({"count"})

#: First times second; the order does not matter. Shares and counts times anything: see _multiply.
_PRODUCTS: Final[dict[tuple[Unit, Unit], Unit]] = {
    ("size", "duration"): "memory time",
    ("rate", "duration"): "count",
    ("byte rate", "duration"): "size",
}
#: First divided by second.
_QUOTIENTS: Final[dict[tuple[Unit, Unit], Unit]] = {
    ("core time", "duration"): "count",
    ("gpu time", "duration"): "count",
    ("memory time", "duration"): "size",
    ("memory time", "size"): "duration",
    ("size", "duration"): "byte rate",
    ("size", "byte rate"): "duration",
    ("count", "duration"): "rate",
    ("count", "rate"): "duration",
    ("core time", "count"): "duration",
    ("gpu time", "count"): "duration",
}
_OPERATORS: Final = {
    "_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">=", "_==_": "==", "_!=_": "!=",
    "_&&_": "&&", "_||_": "||", "!_": "!", "@in": "in", "_?_:_": "?:",
    "_+_": "+", "_-_": "-", "_*_": "*", "_/_": "/", "-_": "-", "_%_": "%", "_[_]": "[]",
    "math.@min": "math.least", "math.@max": "math.greatest",
}  # fmt: skip
_COMPARISONS: Final = frozenset({"_<_", "_<=_", "_>_", "_>=_", "_==_", "_!=_"})
_LOGICAL: Final = frozenset({"_&&_", "_||_", "!_", "@not_strictly_false"})
_TEXT_TESTS: Final = frozenset({"contains", "startsWith", "endsWith", "matches"})
#: What a condition may call; named in the error about any other function.
FUNCTIONS: Final = (
    "size", "contains", "startsWith", "endsWith", "matches", "exists", "all", "exists_one",
    "filter", "math.least", "math.greatest",
)  # fmt: skip


class UnitError(ValueError):
    """Quantities that cannot be combined; the message says what is expected."""


def units_of(node: Node, variables: Mapping[str, Unit]) -> Units:
    """The possible units of an expression; UnitError if it combines what cannot be combined."""
    return _Check({name: frozenset({unit}) for name, unit in variables.items()}).units(node)


def named(units: Units) -> str:
    """Units in words: "a share", "a ratio"."""
    if units == _RATIO:
        return "a ratio"
    if units == _ZERO:
        return "a number"
    names = [unit for unit in ("duration", *sorted(units)) if unit in units]
    words = {"flag": "true or false", "texts": "a list of texts", "gpu time": "a GPU time"}
    return words.get(names[0]) or f"{'an' if names[0] == 'energy' else 'a'} {names[0]}"


def example(units: Units) -> str:
    """What to write for such a quantity: "a share such as 65 %"."""
    shown = next((EXAMPLES[unit] for unit in sorted(units) if unit in EXAMPLES), None)
    return f"{named(units)} such as {shown}" if shown else named(units)


class _Check:
    def __init__(self, variables: dict[str, Units], in_loop: bool = False) -> None:
        self._variables = variables
        self._in_loop = in_loop

    def units(self, node: Node) -> Units:
        match node.kind:
            case "constant":
                return _of_constant(node)
            case "name":
                if node.name not in self._variables:
                    # CEL knows the names of its types, such as list and string.
                    raise UnitError(f"{node.name} is a type of CEL; expected a figure")
                return self._variables[node.name]
            case "list":
                return self._list(node)
            case "loop":
                return self._loop(node)
            case "call":
                return self._call(node)
        raise UnitError("expected figures, parameters, numbers and texts; got a map or a message")

    def _call(self, node: Node) -> Units:
        name = node.name
        if name == "@in":
            return self._in(*node.arguments)
        operands = node.operands()
        units = [self.units(operand) for operand in operands]
        if name in _LOGICAL or name in _TEXT_TESTS:
            return _FLAG
        if name in _COMPARISONS:
            _common(operands[0], units[0], operands[1], units[1], _OPERATORS[name])
            return _FLAG
        match name:
            case "_?_:_":
                return _common(operands[1], units[1], operands[2], units[2], "?:")
            case "math.@min" | "math.@max" if len(operands) > 1:
                return self._extreme(operands, units)
            case "_+_" | "_-_":
                return _sum(name, operands, units)
            case "_*_":
                return _multiply(operands, units)
            case "_/_":
                return _divide(operands, units)
            case "-_" | "double" if units[0] <= NUMERIC:
                return units[0]
            case "size":
                return _COUNT
            case "_[_]":
                return _TEXT
        shown = _OPERATORS.get(name, name)
        raise UnitError(f"{shown} cannot be used; expected operators and {', '.join(FUNCTIONS)}")

    def _extreme(self, operands: list[Node], units: list[Units]) -> Units:
        common = units[0]
        for operand, other in zip(operands[1:], units[1:], strict=True):
            common = _common(operands[0], common, operand, other, "math.least and math.greatest")
        return common

    def _in(self, element: Node, container: Node) -> Units:
        units = self.units(element)
        if container.kind == "list":
            for each in container.arguments:
                _common(element, units, each, self.units(each), "in")
        elif self.units(container) != _TEXTS or units != _TEXT:
            raise UnitError(f"{shown(container)} is not a list of texts; expected one after `in`")
        return _FLAG

    def _list(self, node: Node) -> Units:
        if all(self.units(each) == _TEXT for each in node.arguments):
            return _TEXTS
        raise UnitError("a list of numbers can stand only after `in`; expected a list of texts")

    def _loop(self, node: Node) -> Units:
        if self._in_loop:
            raise UnitError(
                "a loop (exists, all, filter ...) contains another loop, which takes too long; "
                "expected one loop"
            )
        over, start, *rest = node.arguments
        if self.units(over) != _TEXTS:
            raise UnitError(f"{shown(over)} is not a list of texts; expected one before the loop")
        variables = {node.name: _TEXT, node.accumulator: self.units(start)}
        inner = _Check(self._variables | variables, in_loop=True)
        return [inner.units(part) for part in rest][-1]


def _of_constant(node: Node) -> Units:
    match node.value:
        case bool():
            return _FLAG
        case int() | float():
            return _ZERO if node.value == 0 else _COUNT
        case str():
            return _TEXT
    raise UnitError("null, bytes and unsigned integers cannot be used; expected numbers and texts")


def _common(first: Node, left: Units, second: Node, right: Units, operator: str) -> Units:
    common = left & right
    if common:
        return common
    units = left if _is_number(second) else right
    if (_is_number(second) or _is_number(first)) and units <= NUMERIC:
        expected = f"expected {example(units)}: name a parameter"
    else:
        expected = f"expected the same unit on both sides of {operator}"
    raise UnitError(
        f"{shown(first)} is {named(left)}, {shown(second)} is {named(right)}; {expected}"
    )


def _sum(name: str, operands: list[Node], units: list[Units]) -> Units:
    left, right = units
    time: Units = frozenset({"time"})
    duration: Units = frozenset({"duration"})
    if left == time and right == time and name == "_-_":
        return duration
    if left == time and "duration" in right:
        return time
    if right == time and "duration" in left and name == "_+_":
        return time
    if left == time and right == time:
        raise UnitError(f"{shown(operands[0])} and {shown(operands[1])} are times; expected `-`")
    return _common(operands[0], left, operands[1], right, _OPERATORS[name])


def _multiply(operands: list[Node], units: list[Units]) -> Units:
    found: set[Unit] = set()
    for first, second in product(*units):
        for one, other in ((first, second), (second, first)):
            if (one, other) in _PRODUCTS:
                found.add(_PRODUCTS[one, other])
            if one in _RATIO and other != "time":
                # A share of a count is a count.
                found.add("count" if one == "count" and other == "share" else other)
    # CPUs or GPUs times a duration; a plain number of times it is a duration.
    plain = any(_is_number(operand) for operand in operands)
    if not plain and any(pair == {"count", "duration"} for pair in map(set, product(*units))):
        found |= {"core time", "gpu time"}
    return _checked(found, operands, units, "multiplied by")


def _divide(operands: list[Node], units: list[Units]) -> Units:
    found: set[Unit] = set()
    for first, second in product(*units):
        if first == second and first != "time":
            found |= _RATIO
        if (first, second) in _QUOTIENTS:
            found.add(_QUOTIENTS[first, second])
        if second in _RATIO and first != "time":
            found.add(first)
    return _checked(found, operands, units, "divided by")


def _checked(found: set[Unit], operands: list[Node], units: list[Units], verb: str) -> Units:
    if not found or not all(each <= NUMERIC for each in units):
        first, second = (
            f"{shown(operand)} ({named(each)})"
            for operand, each in zip(operands, units, strict=True)
        )
        raise UnitError(f"{first} {verb} {second} has no unit; expected such as size * duration")
    return frozenset(found)


def _is_number(node: Node) -> bool:
    if node.name == "-_" and node.kind == "call":
        node = node.arguments[0]
    return node.kind == "constant" and isinstance(node.value, int | float)


def shown(node: Node) -> str:
    """A part of an expression as it is written, shortened."""
    text = _written(node)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _written(node: Node) -> str:
    match node.kind:
        case "constant":
            value = node.value
            if isinstance(value, bool):
                return str(value).lower()
            return f"{value:g}" if isinstance(value, int | float) else repr(value)
        case "name":
            return node.name
        case "select":
            return f"{_written(node.arguments[0])}.{node.name}"
        case "list":
            return f"[{', '.join(map(_written, node.arguments))}]"
        case "loop":
            return f"the loop over {_written(node.arguments[0])}"
        case "struct":
            return "a map"
    operands = node.operands()
    operator = _OPERATORS.get(node.name, node.name)
    if node.name == "_[_]":
        return f"{_written(operands[0])}[{_written(operands[1])}]"
    if node.name.startswith("_") and len(operands) == 2:
        return f"{_inner(operands[0])} {operator} {_inner(operands[1])}"
    if node.name in ("!_", "-_"):
        return f"{operator}{_inner(operands[0])}"
    if node.target is not None:
        return f"{_inner(node.target)}.{operator}({', '.join(map(_written, node.arguments))})"
    return f"{operator}({', '.join(map(_written, operands))})"


def _inner(node: Node) -> str:
    binary = node.kind == "call" and node.name.startswith("_") and len(node.operands()) > 1
    return f"({_written(node)})" if binary and node.name != "_[_]" else _written(node)
