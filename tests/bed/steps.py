"""Tell what the bed is doing and how long each step took."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class Steps:
    """One line per step; on a terminal the step under way is shown as well."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream
        self.seconds: dict[str, float] = {}

    @classmethod
    def on_terminal(cls) -> "Steps":
        return cls(sys.stderr)

    def say(self, text: str) -> None:
        if self.stream is not None:
            print(text, file=self.stream, flush=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        live = self.stream is not None and self.stream.isatty()
        if live and self.stream is not None:
            self.stream.write(f"{name:<24} ...")
            self.stream.flush()
        begin = time.monotonic()
        try:
            yield
        except BaseException:
            if live:
                self.say(" failed")
            raise
        self.seconds[name] = time.monotonic() - begin
        self.say(f"{chr(13) if live else ''}{name:<24} {self.seconds[name]:6.2f} s")
