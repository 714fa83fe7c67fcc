"""Samplers of a site of its own: what real jobs of seconds need, read at every sample."""

from __future__ import annotations

from typing import Unpack

from jobsight.agent.samplers.files import Files
from jobsight.agent.samplers.processes import ThreadStates
from jobsight.plugins import SamplerOptions

#: Where users of the bed may write, and what is on a disk.
SCRATCH = "/var/tmp"


class EveryFile(Files):
    """Open files, with scratch where users of the bed may write."""

    def __init__(self, **common: Unpack[SamplerOptions]) -> None:
        super().__init__(scratch_prefixes=[SCRATCH], every=1, links_every=1, **common)


class EveryState(ThreadStates):
    """The states of the threads."""

    def __init__(self, **common: Unpack[SamplerOptions]) -> None:
        super().__init__(every=1, **common)
