"""Mutations of samples without coverage guidance, the same on every run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

#: What parsers have stumbled over: nesting, bytes that are not UTF-8, NUL, numbers out of range.
_PIECES = (
    b"\0", b"\xff", b"\xed\xa0\x80", b"\n", b"\r\n", b'"', b"'", b"\\", b"%", b"{", b"}", b"[",
    b"]", b"-1", b"0", b"00", b"9" * 20, b"9" * 400, b"1e999", b"NaN", b"-0", b"null", b"../",
    b"[" * 3000, b'{"a":' * 3000, b"- " * 1500, b"a: &x [*x]\n", b"[[" * 1500, b"(" * 2000,
)  # fmt: skip


def mutations(name: str, samples: Sequence[bytes], count: int, largest: int) -> Iterator[bytes]:
    """``count`` mutated samples, after the samples themselves and each piece alone."""
    yield from samples
    yield from (piece[:largest] for piece in _PIECES)
    random = Random(name)
    for _ in range(count):
        data = bytearray(random.choice(samples))
        for _ in range(random.randint(1, 4)):
            _mutate(data, random, samples)
        yield bytes(data[:largest])


def _mutate(data: bytearray, random: Random, samples: Sequence[bytes]) -> None:
    place = random.randint(0, len(data))
    match random.randrange(6):
        case 0 if data:
            data[min(place, len(data) - 1)] = random.randrange(256)
        case 1:
            data[place:place] = random.choice(_PIECES)
        case 2:
            del data[place : place + random.randint(1, 16)]
        case 3:
            other = random.choice(samples)
            start = random.randint(0, len(other))
            data[place:place] = other[start : start + 64]
        case 4:
            end = place + random.randint(1, 32)
            data[place:place] = data[place:end]
        case _:
            end = place + random.randint(1, 8)
            data[place:end] = random.choice(_PIECES)
