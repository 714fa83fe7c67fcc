"""A reply read while it comes gives what reading it whole gives."""

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.scheduler.adapters.json import adapt_jobs, stream_jobs
from jobsight.scheduler.adapters.json_stream import ReplyStream
from jobsight.scheduler.records import AdaptError, SourceError
from tests.scheduler import shapes

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[place : place + size] for place in range(0, len(data), size))


@given(
    st.lists(VALUES, max_size=4),
    st.dictionaries(st.text().filter(lambda name: name != "jobs"), VALUES, max_size=3),
    st.sampled_from([None, 2]),
    st.integers(1, 50),
    st.booleans(),
)
def test_any_document_in_any_pieces(
    entries: list[Any], rest: dict[str, Any], indent: int | None, size: int, first: bool
) -> None:
    document = {"jobs": entries} | rest if first else rest | {"jobs": entries}
    data = json.dumps(document, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
    stream = ReplyStream(pieces(data, size), "jobs", "sacct")
    if any(0xD800 <= ord(letter) < 0xE000 for letter in repr(document)):
        # Halves of characters are no UTF-8: they come as what they are in bytes.
        assert len(list(stream)) == len(entries)
        return
    assert list(stream) == entries
    assert stream.rest == rest
    assert stream.listed


@given(st.integers(0, 10_000), st.integers(1, 4000))
def test_a_reply_that_breaks_off_is_an_error(cut: int, size: int) -> None:
    data = json.dumps(shapes.reply(shapes.new_accounting(), shapes.old_accounting())).encode()
    jobs = stream_jobs(pieces(data[: cut % len(data)], size), "sacct --json", "c", "sacct")
    with pytest.raises(AdaptError, match="gave no JSON"):
        list(jobs)


def test_the_records_are_those_of_the_whole_document() -> None:
    document = shapes.reply(shapes.new_accounting(), {"name": "x"}, shapes.old_controller())
    whole = adapt_jobs(document, "c", "sacct")
    jobs = stream_jobs(pieces(json.dumps(document).encode(), 100), "sacct", "c", "sacct")
    assert jobs.records == whole.records
    assert jobs.problems == whole.problems
    assert jobs.release == whole.release
    assert len(whole.problems) == 1


def test_errors_behind_the_list_are_seen() -> None:
    for entries, error in (("[]", "Protocol authentication error"), ("null", "Nothing here")):
        reply = f'{{"jobs": {entries}, "errors": [{{"error": "{error}"}}]}}'.encode()
        with pytest.raises(SourceError, match=error):
            list(stream_jobs([reply], "sacct", "c", "sacct"))
    for odd in (b"[1]", b"17", b"", b"slurm_load_jobs error: away", b'{"jobs": []} {}'):
        with pytest.raises(AdaptError):
            list(stream_jobs([odd], "sacct", "c", "sacct"))
    assert list(stream_jobs([b'{"jobs": []}'], "sacct", "c", "sacct")) == []


def test_memory_does_not_grow_with_the_reply() -> None:
    entry = json.dumps(shapes.new_accounting()).encode()

    def reply(count: int) -> Iterator[bytes]:
        yield b'{"jobs": ['
        for place in range(count):
            yield entry + (b"," if place < count - 1 else b"]}")

    def peak(count: int) -> int:
        tracemalloc.start()
        read = sum(1 for _ in stream_jobs(reply(count), "sacct", "c", "sacct"))
        assert read == count
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(50)
    assert peak(2000) < 1.2 * peak(200)
