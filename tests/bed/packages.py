"""The Debian packages of the bed: which are missing, and how they are installed."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bed.errors import BedUnavailableError

PACKAGE_LIST = Path(__file__).with_name("apt-packages.txt")
POLICY = Path("/usr/sbin/policy-rc.d")
# Another apt-get may be running, as on a machine that has just been started.
APT_OPTIONS = ["-o", "DPkg::Lock::Timeout=300"]


def wanted(package_list: Path = PACKAGE_LIST) -> list[str]:
    lines = package_list.read_text().splitlines()
    return [name for line in lines if (name := line.partition("#")[0].strip())]


def missing(packages: list[str]) -> list[str]:
    if shutil.which("dpkg-query") is None:
        return packages
    answer = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages],
        capture_output=True,
        text=True,
        check=False,  # fails as soon as one package is unknown, and still names the others
    )
    installed = {
        line.split()[0] for line in answer.stdout.splitlines() if line.endswith(" installed")
    }
    return [package for package in packages if package not in installed]


@contextmanager
def no_daemons_started() -> Iterator[None]:
    """The bed runs private daemons; a package must not start the system's own."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def install(packages: list[str]) -> None:
    """Install those of the packages that are missing."""
    lacking = missing(packages)
    if not lacking:
        return
    if shutil.which("apt-get") is None:
        raise BedUnavailableError(
            f"these Debian packages are missing and there is no apt-get here: {' '.join(lacking)}"
        )
    if os.geteuid() != 0:
        raise BedUnavailableError(
            f"only root can install these Debian packages: {' '.join(lacking)}"
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}

    def apt(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["apt-get", "-q", "--yes", *APT_OPTIONS, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    with no_daemons_started():
        apt("update")  # a failure shows in the install, if what is known does not suffice
        answer = apt("install", "--no-install-recommends", *lacking)
    if answer.returncode != 0:
        tail = "\n".join(answer.stdout.splitlines()[-8:])
        raise BedUnavailableError(
            f"apt-get could not install the packages of the test bed ({' '.join(lacking)}).\n{tail}"
        )


def real_daemons() -> None:
    """Take the alternatives back from slurm-wlm-emulator, whose daemons run no job."""
    for daemon in ("slurmctld", "slurmd"):
        if "emulator" in os.path.realpath(f"/usr/sbin/{daemon}"):
            subprocess.run(
                ["update-alternatives", "--quiet", "--set", daemon, f"/usr/sbin/{daemon}-wlm"],
                check=True,
            )
