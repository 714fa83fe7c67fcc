"""The agent's door on the node: prologs tell it of jobs, and others follow a job through it.

A unix socket that only its owner can open. A client sends one JSON object on a line and gets one
back; ``follow`` keeps the connection and sends batches of that job, each after its length.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from jobsight.agent.collector import Collector
from jobsight.errors import JobsightError
from jobsight.model import Batch, JobInfo
from jobsight.transport.wire import decode, encode
from jobsight.util.locks import LockFile

SOCKET: Final = "agent.sock"
_LENGTH: Final = struct.Struct("!I")
#: A client that does not take what it asked for is let go.
_LARGEST_BACKLOG: Final = 16 * 2**20
_LARGEST_REQUEST: Final = 65536
_MOST_CLIENTS: Final = 64
#: Without a descriptor for a new client, the next attempt is made after this.
_ACCEPT_AGAIN: Final = 1_000_000_000


class Request(msgspec.Struct):
    """What a client may ask for."""

    do: Literal["status", "job", "follow"]
    job_id: int | None = None
    info: JobInfo | None = None
    gpus: list[str] | None = None


class Reply(msgspec.Struct):
    ok: bool
    error: str = ""
    status: dict[str, object] | None = None


_REQUEST: Final = msgspec.json.Decoder(Request)


class _Client:
    """One open connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.waiting = bytearray()
        #: The job whose batches it wants.
        self.job_id: int | None = None
        self.waits_for_room = False

    def send(self, data: bytes) -> bool:
        """Send as much as the other side takes now; False when it is to be let go."""
        self.waiting += data
        try:
            sent = self.connection.send(self.waiting)
            del self.waiting[:sent]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return len(self.waiting) <= _LARGEST_BACKLOG


class Control:
    """The listening side, driven by the collector's loop."""

    def __init__(
        self, directory: Path, collector: Collector, answer: Callable[[Request], Reply]
    ) -> None:
        self.path = directory / SOCKET
        self._collector = collector
        self._answer = answer
        self._clients: dict[int, _Client] = {}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A lock and not a look: two that start at once would both find nobody.
        self._lock = LockFile(directory / "agent.lock", f"an agent at {self.path}")
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._listener.bind(str(self.path))
        except OSError as error:
            self._listener.close()
            self._lock.close()
            raise JobsightError(f"{self.path} cannot be listened at: {error}") from None
        finally:
            os.umask(before)
        self._listener.listen(32)
        self._listener.setblocking(False)
        collector.watch(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:
            # Whoever waits would wake us again and again.
            self._collector.unwatch(self._listener.fileno())
            again = time.monotonic_ns() + _ACCEPT_AGAIN
            self._collector.at(again, self._listen_again)
            return
        if len(self._clients) >= _MOST_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        client = _Client(connection)
        self._clients[connection.fileno()] = client
        self._collector.watch(connection.fileno(), lambda: self._read(client))

    def _listen_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._collector.watch(self._listener.fileno(), self._accept)

    def _send(self, client: _Client, data: bytes) -> bool:
        """False when the client was let go."""
        if not client.send(data):
            self._drop(client)
            return False
        wanted = bool(client.waiting)
        if wanted != client.waits_for_room:
            client.waits_for_room = wanted
            self._collector.watch_room(client.connection.fileno(), wanted=wanted)
        return True

    def _read(self, client: _Client) -> None:
        if client.waiting and not self._send(client, b""):
            return
        try:
            data = client.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.received += data
        if not data or len(client.received) > _LARGEST_REQUEST:
            self._drop(client)
            return
        while b"\n" in client.received:
            line, client.received = client.received.split(b"\n", 1)
            if not self._send(client, msgspec.json.encode(self._reply(client, line)) + b"\n"):
                return

    def _reply(self, client: _Client, line: bytes) -> Reply:
        try:
            request = _REQUEST.decode(line)
        except msgspec.MsgspecError as error:
            return Reply(False, f"not a request: {error}")
        try:
            reply = self._answer(request)
        except Exception as error:
            self._collector.faults.note("a question at the socket", error)
            return Reply(False, "the agent failed at this; its log says why")
        if reply.ok and request.do == "follow":
            client.job_id = request.job_id
        return reply

    def publish(self, batch: Batch) -> None:
        """Give followers the parts of their job."""
        for client in list(self._clients.values()):
            if client.job_id is None:
                continue
            parts = [part for part in batch.parts if part.sighting.job_id == client.job_id]
            if parts:
                data = encode(msgspec.structs.replace(batch, parts=parts))
                self._send(client, _LENGTH.pack(len(data)) + data)

    def _drop(self, client: _Client) -> None:
        self._collector.unwatch(client.connection.fileno())
        self._clients.pop(client.connection.fileno(), None)
        client.connection.close()

    def close(self) -> None:
        for client in list(self._clients.values()):
            client.connection.setblocking(True)
            client.connection.settimeout(1.0)
            with contextlib.suppress(OSError):
                client.connection.sendall(client.waiting)
            self._drop(client)
        self._collector.unwatch(self._listener.fileno())
        self._listener.close()
        self.path.unlink(missing_ok=True)
        self._lock.close()


def send_request(directory: Path, request: Request, timeout: float = 2.0) -> Reply | None:
    """Ask the node's agent something; None where there is none or it does not answer in time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(directory / SOCKET))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            return msgspec.json.decode(connection.makefile("rb").readline(), type=Reply)
        except (OSError, msgspec.MsgspecError):
            return None


class Subscription:
    """The client's side of ``follow``."""

    def __init__(self, directory: Path, job_id: int) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(2.0)
        self._stream = self.connection.makefile("rb")
        try:
            self.connection.connect(str(directory / SOCKET))
            self.connection.sendall(msgspec.json.encode(Request("follow", job_id)) + b"\n")
            reply = msgspec.json.decode(self._stream.readline(), type=Reply)
            if not reply.ok:
                raise JobsightError(reply.error)
        except BaseException:
            self.close()
            raise

    def batches(self) -> Iterator[Batch]:
        """The job's batches as they come, until the agent ends or the job does."""
        self.connection.settimeout(None)
        while True:
            head = self._stream.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return
            yield decode(self._stream.read(_LENGTH.unpack(head)[0]))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self.connection.close()
