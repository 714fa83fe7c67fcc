"""A value over time: its last reading, its bounds and its average, weighted by time."""

from __future__ import annotations

from jobsight.model import SECOND


class Gauge:
    """Readings at irregular times, joined by straight lines from the first reading on."""

    def __init__(self) -> None:
        self.last: float | None = None
        self.maximum: float | None = None
        self.minimum: float | None = None
        #: The area under the lines, in units of the value times seconds.
        self.integral = 0.0
        self._first = self._time = 0

    def add(self, time: int, value: float | None) -> None:
        """Take a reading in; None is a failed one and leaves a gap that the next one closes."""
        if value is None:
            return
        if self.last is None or self.maximum is None or self.minimum is None:
            self._first = self._time = time
            self.last = self.maximum = self.minimum = value
            return
        if time < self._time:
            return
        self.integral += (self.last + value) / 2 * (time - self._time) / SECOND
        self._time, self.last = time, value
        self.maximum = max(self.maximum, value)
        self.minimum = min(self.minimum, value)

    @property
    def seconds(self) -> float:
        """The time from the first reading to the last."""
        return (self._time - self._first) / SECOND

    @property
    def average(self) -> float | None:
        """The average by time; of a single moment it is the reading itself."""
        return self.integral / self.seconds if self._time > self._first else self.last
