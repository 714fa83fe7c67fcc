"""A stretch of curves by the differences of its rows, all columns at once.

That is how a chunk is written which is packed again when its run ends. It takes a third more room
than the best method for each column, a twentieth of the time to write and a tenth to read.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jobsight.store.chunk_header import KINDS, ChunkColumn, Header
from jobsight.store.transforms import DELTA, Integers, Values, Words, unzigzag, zigzag

#: Values that are read at once; longer stretches are read by column, in less memory.
MOST_VALUES = 1 << 17

_WORD = 2**64 - 1


def pack(times: Integers, columns: Mapping[str, Values]) -> tuple[Header, bytes]:
    """The header and the planes of a chunk."""
    rows = len(times)
    bits = np.stack([values.view(np.uint64) for values in (times, *columns.values())])
    words = zigzag(np.diff(bits, axis=1).view(np.int64))
    planes = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, rows, 8)
    used = np.bitwise_or.reduce(planes, axis=1) != 0
    kinds = [KINDS[values.dtype.kind] for values in columns.values()]
    masks = np.packbits(used, axis=1, bitorder="little")[:, 0].tolist()
    firsts = bits[:, 0].view(np.int64).tolist()
    described = [
        ChunkColumn(name, kind, DELTA, mask, base=first)
        for name, kind, mask, first in zip(
            ["", *columns], ["q", *kinds], masks, firsts, strict=True
        )
    ]
    return Header(rows, described), planes.transpose(0, 2, 1)[used].tobytes()


def is_packed_so(header: Header) -> bool:
    """Whether :func:`unpack` can read such a chunk."""
    return 0 < header.rows * len(header.columns) <= MOST_VALUES and all(
        column.method == DELTA
        and column.scale == 1
        and column.decimals is None
        and not column.missing
        for column in header.columns
    )


def unpack(body: bytes, header: Header, position: int) -> Integers:
    """The bits of all columns, the times first, from the bytes behind the header."""
    rows, columns = header.rows, header.columns
    masks = np.array([column.planes for column in columns], np.uint8)
    used = np.unpackbits(masks[:, None], axis=1, bitorder="little").astype(np.bool_)
    planes = np.zeros((len(columns), 8, rows), np.uint8)
    stored = np.frombuffer(body, np.uint8, int(used.sum()) * rows, position)
    planes[used] = stored.reshape(-1, rows)
    words = np.ascontiguousarray(planes.transpose(0, 2, 1)).view("<u8")[..., 0]
    changes = unzigzag(words.astype(np.uint64, copy=False))
    changes[:, 0] = np.array([column.base & _WORD for column in columns], np.uint64)
    result: Words = np.cumsum(changes, axis=1, dtype=np.uint64)
    return result.view(np.int64)
