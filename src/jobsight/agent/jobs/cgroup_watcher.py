"""Finds the jobs of Slurm on this node by their cgroups, on cgroup v1 and v2.

:class:`CgroupWatcher` lists them. Nothing is polled: :class:`Inotify` reports when a cgroup is
created or removed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from jobsight.agent.probes.cgroup_files import cgroups_below
from jobsight.agent.probes.slurm_cgroup import V1_CONTROLLERS

#: v1: "slurm", or "slurm_<node>" if several slurmd run on one machine.
DEFAULT_V1_ROOTS: Final = (r"slurm(?:_(?P<node>.+))?",)
#: v2: "slurmstepd.scope", or "<node>_slurmstepd.scope".
DEFAULT_SCOPES: Final = (r"(?:(?P<node>.+)_)?slurmstepd\.scope",)
#: job_<id>, or from Slurm 26.05 on a SLUID: "s" and 13 base-32 characters.
_JOB: Final = re.compile(r"job_(?P<id>\d+)|(?P<sluid>s[0-9A-HJKMNP-TV-Z]{13})", re.IGNORECASE)
_USER: Final = re.compile(r"uid_(?P<uid>\d+)")
_STEP: Final = "step_"
_TITLE: Final = re.compile(rb"slurmstepd: \[(\d+)\.")
#: The hierarchies in which v1 jobs are searched, in this order.
_DISCOVERY: Final = ("cpuacct", "memory", "freezer", "cpuset")


class JobCgroup(NamedTuple):
    """The cgroup of a job on this node, in one or several hierarchies."""

    #: The path below the mount point of a hierarchy.
    key: str
    directory: Path
    #: By controller, of those that exist; they differ from those of an earlier job of this name.
    inodes: dict[str, int]
    #: None for a SLUID until its job id is known.
    job_id: int | None
    sluid: str | None
    #: The node name in the path, if several slurmd share the machine.
    node: str | None
    uid: int | None
    directories: dict[str, Path]


class CgroupWatcher:
    """Lists the jobs on the node; its descriptor is readable when the list may have changed."""

    def __init__(
        self,
        mount: Path = Path("/sys/fs/cgroup"),
        *,
        v1_roots: Iterable[str] = DEFAULT_V1_ROOTS,
        scopes: Iterable[str] = DEFAULT_SCOPES,
        proc: Path = Path("/proc"),
    ) -> None:
        self.mount = mount
        self._v1_roots = [re.compile(pattern) for pattern in v1_roots]
        self._scopes = [re.compile(pattern) for pattern in scopes]
        self._proc = proc
        self._outer = {mount / name for name in (*_DISCOVERY, "system.slice")}
        self._inotify = Inotify()
        self._owners: dict[str, tuple[dict[str, int], int]] = {}
        self._created_steps: set[tuple[Path, str]] = set()

    @property
    def blind(self) -> bool:
        """Whether some directories could not be watched, so that the list must be polled."""
        return self._inotify.refused

    def fileno(self) -> int:
        return self._inotify.fileno()

    def changed(self) -> bool:
        """Read all events; True if any of them may concern a job."""
        relevant = [event for event in self._inotify.read() if self._is_relevant(event)]
        for event in relevant:
            if event.kind == CREATED and event.name.startswith(_STEP):
                self._created_steps.add((event.directory, event.name.removeprefix(_STEP)))
        return bool(relevant)

    def pop_created_steps(self) -> list[tuple[Path, str]]:
        """Directory of the job and name of each step that was created since the last call. It may
        have been removed again before the steps were listed."""
        created, self._created_steps = self._created_steps, set()
        return list(created)

    def _is_relevant(self, event: DirectoryEvent) -> bool:
        """Cgroups of services are created next to those of Slurm and are ignored."""
        if event.kind == OVERFLOWED or event.directory not in self._outer:
            return True
        if event.name == "system.slice" or event.directory == self.mount:
            return True
        patterns = [*self._v1_roots, *self._scopes]
        return _match(patterns, event.name) is not None

    def jobs(self) -> list[JobCgroup]:
        """All jobs now. Their cgroups are watched from now on."""
        # A watch that was refused is requested again: others may have been released.
        self._inotify.refused = False
        jobs = [*self._find_v2(), *self._find_v1()]
        keys = {job.key for job in jobs}
        self._owners = {key: owner for key, owner in self._owners.items() if key in keys}
        return jobs

    def _entries(self, directory: Path) -> list[os.DirEntry[str]]:
        """The subdirectories; watched before they are listed, so that none is missed."""
        try:
            if not self._inotify.watch(directory):
                return []
            with os.scandir(directory) as entries:
                return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
                return []
            raise

    def _find_v2(self) -> Iterator[JobCgroup]:
        # On a hybrid machine v2 is mounted below and has no controllers; the jobs are on v1.
        if not (self.mount / "cgroup.controllers").exists():
            return
        for parent in (self.mount / "system.slice", self.mount):
            for entry in self._entries(parent):
                node = _match(self._scopes, entry.name)
                if node is None:
                    continue
                for job in self._entries(Path(entry.path)):
                    key = f"{entry.name}/{job.name}"
                    directories = {"unified": Path(job.path)}
                    yield from self._job(job, key, node["node"], None, directories)

    def _find_v1(self) -> Iterator[JobCgroup]:
        seen: set[str] = set()
        for controller in _DISCOVERY:
            for root in self._entries(self.mount / controller):
                node = _match(self._v1_roots, root.name)
                if node is None:
                    continue
                for user in self._entries(Path(root.path)):
                    uid = _USER.fullmatch(user.name)
                    if uid is None:
                        continue
                    for job in self._entries(Path(user.path)):
                        key = f"{root.name}/{user.name}/{job.name}"
                        if key in seen:
                            continue
                        seen.add(key)
                        directories = {other: self.mount / other / key for other in V1_CONTROLLERS}
                        yield from self._job(job, key, node["node"], int(uid["uid"]), directories)

    def _job(
        self,
        entry: os.DirEntry[str],
        key: str,
        node: str | None,
        uid: int | None,
        directories: dict[str, Path],
    ) -> Iterator[JobCgroup]:
        match = _JOB.fullmatch(entry.name)
        if match is None:
            return
        self._watch_steps(directories)
        job_id = int(match["id"]) if match["id"] else self._id_from_title(Path(entry.path))
        inodes = inodes_of(directories)
        sluid = match["sluid"].upper() if match["sluid"] else None
        if uid is None:
            uid = self._owner(key, inodes, Path(entry.path))
        if inodes:
            yield JobCgroup(key, Path(entry.path), inodes, job_id, sluid, node, uid, directories)

    def _watch_steps(self, directories: dict[str, Path]) -> None:
        for controller in ("unified", "cpuacct", "memory"):
            if controller in directories:
                for step in self._entries(directories[controller]):
                    if step.name.startswith(_STEP):
                        self._inotify.watch(Path(step.path))

    def _owner(self, key: str, inodes: dict[str, int], directory: Path) -> int | None:
        """The user of a v2 job, which is not part of its path: the uid of its tasks. Root is
        skipped, because a set-user-ID program may run as root."""
        before = self._owners.get(key)
        if before is not None and before[0] == inodes:
            return before[1]
        for pid in _processes(directory, "user"):
            try:
                uid = (self._proc / pid).stat().st_uid
            except OSError:
                continue
            if uid:
                self._owners[key] = (inodes, uid)
                return uid
        return None

    def _id_from_title(self, directory: Path) -> int | None:
        """The job id of a SLUID, from the process title of its slurmstepd."""
        for pid in _processes(directory, "slurm"):
            try:
                title = (self._proc / pid / "cmdline").read_bytes()
            except OSError:
                continue
            match = _TITLE.match(title)
            if match is not None:
                return int(match[1])
        return None

    def close(self) -> None:
        self._inotify.close()


def _processes(job: Path, below: str) -> Iterator[str]:
    """The PIDs in that part ("user" or "slurm") of every step. A cgroup may vanish any time."""
    for path in cgroups_below(job):
        if Path(path).relative_to(job).parts[1:2] == (below,):
            try:
                yield from Path(path, "cgroup.procs").read_text().split()
            except OSError:
                continue


def inodes_of(directories: dict[str, Path]) -> dict[str, int]:
    """The inode of each directory that exists, by controller."""
    inodes: dict[str, int] = {}
    for controller, directory in directories.items():
        try:
            inodes[controller] = directory.stat().st_ino
        except OSError:
            continue
    return inodes


def _match(patterns: list[re.Pattern[str]], name: str) -> dict[str, str | None] | None:
    for pattern in patterns:
        match = pattern.fullmatch(name)
        if match is not None:
            return {"node": match.groupdict().get("node")}
    return None


CREATED: Final = 0x00000100
DELETED: Final = 0x00000200
DELETED_SELF: Final = 0x00000400
OVERFLOWED: Final = 0x00004000
_IGNORED: Final = 0x00008000
_FOLDERS_ONLY: Final = 0x01000000
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC

_EVENT: Final = struct.Struct("=iIII")


class DirectoryEvent(NamedTuple):
    kind: int
    directory: Path
    name: str


class Inotify:
    """Reports subdirectories that are created or removed in watched directories.

    Only the watch of its parent reports the removal of a cgroup. The kernel neither sends
    DELETE_SELF for it nor ends its watch, and a stale watch would hide its successor.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._library.inotify_init1(_NONBLOCK_CLOEXEC)
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"inotify: {os.strerror(number)}")
        self._directories: dict[int, Path] = {}
        self._watches: dict[Path, int] = {}
        #: The kernel refused a watch because of a limit.
        self.refused = False

    def fileno(self) -> int:
        return int(self._descriptor)

    def watch(self, directory: Path) -> bool:
        """Start watching; False if the directory is gone."""
        if directory in self._watches:
            return True
        mask = CREATED | DELETED | DELETED_SELF | _FOLDERS_ONLY
        watch = self._library.inotify_add_watch(
            self._descriptor, os.fsencode(directory), ctypes.c_uint32(mask)
        )
        if watch < 0:
            number = ctypes.get_errno()
            if number in (errno.ENOENT, errno.ENOTDIR):
                return False
            if number in (errno.ENOSPC, errno.ENOMEM):
                self.refused = True
                return True
            raise OSError(number, os.strerror(number), str(directory))
        self._directories[watch] = directory
        self._watches[directory] = watch
        return True

    def __len__(self) -> int:
        return len(self._watches)

    def read(self) -> Iterator[DirectoryEvent]:
        """The events since the last call."""
        while True:
            try:
                data = os.read(self._descriptor, 65536)
            except BlockingIOError:
                return
            position = 0
            while position < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, position)
                start = position + _EVENT.size
                name = data[start : start + length].rstrip(b"\0")
                position = start + length
                if mask & OVERFLOWED:
                    # A removal may be among the lost events: all watches are set again.
                    for directory in list(self._watches):
                        self._forget(directory)
                    # Their IN_IGNORED events may be lost as well.
                    self._directories.clear()
                    yield DirectoryEvent(OVERFLOWED, Path(), "")
                elif mask & _IGNORED:
                    self._directories.pop(watch, None)
                elif watch in self._directories:
                    kind = mask & (CREATED | DELETED | DELETED_SELF)
                    event = DirectoryEvent(kind, self._directories[watch], os.fsdecode(name))
                    if kind == DELETED:
                        self._forget(event.directory / event.name)
                    elif kind == DELETED_SELF:
                        self._forget(event.directory)
                    yield event

    def _forget(self, directory: Path) -> None:
        """End the watch of a removed directory; the kernel sends IN_IGNORED for it."""
        watch = self._watches.pop(directory, None)
        if watch is not None:
            self._library.inotify_rm_watch(self._descriptor, watch)

    def close(self) -> None:
        os.close(self._descriptor)
