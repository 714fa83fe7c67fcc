"""``sams.listener.Prometheus``: a Unix socket that serves the latest values of a job."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.templates import Exposition, ExpositionOptions
from jobsight.config import paths
from jobsight.errors import JobsightError

logger = logging.getLogger(__name__)

#: Seconds in which a client must read the text.
_CLIENT_TIMEOUT: Final = 2.0
#: The kernel's limit on the path of a Unix socket, without the terminating zero.
_MAX_PATH: Final = 107


class ListenerError(JobsightError):
    """The socket cannot be opened."""


def default_socket_directory() -> str:
    """A directory below the run directory that only its owner can enter."""
    return str(paths.run_directory() / "listeners")


class ListenerOptions(ExpositionOptions, kw_only=True):
    socketdir: str = msgspec.field(default_factory=default_socket_directory)


class PrometheusListener:
    """Sends the exposition text to each client and closes the connection, without HTTP."""

    Options: ClassVar[type[msgspec.Struct]] = ListenerOptions

    def __init__(
        self, options: ListenerOptions, view: JobView, name: str = "sams.listener.Prometheus"
    ) -> None:
        self.name = name
        self._exposition = Exposition(options)
        self._text = b""
        self._socket = JobSocket(
            Path(options.socketdir), name, view.sighting.job_id, lambda: self._text
        )
        self.path = self._socket.path
        self._socket.start()

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        if self._exposition.update(view, sampler, document):
            # Replacing a reference is atomic, so the serving thread needs no lock.
            self._text = self._exposition.text().encode()

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()


class JobSocket:
    """The Unix socket of one job: each client gets the current content."""

    def __init__(
        self, directory: Path, name: str, job_id: int, content: Callable[[], bytes]
    ) -> None:
        self.path = private_socket_directory(directory) / f"{name}_{job_id}.socket"
        self._content = content
        self._socket = _listen(self.path)
        self._inode = self.path.stat().st_ino
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"{name} socket", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopped.is_set():
            try:
                client, _ = self._socket.accept()
            except OSError as error:
                if self._stopped.is_set() or error.errno in (errno.EBADF, errno.EINVAL):
                    return
                # For example out of descriptors; wait instead of spinning.
                self._stopped.wait(1.0)
                continue
            with client:
                client.settimeout(_CLIENT_TIMEOUT)
                try:
                    client.sendall(self._content())
                except OSError:
                    # The client has disconnected or does not read.
                    pass
                except Exception:
                    # The content may come from a module of the site.
                    logger.exception("%s: no content for a client", self.path)

    def close(self) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        try:
            # The name may belong to another process by now.
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            pass
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        if self._thread.is_alive():
            self._thread.join(_CLIENT_TIMEOUT + 1)
        self._socket.close()


def private_socket_directory(directory: Path) -> Path:
    """Create the directory, or check that no other user can write to it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(directory)
    except OSError as error:
        raise ListenerError(f"socketdir {directory} cannot be created: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise ListenerError(f"socketdir {directory} is not a directory")
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ListenerError(
            f"socketdir {directory} belongs to user {status.st_uid} or is writable by others; "
            "expected a directory of this user, mode 0755 or less"
        )
    return directory


def _listen(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _MAX_PATH:
        raise ListenerError(f"the path of the socket {path} is longer than {_MAX_PATH} bytes")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        _remove_stale(path)
        # Before bind, so that the name never exists with wider permissions.
        os.fchmod(server.fileno(), 0o600)
        server.bind(str(path))
        server.listen(5)
    except OSError as error:
        server.close()
        raise ListenerError(f"the socket {path} cannot be opened: {error.strerror}") from None
    except ListenerError:
        server.close()
        raise
    return server


def _remove_stale(path: Path) -> None:
    """Remove the socket of a crashed collector; one that answers is in use."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_CLIENT_TIMEOUT)
        try:
            client.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ListenerError(f"the socket {path} is in use by another collector")
