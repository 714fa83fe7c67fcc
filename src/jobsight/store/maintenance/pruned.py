"""What retention has removed, or would remove."""

from __future__ import annotations

import msgspec


class Pruned(msgspec.Struct):
    """How much data of one class was removed, or would be."""

    #: Runs, or days of nodes.
    runs: int = 0
    #: Chunks, executables and steps, or nodes of runs.
    rows: int = 0
    #: The compressed size of time series before and after.
    bytes: int = 0
    bytes_left: int = 0
    #: Old enough, but not archived or not in the daily rollups yet.
    waiting: int = 0
    #: Nodes with a chunk that cannot be read; they are left unchanged.
    damaged: int = 0
