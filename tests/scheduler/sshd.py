"""A real sshd of our own on loopback, with keys made for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jobsight.config.settings import SshSettings
from tests.ports import free_port

#: sshd gives up its rights inside of this directory and insists on it.
_SEPARATION = Path("/run/sshd")


class Unavailable(Exception):
    """No sshd can be run here."""


@contextmanager
def running(folder: Path, environment: Mapping[str, str]) -> Iterator[SshSettings]:
    """An sshd that lets this user in by a key; the variables are set for what it runs."""
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    if program is None or os.geteuid() != 0:
        raise Unavailable("an sshd needs root and Debian's package openssh-server")
    user = pwd.getpwuid(os.geteuid()).pw_name
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name],
            check=True, timeout=60,
        )  # fmt: skip
    port = free_port()
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    variables = " ".join(f'"{name}={value}"' for name, value in environment.items())
    (folder / "config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host\n"
        f"AuthorizedKeysFile {folder}/authorized\nPidFile none\nStrictModes no\nUsePAM no\n"
        "MaxStartups 100\n"
        f"PermitRootLogin prohibit-password\nPasswordAuthentication no\nSetEnv {variables}\n"
    )
    kind, key, *_ = (folder / "host.pub").read_text().split()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    with _separation(), (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "-D", "-e", "-f", folder / "config"], stdin=subprocess.DEVNULL, stderr=log
        )
        try:
            _wait_for(port, process, folder / "log")
            yield SshSettings(
                host="127.0.0.1",
                user=user,
                port=port,
                key_file=str(folder / "user"),
                known_hosts=str(folder / "known"),
            )
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def _separation() -> Iterator[None]:
    """The directory that sshd insists on; ours goes when the last of those who need it is done."""
    ours = _SEPARATION / ".made-for-tests"
    while True:
        if not _SEPARATION.exists():
            with contextlib.suppress(FileExistsError):
                _SEPARATION.mkdir(mode=0o755)
                ours.touch()
        try:
            descriptor = os.open(_SEPARATION, os.O_RDONLY)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        # Another may have removed it before the lock was ours.
        if os.fstat(descriptor).st_nlink and _SEPARATION.exists():
            break
        os.close(descriptor)
    try:
        yield
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if ours.exists():
                ours.unlink()
                _SEPARATION.rmdir()
    finally:
        os.close(descriptor)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + 60
    while time.monotonic() < ends and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError(f"sshd did not start: {log.read_text()}")
