"""Compressed frames: each carries its size and a checksum, and damage is told."""

from __future__ import annotations

import threading

import zstandard

from jobsight.errors import StoreError

#: For parts as they arrive, for a few that are joined while a job runs, and for chunks that stay.
ARRIVING_LEVEL = -1
JOINED_LEVEL = 3
LASTING_LEVEL = 6
#: Nothing of ours unpacks to more; it bounds the memory that damaged bytes can ask for.
MAX_UNPACKED = 1 << 30

_contexts = threading.local()


class ChunkError(StoreError):
    """The bytes are not a chunk, or no longer."""


def compress(body: bytes, level: int = JOINED_LEVEL) -> bytes:
    """Pack bytes into a frame."""
    # A context costs more than a small chunk, and must not be shared between threads.
    known: dict[int, zstandard.ZstdCompressor] = _contexts.__dict__.setdefault("compressors", {})
    if level not in known:
        known[level] = zstandard.ZstdCompressor(
            level=level, write_checksum=True, write_content_size=True
        )
    return known[level].compress(body)


def decompress(data: bytes) -> bytes:
    """Unpack a frame, or say that it is damaged."""
    if not hasattr(_contexts, "decompressor"):
        _contexts.decompressor = zstandard.ZstdDecompressor()
    context: zstandard.ZstdDecompressor = _contexts.decompressor
    try:
        frame = zstandard.get_frame_parameters(data)
        if not frame.has_checksum or frame.content_size > MAX_UNPACKED:
            raise ChunkError("a chunk of a series is damaged: its frame is not one of ours")
        return context.decompress(data, max_output_size=MAX_UNPACKED, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise ChunkError(f"a chunk of a series is damaged: {error}") from None
