"""What a bed could leave on a machine, looked at without the bed's own bookkeeping."""

import os
from pathlib import Path

from tests.bed import Settings, cgroup, process, register
from tests.bed.users import PEOPLE, find


def processes(settings: Settings) -> list[str]:
    """Processes that name the bed's directory or nodes in their command line or environment."""
    words = (os.fsencode(settings.folder), f"{settings.name}-".encode())
    found = []
    for pid in process.all_pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        own = pid == os.getpid() or process.start_time(pid) is None
        if not own and any(word in command or word in environment for word in words):
            found.append(f"{pid} {command!r}")
    return found


def mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {" ".join(line.split()[2:5]) for line in lines}


def users() -> list[str]:
    """Test users nobody needs any more."""
    with register.locked() as entries:
        if entries.in_use():
            return []
        return [person.user for person in PEOPLE if find(person.user) is not None]


def of(settings: Settings) -> list[str]:
    """All of it, as text for an assertion against an empty list."""
    found = processes(settings) + users()
    found += [str(path) for path in cgroup.tops(settings.node_pattern())]
    found += [mount for mount in mounts() if settings.folder in mount]
    if Path(settings.folder).exists():
        found.append(settings.folder)
    with register.locked() as entries:
        found += [name for name in entries.entries if name == settings.name]
    return found
