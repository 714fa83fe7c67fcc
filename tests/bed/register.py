"""Which beds this machine has: their names, directories and ports, so that two never collide."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.bed.errors import BedError
from tests.bed.settings import Settings, write_file

# Not below /run or /tmp: after a reboot the test users must still be known as the bed's own.
HOME = Path("/var/lib/jobsight-bed")
PORT_STRIDE = 100
LAST_PORT_BASE = 31000  # above lie the ports that the kernel gives to clients


class Register:
    """Entries by cluster name; open it only with `locked()`, one process at a time."""

    def __init__(self, home: Path) -> None:
        self.file = home / "clusters.json"
        try:
            self.entries: dict[str, dict[str, str | int]] = json.loads(self.file.read_text())
        except FileNotFoundError:
            self.entries = {}

    def check(self, settings: Settings) -> None:
        """Two beds of one name would remove each other's cgroups."""
        other = str(self.entries.get(settings.name, {}).get("folder", settings.folder))
        if other != settings.folder and Path(other).exists():
            raise BedError(
                f"the name {settings.name} is taken by the bed in {other}; "
                f"choose another name or take that one down"
            )

    def add(self, settings: Settings) -> int:
        """Take the name and a range of ports for this bed; returns the first port."""
        self.check(settings)
        others = [entry for name, entry in self.entries.items() if name != settings.name]
        taken = {entry["port_base"] for entry in others}
        base = settings.port_base
        while base in taken or not ports_free(base, settings.nodes):
            base += PORT_STRIDE
            if base > LAST_PORT_BASE:
                raise BedError(f"no free ports were found from {settings.port_base} on")
        self.entries[settings.name] = {"folder": settings.folder, "port_base": base}
        self._save()
        return base

    def remove(self, settings: Settings) -> None:
        entry = self.entries.get(settings.name)
        if entry is not None and entry["folder"] == settings.folder:
            del self.entries[settings.name]
            self._save()

    def in_use(self) -> bool:
        """Whether any bed is left; one whose directory was removed by hand is not."""
        return any(Path(str(entry["folder"])).exists() for entry in self.entries.values())

    def _save(self) -> None:
        if self.entries:
            write_file(self.file, json.dumps(self.entries, indent=2))
        else:
            self.file.unlink(missing_ok=True)


@contextmanager
def locked(home: Path = HOME) -> Iterator[Register]:
    """The register, for one process at a time and only for a moment."""
    with lock_file(home / "lock", seconds=60):
        yield Register(home)


@contextmanager
def claimed(name: str, seconds: float = 60, home: Path = HOME) -> Iterator[None]:
    """Hold a bed's name while it is brought up, taken down, or owned by one process."""
    with lock_file(home / f"{name}.claim", seconds):
        yield


def claim_free(name: str, home: Path = HOME) -> bool:
    try:
        with claimed(name, 0, home):
            return True
    except BedError:
        return False


@contextmanager
def lock_file(path: Path, seconds: float) -> Iterator[None]:
    """A lock that the kernel releases when its holder ends; its file is removed."""
    descriptor = _lock(path, time.monotonic() + seconds)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # another lock or the list of clusters is in it
            path.parent.rmdir()
        os.close(descriptor)


def _lock(path: Path, deadline: float) -> int:
    """A file that its last holder removed while we waited for it is opened again."""
    while True:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise BedError(f"{path.stem} is in the hands of another process") from None
            time.sleep(0.1)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def port_numbers(base: int, nodes: int) -> dict[str, int]:
    ports = {"slurmctld": base, "slurmdbd": base + 1, "mariadb": base + 2}
    return ports | {f"slurmd-{number}": base + 10 + number for number in range(1, nodes + 1)}


def ports_free(base: int, nodes: int) -> bool:
    for port in port_numbers(base, nodes).values():
        with socket.socket() as probe:
            # As the daemons do it: a connection that was closed a moment ago is no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                probe.listen()
            except OSError:
                return False
    return True
