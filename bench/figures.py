"""Rows of the table, and whether every goal was reached."""

from __future__ import annotations

import sys


class Figures:
    """Prints figures as they come; ``end`` gives the verdict."""

    def __init__(self) -> None:
        self._missed: list[str] = []

    def row(self, what: str, peer: str, measured: str, goal: str, *, reached: bool = True) -> None:
        print(f"| {what} | {peer} | {measured} | {goal} |", flush=True)
        if not reached:
            self._missed.append(what)

    def end(self) -> None:
        for what in self._missed:
            print(f"short of the goal: {what}")
        sys.exit(1 if self._missed else 0)
