"""The guest's disk, kernel and initial file system, built from Debian packages and kept."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bed import mounts, packages
from tests.bed.errors import BedError, BedUnavailableError
from tests.bed.steps import Steps

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
SUITE = "bookworm"
DISK_SIZE = "6G"  # sparse; an upgrade of the packages needs twice their size
PYTHON = "3.11"  # of that suite
# Wheels are chosen for the guest's Python, whichever one runs this.
PLATFORMS = ["manylinux2014_x86_64", *[f"manylinux_2_{minor}_x86_64" for minor in range(17, 37)]]
# They would start the system's own Slurm and a login on the console.
MASKED = ["mariadb", "munge", "slurmctld", "slurmd", "slurmdbd", "slurmrestd",
          "serial-getty@ttyS0"]  # fmt: skip


@dataclass(frozen=True)
class Image:
    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "disk.ext4"

    @property
    def kernel(self) -> Path:
        return self.folder / "kernel"

    @property
    def initial(self) -> Path:
        return self.folder / "initial"


def inputs() -> list[Path]:
    own = ["image.py", "init.sh", "guest.service", "guest-packages.txt"]
    return [*[HERE / name for name in own], packages.PACKAGE_LIST]


def key(requirements: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in [*inputs(), *requirements]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def get(cache: Path, requirements: Sequence[Path], steps: Steps) -> Image:
    """The image for these inputs: the one that is there, or a new one, and then only that."""
    cache.mkdir(parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n")  # it lies inside the project
    with _locked(cache):
        image = Image(cache / f"image-{key(requirements)}")
        if image.folder.exists():
            return image
        if os.geteuid() != 0:
            raise BedUnavailableError("only root can build the guest")
        with steps.step("host packages"):
            packages.install(packages.wanted(HERE / "host-packages.txt"))
        building = cache / "building"
        _remove(building)
        building.mkdir()
        try:
            _build(building, requirements, steps)
            # Each is more than a gigabyte; a guest that runs keeps its file open.
            for old in cache.glob("image-*"):
                _remove(old)
            building.rename(image.folder)
        finally:
            _remove(building)
        return image


def _build(folder: Path, requirements: Sequence[Path], steps: Steps) -> None:
    root = folder / "root"
    wanted = packages.wanted(HERE / "guest-packages.txt") + packages.wanted()
    with steps.step("guest: packages"):
        _run("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase",
             "--aptopt=Acquire::Languages \"none\"", f"--include={','.join(wanted)}",
             "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
             "--dpkgopt=path-exclude=/usr/share/locale/*",
             SUITE, str(root), *_sources())  # fmt: skip
    with steps.step("guest: Python packages"):
        options = [f"--platform={platform}" for platform in PLATFORMS]
        for path in requirements:
            options += ["--requirement", str(path)]
        _run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:",
             f"--python-version={PYTHON}", f"--target={root}/opt/python", "--require-hashes",
             *options)  # fmt: skip
    with steps.step("guest: disk"):
        units = root / "etc/systemd/system"
        for name in MASKED:
            (units / f"{name}.service").unlink(missing_ok=True)
            (units / f"{name}.service").symlink_to("/dev/null")
        shutil.copy(HERE / "guest.service", units)
        (units / "multi-user.target.wants").mkdir(exist_ok=True)
        (units / "multi-user.target.wants/guest.service").symlink_to("../guest.service")
        shutil.copy(HERE / "init.sh", root)
        (root / "init.sh").chmod(0o755)
        image = Image(folder)
        shutil.copy(next((root / "boot").glob("vmlinuz-*")), image.kernel)
        shutil.copy(next((root / "boot").glob("initrd.img-*")), image.initial)
        _run("mke2fs", "-q", "-t", "ext4", "-d", str(root), str(image.disk), DISK_SIZE)
        _remove(root)


def _sources() -> list[str]:
    """The machine's own Debian sources where they fit; else those that mmdebstrap knows."""
    release = Path("/etc/os-release").read_text()
    if f"VERSION_CODENAME={SUITE}" not in release.splitlines():
        return []
    files = Path("/etc/apt/sources.list.d").glob("*.sources")
    return [str(path) for path in files if "debian-archive" in path.read_text()]


def _run(*argv: str) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    answer = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, env=environment,
    )  # fmt: skip
    if answer.returncode != 0:
        tail = "\n".join(answer.stdout.splitlines()[-20:])
        raise BedError(f"{argv[0]} failed with {answer.returncode}\n{tail}")


def _remove(folder: Path) -> None:
    if folder.exists():
        mounts.unmount_below(str(folder.resolve()))  # mmdebstrap mounts /proc while it works
        shutil.rmtree(folder)


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Two runs at once must not build in the same directory; the second waits for the first."""
    with open(cache / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
