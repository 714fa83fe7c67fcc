"""Reads one record of a reply field by field; what is not understood is kept and reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from jobsight.scheduler.records import Problem

Value = TypeVar("Value")


@cache
def _names(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


class RecordReader:
    """One record, and the fields of it that could not be read.

    A field may stand under several paths ("time.start"): releases moved them. The first path
    that holds something counts.
    """

    def __init__(self, document: Mapping[str, Any], label: str) -> None:
        self.document = document
        self.label = label
        self.raw: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def read(self, reader: Callable[[Any], Value | None], *paths: str) -> Value | None:
        """The value under the first path that has one."""
        for path in paths:
            value = self.value(path)
            if value is None:
                continue
            try:
                found = reader(value)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                self.report(path, value, str(error))
                continue
            if found is not None:
                return found
        return None

    def value(self, path: str) -> Any:
        """What stands under a path as it came; None where nothing does."""
        found: Any = self.document
        for name in _names(path):
            if not isinstance(found, dict):
                return None
            found = found.get(name)
        return found

    def report(self, path: str, value: Any, reason: str) -> None:
        """Keep a value that was not understood."""
        self.raw[path] = value
        self.problems.append(Problem(self.label, path, reason))
