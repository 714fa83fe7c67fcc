"""What went wrong, remembered once per cause, so that a log is not filled by one broken file."""

from __future__ import annotations

from typing import Final

_LIMIT: Final = 64


class Errors:
    """Causes of failed readings, and how often readings failed in all."""

    def __init__(self) -> None:
        #: Cause -> the first sentence said about it.
        self.causes: dict[str, str] = {}
        self.count = 0
        self._told = 0

    def note(self, cause: str, error: BaseException | str) -> None:
        self.count += 1
        if cause not in self.causes and len(self.causes) < _LIMIT:
            self.causes[cause] = describe(error)

    def news(self) -> list[str]:
        """What has not been told yet, for the log."""
        sentences = [f"{cause}: {text}" for cause, text in self.causes.items()][self._told :]
        self._told = len(self.causes)
        return sentences


def describe(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__
