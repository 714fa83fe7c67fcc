"""The cores of a job."""

from __future__ import annotations

from typing import Final

from jobsight.agent.cgroups import CgroupFiles
from jobsight.agent.view import JobView

#: The list of what is really given comes first: on v2 the other is often empty.
_NAMES: Final = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
_LIMIT: Final = 65536


def parse_cores(text: bytes) -> tuple[int, ...]:
    """Read a list of the kernel such as ``0-3,8``."""
    cores: set[int] = set()
    for part in text.strip().split(b","):
        if not part.strip():
            continue
        first, _, last = part.partition(b"-")
        low = int(first)
        high = int(last) if last else low
        if not 0 <= low <= high < _LIMIT:
            raise ValueError(f"{text!r} is not a list of cores")
        cores.update(range(low, high + 1))
    return tuple(sorted(cores))


class CoreList:
    """Reads which cores the job's cgroup may use."""

    def __init__(self) -> None:
        self._files: CgroupFiles | None = None

    def read(self, view: JobView) -> tuple[int, ...] | None:
        """None where the job has no cpuset; errors of the reading are the caller's."""
        if view.counters is None:
            return None
        folders = view.counters.folders
        folder = folders.get("cpuset") or folders.get("unified")
        if folder is None:
            return None
        if self._files is None or self._files.folder != folder:
            self.close()
            self._files = CgroupFiles(folder)
        for name in _NAMES:
            try:
                cores = parse_cores(self._files.read(name))
            except FileNotFoundError:
                continue
            if cores:
                return cores
        return None

    def close(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None
