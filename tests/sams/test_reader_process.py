"""Messages between the process that reads records and the one that books them."""

import os

import pytest

from jobsight.sams.reader_process import Channel


def test_nobody_waits_for_the_other_to_read() -> None:
    """Many times what a pipe holds, sent and read by one thread."""
    one, other = Channel.pair()
    contents = [bytes([number]) * 2**20 for number in range(8)]
    for content in contents:
        one.send(b"g", content)
    one.send(b"e")
    assert [other.receive() for _ in range(9)] == [(b"g", content) for content in contents] + [
        (b"e", b"")
    ]
    one.close()
    other.close()


def test_it_says_whether_something_waits() -> None:
    one, other = Channel.pair()
    assert not other.waits()
    one.send(b"g", b"content")
    assert other.waits()
    assert other.receive() == (b"g", b"content")
    assert not other.waits()
    one.close()
    assert other.waits()
    other.close()


def test_the_end_comes_after_what_was_sent_before_it() -> None:
    one, other = Channel.pair()
    one.send(b"g", b"never read")
    other.send(b"s", b"sent before")
    other.close()
    assert one.receive() == (b"s", b"sent before")
    with pytest.raises(EOFError):
        one.receive()
    with pytest.raises(EOFError):
        one.send(b"g")
    one.close()


def test_descriptors_do_not_pile_up() -> None:
    one, other = Channel.pair()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        one.send(b"g", b"content")
        other.receive()
    assert len(os.listdir("/proc/self/fd")) == before
    one.close()
    other.close()
