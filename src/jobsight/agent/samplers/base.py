"""What samplers have in common: interval, node, errors, and empty answers.

sams.sampler.Core: which job, on which node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers.node import Node, this_node
from jobsight.agent.samplers.readings import Errors
from jobsight.errors import ConfigError
from jobsight.model import Coverage
from jobsight.text import readable_path

#: The longest name of a metric that the store takes is 128 bytes.
_ITEM_LIMIT = 100


class JobSampler:
    """A sampler that says nothing; each real one says more."""

    name = ""

    def __init__(self, *, sampler_interval: float = 60.0, node: Node | None = None) -> None:
        self.interval = seconds(self.name, "sampler_interval", sampler_interval)
        self.node = node or this_node()
        self.errors = Errors()

    def columns(self, view: JobView) -> Row:
        """Metrics for the curves, now."""
        return {}

    def document(self, view: JobView) -> Document | None:
        """What the seed's sampler of this name would have said now."""
        return None

    def final(self, view: JobView) -> Document:
        """The last word: last values, maxima and averages."""
        return {}

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        """How sure the figures are, by their group."""
        return {}

    def close(self) -> None:
        """Let go of what is kept open."""


def item(name: str | bytes) -> str | None:
    """The name of a thing as it stands inside the name of a metric; None where it is too long."""
    raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
    text = readable_path(raw)
    return text if 0 < len(text.encode()) <= _ITEM_LIMIT else None


def texts(where: str, key: str, value: object, *, needed: bool = False) -> tuple[str, ...]:
    """A setting that is a list of texts."""
    given = value if value is not None else ()
    if not isinstance(given, (list, tuple)) or not all(isinstance(o, str) and o for o in given):
        raise ConfigError(f"{where}: {key} must be a list of texts, not {value!r}")
    if needed and not given:
        raise ConfigError(f"{where}: {key} is missing; right would be a list with at least one")
    return tuple(given)


def seconds(where: str, key: str, value: object) -> float:
    """A setting that is a time; 0 is a value like any other."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]
        raise ConfigError(f"{where}: {key} must be a number of seconds, not {value!r}")
    return float(value)  # type: ignore[arg-type]


def number(where: str, key: str, value: object, *, least: int = 1) -> int:
    """A setting that is a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{where}: {key} must be a whole number from {least} on, not {value!r}")
    return value


def averaged(where: str, value: object, known: Sequence[str]) -> tuple[str, ...]:
    """The setting ``metrics_to_average``: names of this sampler's figures."""
    names = texts(where, "metrics_to_average", value)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{where}: metrics_to_average names {name!r}; known are {', '.join(known)}"
            )
    return names


class Core(JobSampler):
    """Says its two words once, and again at the end."""

    name = "sams.sampler.Core"
    _said = False

    def document(self, view: JobView) -> Document | None:
        if self._said:
            return None
        self._said = True
        return self.final(view)

    def final(self, view: JobView) -> Document:
        return {"jobid": view.sighting.job_id, "node": view.sighting.node}
