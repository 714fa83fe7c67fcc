"""Batches of an iterable. Python 3.12 has ``itertools.batched``; jobsight supports 3.11."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of ``size`` items in order; the last one may be shorter."""
    if size < 1:
        raise ValueError("expected a batch size of at least 1")
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
