"""The base class of all samplers, checks of their settings, and SAMS's Core sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers.node import Node, this_node
from jobsight.agent.samplers.readings import Errors
from jobsight.errors import ConfigError
from jobsight.model import Coverage
from jobsight.text import readable_path

#: The store accepts metric names of up to 128 bytes.
_MAX_ITEM_NAME = 100


class SamplerOptions(TypedDict, total=False):
    """The keyword arguments that every sampler has."""

    sampler_interval: float
    node: Node | None


class JobSampler:
    """A sampler that measures nothing. Subclasses override what they provide."""

    name = ""
    #: Whether :meth:`document` is called every second instead of every interval, because it reads
    #: nothing and returns None unless something changed.
    every_tick = False

    def __init__(self, *, sampler_interval: float = 60.0, node: Node | None = None) -> None:
        self.interval = duration(self.name, "sampler_interval", sampler_interval)
        self.node = node or this_node()
        self.errors = Errors()

    def columns(self, view: JobView) -> Row:
        """Metrics for the job's time series, now."""
        return {}

    def document(self, view: JobView) -> Document | None:
        """The current document, in the format of the SAMS sampler of the same name."""
        return None

    def final(self, view: JobView) -> Document:
        """The document at the end of the job: last values, maxima and averages."""
        return {}

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        """The quality of the figures, by group."""
        return {}

    def close(self) -> None:
        """Release descriptors."""


class JobIdentity(JobSampler):
    """sams.sampler.Core: job id and node, once at the start and again at the end."""

    name = "sams.sampler.Core"
    _reported = False

    def document(self, view: JobView) -> Document | None:
        if self._reported:
            return None
        self._reported = True
        return self.final(view)

    def final(self, view: JobView) -> Document:
        return {"jobid": view.sighting.job_id, "node": view.sighting.node}


def item_name(name: str | bytes) -> str | None:
    """The name of a device or mount point as part of a metric name; None if it is too long."""
    raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
    text = readable_path(raw)
    return text if 0 < len(text.encode()) <= _MAX_ITEM_NAME else None


def text_list(where: str, key: str, value: object, *, required: bool = False) -> tuple[str, ...]:
    """Check a setting that is a list of strings."""
    items = value if value is not None else ()
    if not isinstance(items, (list, tuple)) or not all(isinstance(o, str) and o for o in items):
        raise ConfigError(f"{where}: {key} must be a list of texts, not {value!r}")
    if required and not items:
        raise ConfigError(f"{where}: {key} is missing; expected a list with at least one entry")
    return tuple(items)


def duration(where: str, key: str, value: object) -> float:
    """Check a setting that is a number of seconds; 0 is allowed."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]
        raise ConfigError(f"{where}: {key} must be a number of seconds, not {value!r}")
    return float(value)  # type: ignore[arg-type]


def positive_integer(where: str, key: str, value: object) -> int:
    """Check a setting that is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where}: {key} must be a whole number from 1 on, not {value!r}")
    return value


def averaged_metrics(where: str, value: object, known: Sequence[str]) -> tuple[str, ...]:
    """Check the setting ``metrics_to_average``."""
    names = text_list(where, "metrics_to_average", value)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{where}: metrics_to_average has {name!r}; expected {', '.join(known)}"
            )
    return names
