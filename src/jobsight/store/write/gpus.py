"""The GPUs of a run: rows of ``gpus``, their sums, and the merge of agent epochs.

A row is one GPU of a sighting within one agent epoch; its figures are cumulative, so that the row
of the newest batch counts, and rows of several epochs add up. How much a GPU was used is the share
of its multiprocessors that were busy where that is known, else the time in which any kernel ran.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from jobsight.model import GPU_FIGURES, Coverage, GpuFault, GpuUse, Quality
from jobsight.store.schema.statements import GPU_NAMES, HIGHEST
from jobsight.store.write.runs import total

logger = logging.getLogger(__name__)

#: Rows of one sighting. A node has some GPUs, and an agent is started again some times.
MAX_NODE_GPUS: Final = 4096

_encode = msgspec.msgpack.Encoder().encode
_DOCUMENTS: Final = {
    "throttled_time": msgspec.msgpack.Decoder(dict[str, int]).decode,
    "faults": msgspec.msgpack.Decoder(list[GpuFault]).decode,
    "coverage": msgspec.msgpack.Decoder(dict[str, Coverage]).decode,
}
#: The figures that add up over agent epochs, by their group.
_SUMMED: Final = {
    group: tuple(name for name in names if name not in ("memory_total", "memory_peak"))
    for group, names in GPU_FIGURES.items()
    if group not in ("throttling", "faults")
}
#: From the best to the worst.
_QUALITIES: Final[tuple[Quality, ...]] = ("exact", "estimate", "failed", "missing")


class GpuSums(NamedTuple):
    """The GPUs of a run, summed. None if there is no GPU, or if the figure is known of none."""

    gpu_count: int | None = None
    #: GPUs that no process of the run ever used.
    gpu_unused_count: int | None = None
    gpu_held_time: int | None = None
    #: The part of the held time for which the use is known.
    gpu_measured_time: int | None = None
    #: The part of the measured time for which the use is that of the multiprocessors.
    gpu_profiled_time: int | None = None
    gpu_used_time: int | None = None
    #: The sum of the peaks of all GPUs.
    gpu_memory_peak: int | None = None
    #: Microjoules.
    gpu_energy: int | None = None


def used_time(use: GpuUse) -> int | None:
    """How much of a GPU was used, as time: of the multiprocessors, else the active time. Readings
    at both ends of the held time may exceed it; the use of a GPU never does."""
    figure = use.active_time if use.multiprocessor_time is None else use.multiprocessor_time
    return None if figure is None else min(figure, measured_time(use))


def measured_time(use: GpuUse) -> int:
    """The held time for which :func:`used_time` is known."""
    if use.multiprocessor_time is not None:
        return known_time(use, "profile")
    return 0 if use.active_time is None else known_time(use, "activity")


def known_time(use: GpuUse, group: str) -> int:
    """The held time for which the figures of a group are known."""
    coverage = use.coverage.get(group)
    share = None if coverage is None else coverage.time_share
    return use.held_time if share is None else min(round(use.held_time * share), use.held_time)


def sum_gpus(uses: Iterable[tuple[str, GpuUse]]) -> GpuSums:
    """The sums of the GPUs of a run from the rows of all epochs, each with its node."""
    by_gpu: dict[tuple[str, str], list[GpuUse]] = {}
    for node, use in uses:
        by_gpu.setdefault((node, use.key), []).append(use)
    if not by_gpu:
        return GpuSums()
    rows = [use for epochs in by_gpu.values() for use in epochs]
    measured = [(use, measured_time(use)) for use in rows]
    profiled = [time for use, time in measured if use.multiprocessor_time is not None]
    return GpuSums(
        gpu_count=len(by_gpu),
        gpu_unused_count=sum(is_unused(epochs) for epochs in by_gpu.values()),
        gpu_held_time=total([use.held_time for use in rows]),
        gpu_measured_time=total([time for _, time in measured]),
        gpu_profiled_time=total([0, *profiled]),
        gpu_used_time=total([used_time(use) for use in rows]),
        gpu_memory_peak=total([_highest(epochs, "memory_peak") for epochs in by_gpu.values()]),
        gpu_energy=total([use.energy for use in rows]),
    )


def is_unused(epochs: Sequence[GpuUse]) -> bool:
    """Whether no process of the run is known to have used the GPU, in no epoch."""
    return all(use.used is False for use in epochs)


def merge_epochs(epochs: Sequence[GpuUse]) -> GpuUse:
    """One GPU of a run from its rows of all epochs: figures add up, of peaks the highest counts."""
    ordered = sorted(epochs, key=lambda use: use.last_seen)
    if len(ordered) == 1:
        return ordered[0]
    latest = ordered[-1]
    sums = {
        name: total([getattr(use, name) for use in ordered])
        for names in _SUMMED.values()
        for name in names
    }
    used = [use.used for use in ordered]
    seen = [use.first_seen for use in ordered if use.first_seen]
    held = min(sum(use.held_time for use in ordered), HIGHEST)
    merged = msgspec.structs.replace(
        latest,
        name=next((use.name for use in reversed(ordered) if use.name), ""),
        uuid=next((use.uuid for use in reversed(ordered) if use.uuid), ""),
        first_seen=min(seen, default=0),
        held_time=held,
        used=True if True in used else None if None in used else False,
        shared=any(use.shared for use in ordered),
        memory_total=_highest(ordered, "memory_total"),
        memory_peak=_highest(ordered, "memory_peak"),
        throttled_time=_merge_throttling(ordered),
        faults=_merge_faults(ordered),
        **sums,
    )
    merged.coverage = {
        group: coverage
        for group in GPU_FIGURES
        if (coverage := _merge_coverage(ordered, group, held)) is not None
    }
    return merged


def _highest(epochs: Sequence[GpuUse], name: str) -> int | None:
    known = [value for use in epochs if (value := getattr(use, name)) is not None]
    return max(known, default=None)


def _merge_throttling(epochs: Sequence[GpuUse]) -> dict[str, int] | None:
    merged: dict[str, int] | None = None
    for use in epochs:
        if use.throttled_time is not None:
            merged = merged or {}
            for reason, time in use.throttled_time.items():
                merged[reason] = min(merged.get(reason, 0) + time, HIGHEST)
    return merged


def _merge_faults(epochs: Sequence[GpuUse]) -> list[GpuFault] | None:
    merged: dict[tuple[str, int | None], GpuFault] = {}
    for use in epochs:
        for fault in use.faults or ():
            before = merged.get((fault.kind, fault.code))
            count = fault.count + (before.count if before else 0)
            last = max(fault.last, before.last if before else 0)
            merged[fault.kind, fault.code] = msgspec.structs.replace(fault, count=count, last=last)
    return None if all(use.faults is None for use in epochs) else list(merged.values())


def _merge_coverage(epochs: Sequence[GpuUse], group: str, held: int) -> Coverage | None:
    """The coverage of a group over all epochs; None if the group is exact in each of them."""
    names = GPU_FIGURES[group]
    known = 0
    worst: Coverage | None = None
    for use in epochs:
        own = use.coverage.get(group)
        is_known = any(getattr(use, name) is not None for name in names)
        if is_known:
            known += known_time(use, group)
        own = own or Coverage(quality="exact" if is_known else "missing")
        if worst is None or _QUALITIES.index(own.quality) >= _QUALITIES.index(worst.quality):
            worst = own
    assert worst is not None
    share = known / held if held else None
    if worst.quality == "exact" and share in (None, 1.0) and not worst.reason:
        return None
    # Some figures are known, if not for all of the time.
    quality: Quality = worst.quality if not known or worst.quality == "exact" else "estimate"
    return msgspec.structs.replace(
        worst, quality=quality, time_share=None if share in (None, 1.0) else share
    )


def gpu_from_columns(values: Sequence[Any]) -> GpuUse:
    """A GpuUse from the columns GPU_NAMES of a row."""
    fields = dict(zip(GPU_NAMES, values, strict=True))
    for name, decode in _DOCUMENTS.items():
        if fields[name] is not None:
            fields[name] = decode(bytes(fields[name]))
    fields["coverage"] = fields["coverage"] or {}
    fields["shared"] = bool(fields["shared"])
    fields["used"] = None if fields["used"] is None else bool(fields["used"])
    return GpuUse(**fields)


def columns_of_gpu(use: GpuUse) -> list[Any]:
    """The columns GPU_NAMES and GPU_DERIVED of a row."""
    values = []
    for name in GPU_NAMES:
        value = getattr(use, name)
        if name in _DOCUMENTS and value is not None:
            value = None if name == "coverage" and not value else _encode(value)
        values.append(value)
    return [*values, measured_time(use), used_time(use)]


class NodeGpus:
    """The rows of one sighting, changed in memory."""

    def __init__(self) -> None:
        #: By key and epoch: the sequence of the batch, and the figures.
        self._rows: dict[tuple[str, int], tuple[int, GpuUse]] = {}
        self._changed: set[tuple[str, int]] = set()

    def add_stored(self, epoch: int, sequence: int, columns: Sequence[Any]) -> None:
        """Add a row that is stored."""
        use = gpu_from_columns(columns)
        self._rows[use.key, epoch] = sequence, use

    def merge(self, uses: Iterable[GpuUse], epoch: int, sequence: int) -> None:
        """Merge the GPUs of a part: the row of the newest batch counts, and peaks never fall."""
        left_out = 0
        for use in uses:
            place = (use.key, epoch)
            before = self._rows.get(place)
            if before is None and len(self._rows) >= MAX_NODE_GPUS:
                left_out += 1
                continue
            if before is not None:
                stored, known = before
                newer, older = (use, known) if sequence >= stored else (known, use)
                peak = _highest((newer, older), "memory_peak")
                use = msgspec.structs.replace(newer, memory_peak=peak)
                sequence_of_row = max(sequence, stored)
            else:
                sequence_of_row = sequence
            self._rows[place] = sequence_of_row, use
            self._changed.add(place)
        if left_out:
            logger.warning(
                "%d GPUs are left out: a run has %d rows of GPUs on one node, and no more are "
                "stored",
                *(left_out, MAX_NODE_GPUS),
            )

    def sums(self) -> GpuSums:
        return sum_gpus(("", use) for _, use in self._rows.values())

    def changed_rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows to be written, without the id of the sighting: from the epoch on."""
        for place in sorted(self._changed):
            sequence, use = self._rows[place]
            yield (place[1], sequence, *columns_of_gpu(use))


def sum_rows(rows: Iterable[Sequence[Any]]) -> GpuSums:
    """The sums of rows that begin with the node, followed by the columns GPU_NAMES."""
    return sum_gpus((node, gpu_from_columns(columns)) for node, *columns in rows)


def rows_by_gpu(rows: Iterable[Sequence[Any]]) -> Mapping[tuple[str, str], list[GpuUse]]:
    """The epochs of each GPU by node and key, from rows as those of :func:`sum_rows`."""
    result: dict[tuple[str, str], list[GpuUse]] = {}
    for node, *columns in rows:
        use = gpu_from_columns(columns)
        result.setdefault((node, use.key), []).append(use)
    return result
