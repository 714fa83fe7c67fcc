"""Signals: being told to stop must lead through the clean-up, and not break it off."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {number}")


def _pass(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN: that would be inherited by the daemons, and they could not be stopped."""


@contextmanager
def _handled(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)


@contextmanager
def stop_as_interrupt() -> Iterator[None]:
    """SIGTERM and a closed terminal behave like Ctrl-C."""
    with _handled(_interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def held_off() -> Iterator[None]:
    """A second Ctrl-C must not leave half of it behind."""
    with _handled(_pass, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield
