"""Messages between two processes, of any size, that wait for the other in memory and not in a pipe.

A pipe takes some ten kilobytes, and who sends more waits until the other reads. Here the bytes lie
in a file in memory of which only the descriptor is sent, so a sender goes on at once; how many
messages may wait is for the two to agree on.
"""

from __future__ import annotations

import os
import select
import socket


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
