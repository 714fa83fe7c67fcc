"""A reader in a process of its own: while the store writes a group, the next is read.

Reading, checking and moving files costs about as much as writing the store, and there is more than
one core. The two ends see each other go by the end of the channel.

Messages between two processes, of any size, that wait for the other in memory and not in a pipe.

A pipe takes some ten kilobytes, and who sends more waits until the other reads. Here the bytes lie
in a file in memory of which only the descriptor is sent, so a sender goes on at once; how many
messages may wait is for the two to agree on.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import socket
from collections.abc import Iterator
from typing import Final, Self

import msgspec

from jobsight.errors import JobsightError
from jobsight.sams.reader import Group, Reader, Refusals
from jobsight.util.memory import collect_rarely

#: Groups that are read but not yet booked; each is a quarter of a megabyte. The first ones are read
#: while the store is still being opened.
_AHEAD: Final = 8

#: Those that some ten groups make.
NEW_OBJECTS: Final = 100_000

_encode = msgspec.msgpack.Encoder().encode
_decode_group = msgspec.msgpack.Decoder(Group).decode
_decode_refusals = msgspec.msgpack.Decoder(Refusals).decode

_GROUP, _SETTLED, _END, _ERROR = b"g", b"s", b"e", b"x"


class ReaderGone(JobsightError):
    """The process that reads the files has ended before its work."""


class ReaderProcess:
    """Starts the process; must be made before this one has threads."""

    def __init__(self, reader: Reader) -> None:
        context = multiprocessing.get_context("fork")
        self._channel, other = Channel.pair()
        self._process = context.Process(
            target=_serve, args=(reader, other, self._channel), name="sams-reader", daemon=True
        )
        self._process.start()
        other.close()
        self._told = False

    def start(self) -> None:
        """Let it look into its inbox; until then it does not know what waits there."""
        if not self._told:
            self._told = True
            self.settle({})

    def groups(self) -> Iterator[Group]:
        self.start()
        while True:
            try:
                kind, content = self._channel.receive()
            except EOFError:
                raise ReaderGone("the process that reads the records has ended") from None
            if kind == _END:
                return
            if kind == _ERROR:
                raise JobsightError(content.decode("utf-8", "replace"))
            yield _decode_group(content)

    def settle(self, refused: Refusals) -> None:
        try:
            self._channel.send(_SETTLED, _encode(refused))
        except EOFError:
            raise ReaderGone("the process that reads the records has ended") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What was settled is moved before the process sees the end of the channel.
        self._channel.close()
        self._process.join()


def _serve(reader: Reader, channel: Channel, other: Channel) -> None:
    other.close()
    collect_rarely(NEW_OBJECTS)
    out = 0

    def settle() -> None:
        _, content = channel.receive()
        reader.settle(_decode_refusals(content))

    try:
        # The word to begin: several loaders of one site go one after the other.
        channel.receive()
        for group in reader.groups():
            channel.send(_GROUP, _encode(group))
            out += 1
            while out and (out >= _AHEAD or channel.waits()):
                settle()
                out -= 1
        for _ in range(out):
            settle()
        channel.send(_END)
    except EOFError:
        # The writer has gone; the files that it did not settle stay where they are.
        return
    except KeyboardInterrupt:
        return
    except OSError as error:
        _complain(channel, f"{error.filename or 'the records'}: {error.strerror}")
    except Exception as error:
        _complain(channel, str(error) or type(error).__name__)


def _complain(channel: Channel, sentence: str) -> None:
    try:
        channel.send(_ERROR, sentence.encode("utf-8", "backslashreplace"))
    except EOFError:
        pass


class Channel:
    """One end. :class:`EOFError` where the other has gone, whatever it was asked for."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two ends that belong together."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(one), cls(other)

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send one message: a byte that says what it is, and its content."""
        descriptor = os.memfd_create("message")
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            try:
                socket.send_fds(self._socket, [kind], [descriptor])
            except (BrokenPipeError, ConnectionResetError):
                raise EOFError from None

    def receive(self) -> tuple[bytes, bytes]:
        """The next message; waits for it."""
        try:
            kind, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        except ConnectionResetError:
            raise EOFError from None
        if not descriptors:
            raise EOFError
        with open(descriptors[0], "rb") as file:
            file.seek(0)
            return kind, file.read()

    def waits(self) -> bool:
        """Whether a message, or the end, is there."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        self._socket.close()
