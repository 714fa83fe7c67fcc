"""slurmrestd on a unix socket."""

import os
import socket
from collections.abc import Mapping

from tests.bed.daemon import Daemon
from tests.bed.settings import Settings
from tests.bed.users import ALICE, find


def prepare(settings: Settings) -> None:
    entry = find(ALICE.user)
    assert entry is not None
    settings.rest_socket.parent.mkdir(mode=0o755)
    os.chown(settings.rest_socket.parent, entry.pw_uid, entry.pw_gid)


def daemon(settings: Settings, environment: Mapping[str, str]) -> Daemon:
    def ready() -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(settings.rest_socket)) == 0

    return Daemon(
        "slurmrestd",
        settings,
        ["slurmrestd", "-a", "rest_auth/local", f"unix:{settings.rest_socket}"],
        environment,
        ready,
        # It refuses to run as root or SlurmUser. Root and this user may ask it, nobody else.
        user=ALICE.user,
    )
