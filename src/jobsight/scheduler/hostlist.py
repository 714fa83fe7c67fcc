"""Host list expressions of Slurm: ``a[1-3,07-10]b,c`` is eight names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

#: Written by Slurm if there are no nodes.
NO_NODES = frozenset({"", "(null)", "none", "none assigned", "n/a", "unknown"})
#: More names than any cluster has; a longer list is broken or hostile.
MAX_HOSTS = 200_000

_RANGE = re.compile(r"([0-9]{1,12})-([0-9]{1,12})", re.ASCII)
_NUMBERED = re.compile(r"(.*?)([0-9]{1,12})", re.ASCII)


def expand_hosts(text: str, limit: int = MAX_HOSTS) -> tuple[str, ...]:
    """The names in their order; ValueError if the text is not a host list."""
    if text.strip().lower() in NO_NODES:
        return ()
    names: list[str] = []
    for pattern in _split(text):
        for name in _expand(pattern):
            names.append(name)
            if len(names) > limit:
                raise ValueError(f"the host list {text[:60]!r} has more than {limit} names")
    return tuple(names)


def _split(text: str) -> Iterator[str]:
    """The parts between the commas that are not in brackets."""
    depth, begin = 0, 0
    for index, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
            if depth < 0:
                raise _not_a_list(text)
        elif character == "," and depth == 0:
            yield _named(text[begin:index], text)
            begin = index + 1
    if depth:
        raise _not_a_list(text)
    yield _named(text[begin:], text)


def _named(part: str, text: str) -> str:
    part = part.strip()
    if not part or any(character.isspace() or not character.isprintable() for character in part):
        raise _not_a_list(text)
    return part


def _expand(pattern: str) -> Iterator[str]:
    """One pattern: text, the choices in the first brackets, and the rest."""
    head, bracket, rest = pattern.partition("[")
    if not bracket:
        yield pattern
        return
    inside, tail = _inside(rest, pattern)
    for choice in _split(inside):
        for middle in _choices(choice):
            for end in _expand(tail):
                yield head + middle + end


def _inside(rest: str, pattern: str) -> tuple[str, str]:
    depth = 1
    for index, character in enumerate(rest):
        depth += (character == "[") - (character == "]")
        if depth == 0:
            return rest[:index], rest[index + 1 :]
    raise _not_a_list(pattern)


def _choices(choice: str) -> Iterator[str]:
    if "[" in choice:
        yield from _expand(choice)
        return
    match = _RANGE.fullmatch(choice)
    if match is None:
        yield choice
        return
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise _not_a_list(choice)
    # Leading zeros of the first number determine the width of all.
    width = len(match[1])
    for number in range(first, last + 1):
        yield f"{number:0{width}d}"


def _not_a_list(text: str) -> ValueError:
    return ValueError(f"{text[:60]!r} is not a list of hosts")


def compress_hosts(names: Iterable[str]) -> str:
    """The host list expression of the names; :func:`expand_hosts` reverses it."""
    groups: dict[tuple[str, int], list[int]] = {}
    alone: list[str] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            alone.append(name)
        else:
            groups.setdefault((match[1], len(match[2])), []).append(int(match[2]))
    parts = [_group(head, width, numbers) for (head, width), numbers in groups.items()]
    return ",".join(parts + alone)


def _group(head: str, width: int, numbers: list[int]) -> str:
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    texts = ["-".join(f"{number:0{width}d}" for number in numbers) for numbers in ranges]
    if len(texts) == 1 and "-" not in texts[0]:
        return head + texts[0]
    return f"{head}[{','.join(texts)}]"
