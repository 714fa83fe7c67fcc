"""/proc/diskstats of every kernel: what block devices did."""

from __future__ import annotations

from typing import Final, NamedTuple

from jobsight.agent.samplers.counter import growth
from jobsight.agent.samplers.node import Node, Reading
from jobsight.model import SECOND

SECTOR: Final = 512
#: Times are milliseconds in 32 bits.
_TICKS: Final = 2**32
_FIELDS: Final = 11


class DiskCounters(NamedTuple):
    reads: int
    reads_merged: int
    sectors_read: int
    read_ticks: int
    writes: int
    writes_merged: int
    sectors_written: int
    write_ticks: int
    in_flight: int
    busy_ticks: int
    queue_ticks: int


def parse_diskstats(data: bytes) -> dict[str, DiskCounters]:
    """Counters by the kernel's name; short lines (partitions of old kernels) are left out."""
    found: dict[str, DiskCounters] = {}
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        words = line.split()
        if len(words) < 3 + _FIELDS or not all(w.isdigit() for w in words[3 : 3 + _FIELDS]):
            continue
        found[words[2]] = DiskCounters(*map(int, words[3 : 3 + _FIELDS]))
    return found


def read_diskstats(node: Node) -> Reading[dict[str, DiskCounters]]:
    """One reading for all jobs of the round."""
    return node.reading(
        "diskstats", lambda: parse_diskstats(node.files.read(node.proc / "diskstats"))
    )


def growth_between(before: DiskCounters, now: DiskCounters) -> DiskCounters:
    """What the device did between two readings."""
    ticks = {3, 7, 9, 10}
    return DiskCounters(
        *(
            0 if index == 8 else growth(one, other, _TICKS if index in ticks else None)
            for index, (one, other) in enumerate(zip(before, now, strict=True))
        )
    )


def rates(done: DiskCounters, nanoseconds: int) -> dict[str, float]:
    """The columns that ``iostat -x`` prints, under the seed's spelling."""
    time = nanoseconds / SECOND
    milliseconds = nanoseconds / 1_000_000
    calls = done.reads + done.writes
    sectors = done.sectors_read + done.sectors_written
    ticks = done.read_ticks + done.write_ticks
    return {
        "rrqm_s": done.reads_merged / time,
        "wrqm_s": done.writes_merged / time,
        "r_s": done.reads / time,
        "w_s": done.writes / time,
        "rkB_s": done.sectors_read * SECTOR / 1024 / time,
        "wkB_s": done.sectors_written * SECTOR / 1024 / time,
        "avgrq-sz": sectors / calls if calls else 0.0,
        "avgqu-sz": done.queue_ticks / milliseconds,
        "await": ticks / calls if calls else 0.0,
        "r_await": done.read_ticks / done.reads if done.reads else 0.0,
        "w_await": done.write_ticks / done.writes if done.writes else 0.0,
        "svctm": done.busy_ticks / calls if calls else 0.0,
        # The kernel counts in ticks, so a busy device can come out a little above the whole.
        "util": min(100.0, done.busy_ticks / milliseconds * 100),
    }
