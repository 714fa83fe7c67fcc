"""Large batches cut into some that a server takes: users decide how many programs there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from jobsight.model import Batch, ExecutableUse, JobPart, StepUse

#: Bytes of a header, far below the server's bound: one job with ten thousand programs in paths of
#: thousands of characters must not cost all jobs of the node their batch.
LARGEST: Final = 2 * 2**20
#: What a record takes on the wire besides its path, generously.
_RECORD: Final = 320
_PART: Final = 2048

_Item = TypeVar("_Item", ExecutableUse, StepUse)


def cut(batch: Batch, largest: int = LARGEST) -> Iterator[Batch]:
    """The batch, or several with the same content; a job's last word stays the last."""
    pieces = [piece for part in batch.parts for piece in _pieces(part, largest)]
    jobs = batch.jobs
    taken: list[JobPart] = []
    size = 0
    for piece in pieces:
        more = _size(piece.executables) + _size(piece.steps) + _PART
        if taken and size + more > largest:
            yield msgspec.structs.replace(batch, jobs=jobs, parts=taken)
            jobs, taken, size = [], [], 0
        taken.append(piece)
        size += more
    yield msgspec.structs.replace(batch, jobs=jobs, parts=taken)


def _pieces(part: JobPart, largest: int) -> list[JobPart]:
    """A part, after parts of the same sighting with what was too much of executables and steps."""
    *ahead, executables = _runs(part.executables, largest)
    *steps_ahead, steps = _runs(part.steps, largest)
    pieces = [JobPart(sighting=part.sighting, epoch=part.epoch, executables=run) for run in ahead]
    pieces += [JobPart(sighting=part.sighting, epoch=part.epoch, steps=run) for run in steps_ahead]
    if not pieces:
        return [part]
    return [*pieces, msgspec.structs.replace(part, executables=executables, steps=steps)]


def _runs(items: list[_Item], largest: int) -> list[list[_Item]]:
    """The items in order, in at least one list, none of them too large."""
    if _size(items) <= largest:
        return [items]
    runs: list[list[_Item]] = [[]]
    size = 0
    for item in items:
        more = _size([item])
        if runs[-1] and size + more > largest // 2:
            runs.append([])
            size = 0
        runs[-1].append(item)
        size += more
    return runs


def _size(items: Sequence[ExecutableUse] | Sequence[StepUse]) -> int:
    names = sum(len(item.path) for item in items if isinstance(item, ExecutableUse))
    return names + _RECORD * len(items)
