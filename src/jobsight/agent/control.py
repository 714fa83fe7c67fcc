"""The control socket of the agent: prologs announce jobs, clients subscribe to a job's batches.

A Unix socket that only its owner can open. A client sends a JSON object on a line
(:class:`Request`) and receives one (:class:`Reply`). After ``follow`` the connection stays open,
and each batch of that job is sent after its length. :class:`Control` is the side of the agent;
:func:`send_request` and :class:`Subscription` are the sides of a client.
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
from jobsight.model import MAX_JOB_ID, Batch, JobInfo
from jobsight.transport.wire import decode, encode
from jobsight.util.decoding import decode_json, decode_json_as
from jobsight.util.durable import make_private_directory
from jobsight.util.locks import LockFile
from jobsight.util.ownership import check_directory

SOCKET: Final = "agent.sock"
_LENGTH: Final = struct.Struct("!I")
#: A client that does not read what is sent is disconnected at this backlog.
_MAX_BACKLOG: Final = 16 * 2**20
_MAX_REQUEST_SIZE: Final = 65536
_MAX_CLIENTS: Final = 64
#: Delay before accepting again after a failure, such as a lack of descriptors.
_ACCEPT_DELAY: Final = 1_000_000_000


class Request(msgspec.Struct):
    """A request of a client: ``do`` selects the operation."""

    do: Literal["status", "job", "follow"]
    job_id: int | None = None
    info: JobInfo | None = None
    gpus: list[str] | None = None
    #: The nodes of the job as Slurm writes them: n[1-3].
    nodes: str | None = None
    #: The node of the job to follow, where several slurmd share the machine.
    node: str | None = None


class Reply(msgspec.Struct):
    ok: bool
    error: str = ""
    status: dict[str, object] | None = None
    #: What the agent knows of a job that is followed from now on.
    info: JobInfo | None = None
    gpus: tuple[str, ...] | None = None
    #: The node whose parts of the job are sent.
    node: str | None = None


_REQUEST: Final = msgspec.json.Decoder(Request)


class _Client:
    """One open connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.backlog = bytearray()
        #: The job that it has subscribed to.
        self.job_id: int | None = None
        self.node: str | None = None
        self.watches_writable = False

    def send(self, data: bytes) -> bool:
        """Send as much as possible without blocking; False if the client must be disconnected."""
        self.backlog += data
        try:
            sent = self.connection.send(self.backlog)
            del self.backlog[:sent]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return len(self.backlog) <= _MAX_BACKLOG


class Control:
    """The listening side, run by the loop of the collector."""

    def __init__(
        self, directory: Path, collector: Collector, handle: Callable[[Request], Reply]
    ) -> None:
        self.path = directory / SOCKET
        self._collector = collector
        self._handle = handle
        self._clients: dict[int, _Client] = {}
        make_private_directory(directory)
        check_directory(directory, "the run directory")
        # A lock, because two agents that start at the same time would not see each other.
        self._lock = LockFile(directory / "agent.lock", f"an agent at {self.path}")
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._listener.bind(str(self.path))
        except OSError as error:
            self._listener.close()
            self._lock.close()
            raise JobsightError(f"cannot listen on {self.path}: {error}") from None
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
            # The pending connection would wake the loop again and again.
            self._collector.unwatch(self._listener.fileno())
            again = time.monotonic_ns() + _ACCEPT_DELAY
            self._collector.at(again, self._listen_again)
            return
        if len(self._clients) >= _MAX_CLIENTS:
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
        """False if the client was disconnected."""
        if not client.send(data):
            self._drop(client)
            return False
        wanted = bool(client.backlog)
        if wanted != client.watches_writable:
            client.watches_writable = wanted
            self._collector.watch_writable(client.connection.fileno(), wanted=wanted)
        return True

    def _read(self, client: _Client) -> None:
        if client.backlog and not self._send(client, b""):
            return
        try:
            data = client.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.received += data
        if not data or len(client.received) > _MAX_REQUEST_SIZE:
            self._drop(client)
            return
        while b"\n" in client.received:
            line, client.received = client.received.split(b"\n", 1)
            if not self._send(client, msgspec.json.encode(self._reply(client, line)) + b"\n"):
                return

    def _reply(self, client: _Client, line: bytes) -> Reply:
        try:
            request = parse_request(line)
        except msgspec.MsgspecError as error:
            return Reply(False, f"invalid request: {error}")
        problem = _number_out_of_range(request)
        if problem:
            return Reply(False, f"invalid request: {problem}")
        try:
            reply = self._handle(request)
        except Exception as error:
            self._collector.report_error("a request on the control socket", error)
            return Reply(False, "internal error of the agent, see its log")
        if reply.ok and request.do == "follow":
            client.job_id, client.node = request.job_id, reply.node
        return reply

    def publish(self, batch: Batch) -> None:
        """Send the parts and the identity of each job to its subscribers."""
        for client in list(self._clients.values()):
            if client.job_id is None:
                continue
            followed = (client.job_id, client.node)
            parts = [
                part
                for part in batch.parts
                if (part.sighting.job_id, part.sighting.node) == followed
            ]
            infos = [info for info in batch.jobs if info.job_id == client.job_id]
            if parts or infos:
                own = msgspec.structs.replace(batch, parts=parts, jobs=infos, node_series=None)
                data = encode(own)
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
                client.connection.sendall(client.backlog)
            self._drop(client)
        self._collector.unwatch(self._listener.fileno())
        self._listener.close()
        self.path.unlink(missing_ok=True)
        self._lock.close()


def parse_request(line: bytes) -> Request:
    """A request of a client; raises msgspec.MsgspecError."""
    return decode_json(_REQUEST, line)


def _number_out_of_range(request: Request) -> str:
    """What is wrong with the numbers of a request; "" if a batch can carry all of them."""
    for job_id in (request.job_id, request.info.job_id if request.info else None):
        if job_id is not None and not 0 <= job_id <= MAX_JOB_ID:
            return f"the job id {job_id} is not between 0 and {MAX_JOB_ID}"
    if request.info is not None:
        fields = msgspec.structs.asdict(request.info)
        for name, value in [*fields.items(), *(request.info.tres or {}).items()]:
            if isinstance(value, int) and abs(value) >= 2**63:
                return f"{name} is {value}, which does not fit in 64 bits"
    return ""


def send_request(directory: Path, request: Request, timeout: float = 2.0) -> Reply | None:
    """Send a request to the agent of this node; None if there is none or it does not reply."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(directory / SOCKET))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            return decode_json_as(Reply, connection.makefile("rb").readline())
        except (OSError, msgspec.MsgspecError):
            return None


class Subscription:
    """A client's subscription to the batches of one job."""

    def __init__(self, directory: Path, job_id: int, node: str | None = None) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(2.0)
        self._stream = self.connection.makefile("rb")
        try:
            self.connection.connect(str(directory / SOCKET))
            request = Request("follow", job_id, node=node)
            self.connection.sendall(msgspec.json.encode(request) + b"\n")
            #: The agent's reply, with what it knows of the job.
            self.reply = decode_json_as(Reply, self._stream.readline())
            if not self.reply.ok:
                raise JobsightError(self.reply.error)
        except BaseException:
            self.close()
            raise

    def batches(self) -> Iterator[Batch]:
        """The batches of the job, until the job or the agent ends."""
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
