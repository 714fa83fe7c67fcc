"""slurmctld."""

import os
import pwd
import subprocess
from collections.abc import Mapping

from tests.bed.daemon import Daemon
from tests.bed.settings import Settings


def prepare(settings: Settings) -> None:
    slurm = pwd.getpwnam("slurm")
    for folder in ("slurmctld", "run", "log"):
        settings.path(folder).mkdir(mode=0o755)
        os.chown(settings.path(folder), slurm.pw_uid, slurm.pw_gid)
    key = settings.path("run", "jwt.key")
    descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, os.urandom(32))
        os.fchown(descriptor, slurm.pw_uid, slurm.pw_gid)  # SlurmUser must own it
    finally:
        os.close(descriptor)


def daemon(settings: Settings, environment: Mapping[str, str]) -> Daemon:
    def ready() -> bool:
        answer = subprocess.run(
            ["scontrol", "ping"],
            env=dict(environment), capture_output=True, text=True, check=False,
        )  # fmt: skip
        return "is UP" in answer.stdout

    return Daemon(
        "slurmctld",
        settings,
        ["slurmctld", "-D"],
        environment,
        ready,
        log=settings.path("log", "slurmctld.log"),
    )
