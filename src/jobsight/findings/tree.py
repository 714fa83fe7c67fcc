"""The syntax tree of a CEL expression, read from its serialized form.

cel-expr-python checks the types of an expression and shows its tree only as a serialized protobuf
message (``cel.expr.CheckedExpr`` or ``cel.expr.ParsedExpr`` in a ``google.protobuf.Any``). The
messages are few and stable, so they are read here without the protobuf package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["constant", "name", "select", "call", "list", "struct", "loop"]

#: ``CheckedExpr`` and ``ParsedExpr``: numbers of the fields with the expression and the positions.
_ROOTS: Final = {b"cel.expr.CheckedExpr": (4, 5), b"cel.expr.ParsedExpr": (2, 3)}


class Node(msgspec.Struct):
    """One node of the tree."""

    kind: Kind
    #: Offset in the source, in characters; None where a macro has made the node.
    position: int | None = None
    #: Of a name, the field of a select, the function of a call, the variable of a loop.
    name: str = ""
    #: Of a constant; an int is a literal such as 1, a float is 1.0.
    value: object = None
    #: Arguments of a call after its target, elements of a list, parts of a loop.
    arguments: list[Node] = msgspec.field(default_factory=list)
    #: Of a method call.
    target: Node | None = None
    #: ``accumulator`` of a loop, which is a variable inside it.
    accumulator: str = ""

    def operands(self) -> list[Node]:
        """The target and the arguments."""
        return self.arguments if self.target is None else [self.target, *self.arguments]


def read_tree(serialized: bytes) -> Node:
    """The tree of ``Expression.serialize()``."""
    message = dict(_fields(serialized))
    root, info = _ROOTS[bytes(message[1]).rpartition(b"/")[2]]
    fields = dict(_fields(message[2]))
    positions: dict[int, int] = {}
    for number, value in _fields(fields.get(info, b"")):
        if number == 4:
            entry = dict(_fields(value))
            positions[entry.get(1, 0)] = entry.get(2, 0)
    return _node(fields[root], positions)


def _node(data: bytes, positions: dict[int, int]) -> Node:
    fields = dict(_fields(data))
    position = positions.get(fields.pop(2, 0))
    number, content = next(iter(fields.items()))
    parts = list(_fields(content))
    single = dict(parts)

    def nodes(*numbers: int) -> list[Node]:
        return [_node(value, positions) for field, value in parts if field in numbers]

    match number:
        case 3:
            return Node("constant", position, value=_constant(single))
        case 4:
            return Node("name", position, name=_text(single.get(1)))
        case 5:
            return Node("select", position, name=_text(single.get(2)), arguments=nodes(1))
        case 6:
            target = nodes(1)
            return Node(
                "call",
                position,
                name=_text(single.get(2)),
                arguments=nodes(3),
                target=target[0] if target else None,
            )
        case 7:
            return Node("list", position, arguments=nodes(1))
        case 9:
            return Node(
                "loop",
                position,
                name=_text(single.get(1)),
                arguments=nodes(2, 4, 5, 6, 7),
                accumulator=_text(single.get(3)),
            )
    return Node("struct", position)


def _constant(fields: dict[int, Any]) -> object:
    number, value = next(iter(fields.items()), (1, None))
    match number:
        case 2:
            return bool(value)
        case 3:
            assert isinstance(value, int)
            return value - 2**64 if value >= 2**63 else value
        case 5:
            assert isinstance(value, bytes)
            return float(struct.unpack("<d", value)[0])
        case 6:
            return _text(value)
    # null, unsigned integers and bytes, which no figure has.
    return None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: number and value, an integer or the bytes."""
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        match key & 7:
            case 0:
                value, offset = _varint(data, offset)
                yield key >> 3, value
            case 2:
                length, offset = _varint(data, offset)
                yield key >> 3, data[offset : offset + length]
                offset += length
            case kind:
                length = 8 if kind == 1 else 4
                yield key >> 3, data[offset : offset + length]
                offset += length


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, offset
