"""What can go wrong between us and a scheduler; both are said, neither is an empty list."""

from __future__ import annotations

from jobsight.errors import JobsightError


class SchedulerError(JobsightError):
    """The scheduler could not be asked, or not be understood."""


class SourceError(SchedulerError):
    """A source gave no answer: not installed, not reachable, refused, too slow."""


class AdaptError(SchedulerError):
    """An answer came and is not understood as a whole."""


class NoList(AdaptError):
    """An answer is about something else than what was asked for."""
