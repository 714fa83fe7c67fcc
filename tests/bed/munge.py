"""munged with a key and a socket of its own."""

import os
import pwd
import subprocess
from collections.abc import Mapping

from tests.bed.daemon import Daemon
from tests.bed.settings import Settings


def prepare(settings: Settings) -> None:
    munge = pwd.getpwnam("munge")
    folder = settings.path("munge")
    folder.mkdir(mode=0o755)
    os.chown(folder, munge.pw_uid, munge.pw_gid)
    key = folder / "key"
    descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    try:
        os.write(descriptor, os.urandom(128))
        os.fchown(descriptor, munge.pw_uid, munge.pw_gid)
    finally:
        os.close(descriptor)


def daemon(settings: Settings, environment: Mapping[str, str]) -> Daemon:
    folder = settings.path("munge")

    def ready() -> bool:
        if not settings.munge_socket.exists():
            return False
        command = ["munge", "--no-input", f"--socket={settings.munge_socket}"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    return Daemon(
        "munged",
        settings,
        ["munged", "--foreground", f"--socket={settings.munge_socket}",
         f"--key-file={folder}/key", f"--seed-file={folder}/seed",
         f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log"],
        environment,
        ready,
        user="munge",
        log=folder / "munged.log",
    )  # fmt: skip
