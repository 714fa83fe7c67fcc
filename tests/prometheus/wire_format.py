"""Reads remote write messages by the rules of protobuf and snappy, independently of our writer."""

from __future__ import annotations

import struct
from typing import NamedTuple


class Series(NamedTuple):
    labels: list[tuple[str, str]]
    #: Value's bytes and milliseconds.
    samples: list[tuple[bytes, int]]

    @property
    def values(self) -> list[tuple[float, int]]:
        return [(struct.unpack("<d", value)[0], time) for value, time in self.samples]


def unpack(block: bytes) -> bytes:
    """A snappy block: literals and copies."""
    length, place = number(block, 0)
    made = bytearray()
    while place < len(block):
        tag = block[place]
        place += 1
        if tag & 3 == 0:
            size = tag >> 2
            if size >= 60:
                wide = size - 59
                size = int.from_bytes(block[place : place + wide], "little")
                place += wide
            made += block[place : place + size + 1]
            place += size + 1
            continue
        if tag & 3 == 1:
            size, offset = (tag >> 2 & 7) + 4, tag >> 5 << 8 | block[place]
            place += 1
        else:
            size, wide = (tag >> 2) + 1, 2 if tag & 3 == 2 else 4
            offset = int.from_bytes(block[place : place + wide], "little")
            place += wide
        assert 0 < offset <= len(made)
        for _ in range(size):
            # A copy may overlap what it writes.
            made.append(made[-offset])
    assert len(made) == length
    return bytes(made)


def number(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def fields(data: bytes) -> list[tuple[int, bytes | int]]:
    found: list[tuple[int, bytes | int]] = []
    place = 0
    while place < len(data):
        key, place = number(data, place)
        kind = key & 7
        if kind == 2:
            size, place = number(data, place)
            found.append((key >> 3, data[place : place + size]))
            assert place + size <= len(data)
            place += size
        elif kind == 1:
            found.append((key >> 3, data[place : place + 8]))
            place += 8
        else:
            assert kind == 0
            value, place = number(data, place)
            found.append((key >> 3, value))
    return found


def parse(message: bytes) -> list[Series]:
    result = []
    for _, one in fields(message):
        assert isinstance(one, bytes)
        labels, samples = [], []
        for key, part in fields(one):
            assert isinstance(part, bytes)
            inner = dict(fields(part))
            if key == 1:
                labels.append((bytes(inner[1]).decode(), bytes(inner[2]).decode()))  # type: ignore[arg-type]
            else:
                samples.append((inner[1], inner[2]))
        result.append(Series(labels, samples))  # type: ignore[arg-type]
    return result
