"""``sams.listener.Prometheus``: a unix socket that gives a job's newest figures to who connects."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.exposition import Exposition, ExpositionOptions
from jobsight.config import paths
from jobsight.errors import JobsightError

#: Seconds that a client may take to read; the next one waits so long at most.
_PATIENCE: Final = 2.0
#: The kernel's limit on the path of a unix socket, without the closing zero.
_LONGEST: Final = 107


class ListenerError(JobsightError):
    """The socket cannot be offered; the text says why."""


class ListenerOptions(ExpositionOptions, kw_only=True):
    #: By default a folder of our own below the run folder, which only its owner can enter.
    socketdir: str = msgspec.field(default_factory=lambda: str(paths.run_directory() / "listeners"))


class PrometheusListener:
    """Each client gets the exposition text and is hung up on: no HTTP, no questions."""

    Options: ClassVar[type[msgspec.Struct]] = ListenerOptions

    def __init__(
        self, options: ListenerOptions, view: JobView, name: str = "sams.listener.Prometheus"
    ) -> None:
        self.name = name
        self._exposition = Exposition(options)
        self._text = b""
        folder = private_socket_directory(Path(options.socketdir))
        self.path = folder / f"{name}_{view.sighting.job_id}.socket"
        self._socket = _bound(self.path)
        self._inode = self.path.stat().st_ino
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"{name} socket", daemon=True)
        self._thread.start()

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        if self._exposition.update(view, sampler, document):
            # One reference is replaced by another, so the serving thread needs no lock.
            self._text = self._exposition.text().encode()

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        self.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._socket.accept()
            except OSError as error:
                if self._ended.is_set() or error.errno in (errno.EBADF, errno.EINVAL):
                    return
                # Out of descriptors, say; a pause keeps this from spinning.
                self._ended.wait(1.0)
                continue
            with client:
                client.settimeout(_PATIENCE)
                try:
                    client.sendall(self._text)
                except OSError:
                    # The client's loss: it went away, or did not read.
                    pass

    def close(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        try:
            # The name may be another's by now.
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            pass
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._thread.join(_PATIENCE + 1)
        self._socket.close()


def private_socket_directory(folder: Path) -> Path:
    """Make the folder, or make sure that nobody else could have laid something into it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = os.lstat(folder)
    except OSError as error:
        raise ListenerError(f"socketdir {folder} cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(there.st_mode):
        raise ListenerError(f"socketdir {folder} is not a folder")
    if there.st_uid != os.geteuid() or there.st_mode & 0o022:
        raise ListenerError(
            f"socketdir {folder} belongs to user {there.st_uid} or can be written by others; "
            "right: a folder of this user's own, mode 0755 or less"
        )
    return folder


def _bound(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _LONGEST:
        raise ListenerError(f"the path of the socket {path} is longer than {_LONGEST} bytes")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        _make_way(path)
        # Before bind: the name then never exists with wider rights.
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


def _make_way(path: Path) -> None:
    """Remove what a crash left; a socket that answers is another collector's."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_PATIENCE)
        try:
            client.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ListenerError(f"the socket {path} is in use by another collector")
