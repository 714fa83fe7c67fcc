"""The public interface for a site's own samplers and outputs.

A site imports from this module only; every other module of jobsight may change with any release.
A sampler derives from :class:`JobSampler`, an output implements :class:`Output`. Both are named
in the settings as ``package.module:Class``. See docs/samplers.md and docs/outputs.md for examples.

A sampler reads the job through its :class:`JobView`, and accumulates readings with
:class:`Counter` and :class:`Gauge`. :class:`Background` runs what may block, and :class:`Node`
provides the roots of /proc and /sys, the clocks, and readings that all jobs share.
"""

from jobsight.agent.job import Document, JobView, Output, Row, Sampler
from jobsight.agent.outputs.sams_record import Record, encode_record
from jobsight.agent.outputs.worker import RecordRefused
from jobsight.agent.samplers.base import (
    JobSampler,
    SamplerOptions,
    duration,
    item_name,
    positive_integer,
    text_list,
)
from jobsight.agent.samplers.node import Node, Reading
from jobsight.agent.samplers.readings import Background, Counter, Gauge, run_command
from jobsight.errors import ConfigError
from jobsight.model import MISSING, SECOND, Coverage

__all__ = [
    "MISSING",
    "SECOND",
    "Background",
    "ConfigError",
    "Counter",
    "Coverage",
    "Document",
    "Gauge",
    "JobSampler",
    "JobView",
    "Node",
    "Output",
    "Reading",
    "Record",
    "RecordRefused",
    "Row",
    "Sampler",
    "SamplerOptions",
    "duration",
    "encode_record",
    "item_name",
    "positive_integer",
    "run_command",
    "text_list",
]
