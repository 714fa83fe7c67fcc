"""The cluster as a whole: up, down, and its parts while it runs."""

import os
import pwd
import secrets
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.bed import (
    accounting,
    cgroup,
    controller,
    database,
    guard,
    interrupts,
    mounts,
    munge,
    node,
    packages,
    process,
    register,
    rest,
    users,
)
from tests.bed.client import Client, Part
from tests.bed.configuration import Configuration
from tests.bed.daemon import Daemon
from tests.bed.errors import BedError, BedUnavailableError
from tests.bed.settings import Settings, write_file
from tests.bed.state import State
from tests.bed.steps import Steps

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Cluster(Client):
    """`with Cluster(nodes=3) as cluster:` or `up()` and `down()`; `up` twice is `up` once."""

    def __init__(self, steps: Steps | None = None, **choices: Any) -> None:
        self.settings = Settings(**choices)
        self.steps = steps or Steps()
        self._state = State.load(self.settings.folder)
        self._owned: ExitStack | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    def found(cls, folder: str, steps: Steps | None = None) -> "Cluster | None":
        """The bed whose directory this is, running or not."""
        state = State.load(folder)
        if state is None:
            return None
        cluster = cls(steps, name=state.settings.name, folder=folder)
        cluster.settings = state.settings
        return cluster

    @classmethod
    def unused(cls, prefix: str, steps: Steps | None = None, **choices: Any) -> "Cluster":
        """The first of js<prefix>1, js<prefix>2 ... that nobody owns; a dead owner's is reused."""
        for number in range(1, 100):
            cluster = cls(steps, name=f"js{prefix}{number}", **choices)
            if register.claim_free(cluster.settings.name) and not cluster.running():
                return cluster
        raise BedError(f"a hundred beds js{prefix}N are running already")

    # --- life -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(interrupts.stop_as_interrupt())
            stack.enter_context(register.claimed(self.settings.name))
            self._owned = stack.pop_all()
        try:
            self._up()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with interrupts.held_off():
                self._remove_all()
        finally:
            self._release()

    def _release(self) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            self._guard = None
        if self._owned is not None:
            self._owned.close()
            self._owned = None

    def up(self) -> None:
        _require_root()
        with interrupts.stop_as_interrupt(), register.claimed(self.settings.name):
            self._up()

    def down(self, mark: str | None = None) -> None:
        """Remove it all; with a mark only if it is still that very bed."""
        _require_root()
        with interrupts.held_off(), register.claimed(self.settings.name):
            self._state = State.load(self.settings.folder)
            if mark is not None and (self._state is None or self._state.mark != mark):
                return
            if self._left_over():
                self._remove_all()
            else:
                self.steps.say(f"There is no bed {self.settings.name}.")

    def running(self) -> bool:
        self._state = State.load(self.settings.folder)
        if self._state is None or not self._state.ready:
            return False
        return all(daemon.pid is not None for daemon in self.daemons())

    def _up(self) -> None:
        _require_root()
        if self.running():
            assert self._state is not None
            if self._state.settings != self.settings:
                raise BedError(
                    f"the bed {self.settings.name} is up with other settings; take it down first"
                )
            self.steps.say(f"The bed {self.settings.name} is up already.")
            return
        left_over = self._left_over()  # refuses a directory that is not the bed's: nothing removed
        try:
            if left_over:
                self.steps.say("Something is left of an earlier bed; it is removed first.")
                self._remove_all()
            self._bring_up()
        except BaseException as error:
            logs = self.logs()
            with interrupts.held_off():
                self._remove_all()
            if isinstance(error, BedError) and not isinstance(error, BedUnavailableError):
                raise BedError(f"{error}\n{logs}") from error
            raise

    def _bring_up(self) -> None:
        settings, step = self.settings, self.steps.step
        with step("packages"):
            packages.install(packages.wanted())
            packages.real_daemons()
        version = cgroup.kind(settings.cgroup)
        with step("folder, users"):
            settings.path().mkdir(mode=0o755, parents=True, exist_ok=True)
            self._state = state = State(settings, secrets.token_hex(16), cgroup_version=version)
            state.save()
            with register.locked() as entries:
                state.port_base = entries.add(settings)
                users.create()
            state.save()
            if self._owned is not None:
                self._guard = guard.start(settings.folder, state.mark)
            configuration = self._write_files(state)
        environment = self.environment()
        parts = {daemon.name: daemon for daemon in self.daemons()}
        with step("munge"):
            parts["munged"].start()
        with step("mariadb: new data"):
            database.prepare(configuration, environment)
        with step("mariadb"):
            parts["mariadbd"].start()
        with step("slurmdbd"):
            parts["slurmdbd"].start()
        with step("accounts"):
            accounting.populate(settings, environment)
        with step("slurmctld"):
            parts["slurmctld"].start()
        with step(f"{settings.nodes} slurmd"):
            if version == "v2" and not settings.systemd:
                cgroup.prepare(settings.node_names)
            nodes = [parts[f"slurmd.{name}"] for name in settings.node_names]
            for daemon in nodes:
                daemon.launch()
            for daemon in nodes:
                daemon.wait_ready()
        if settings.rest:
            with step("slurmrestd"):
                parts["slurmrestd"].start()
        state.ready = True
        state.save()
        self.steps.say(f"{'up, in all':<24} {sum(self.steps.seconds.values()):6.2f} s")

    def _write_files(self, state: State) -> Configuration:
        settings = state.settings
        configuration = Configuration(
            settings, state.port_base, state.cgroup_version, secrets.token_hex(16)
        )
        controller.prepare(settings)
        munge.prepare(settings)
        node.prepare(settings)
        settings.path("etc").mkdir(mode=0o755)
        for name, text in configuration.files().items():
            write_file(settings.path("etc", name), text)
        slurm = pwd.getpwnam("slurm")
        write_file(settings.path("etc", "slurmdbd.conf"), configuration.slurmdbd_conf(),
                   0o600, slurm.pw_uid, slurm.pw_gid)  # fmt: skip
        for person in users.PEOPLE:
            entry = pwd.getpwnam(person.user)
            self.work_folder(person.user).mkdir(parents=True)
            os.chown(self.work_folder(person.user), entry.pw_uid, entry.pw_gid)
        if settings.rest:
            rest.prepare(settings)
        return configuration

    # --- removal ----------------------------------------------------------------------------

    def _left_over(self) -> bool:
        with register.locked() as entries:
            entries.check(self.settings)
        folder = self.settings.path()
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise BedError(f"{folder} is not a directory; give another one")
        if folder.exists() and not (folder / "bed.json").exists() and os.listdir(folder):
            raise BedError(f"{folder} was not made by a bed and is not touched; give another one")
        if folder.exists() and folder.stat().st_uid != 0:
            raise BedError(f"{folder} does not belong to root; give another one")
        return folder.exists() or bool(cgroup.tops(self.settings.node_pattern()))

    def _remove_all(self) -> None:
        """Everything of this bed, however far it had come. Nothing is kept, so nothing is queried
        to end in its own time."""
        settings, step, seconds = self.settings, self.steps.step, dict(self.steps.seconds)
        state = self._state or State.load(settings.folder)
        with step("end processes"):
            for pid_file in sorted(settings.path("run").glob("*.pid")):
                process.end_by_file(pid_file)
            cgroup.thaw(settings.node_pattern())
            if state is not None:
                self._end_marked(state.mark)
            cgroup.empty(settings.node_pattern())
            if state is not None:
                self._end_marked(state.mark)
        with step("remove folder, users"):
            mounts.unmount_below(settings.folder)
            if settings.path().exists():
                shutil.rmtree(settings.folder)
            with register.locked() as entries:
                entries.remove(settings)
                if not entries.in_use():
                    users.remove()
        self._state = None
        self.steps.seconds = seconds

    def _end_marked(self, mark: str) -> None:
        ours = process.carries(mark, self.settings.slurm_conf)
        left = process.end([pid for pid in process.all_pids() if ours(pid)], ours)
        if left:
            doing = "; ".join(map(process.describe, left))
            raise BedError(f"these processes do not end: {doing}")

    # --- parts ------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        if self._state is None:
            raise BedError(f"the bed {self.settings.name} is not up")
        return self._state

    @property
    def cgroup_version(self) -> str:
        return self.state.cgroup_version

    @property
    def nodes(self) -> list[str]:
        return self.settings.node_names

    def daemons(self) -> list[Daemon]:
        state, environment = self.state, self.environment()
        settings = state.settings
        configuration = Configuration(settings, state.port_base, state.cgroup_version, "")
        ports = configuration.ports
        parts = [
            munge.daemon(settings, environment),
            database.daemon(settings, ports["mariadb"], environment),
            accounting.daemon(configuration, environment),
            controller.daemon(settings, environment),
            *[
                node.daemon(settings, name, ports[f"slurmd-{number}"], environment)
                for number, name in enumerate(settings.node_names, start=1)
            ],
        ]
        if settings.rest:
            parts.append(rest.daemon(settings, environment))
        return parts

    def daemon(self, name: str) -> Daemon:
        """By name: slurmctld, slurmdbd, mariadbd, munged, slurmrestd or slurmd.<node>."""
        return next(daemon for daemon in self.daemons() if daemon.name == name)

    def stop_controller(self) -> None:
        self.daemon("slurmctld").stop()

    def start_controller(self) -> None:
        self.daemon("slurmctld").start()

    def stop_slurmd(self, name: str) -> None:
        self.daemon(f"slurmd.{name}").stop()

    def start_slurmd(self, name: str) -> None:
        self.daemon(f"slurmd.{name}").start()

    def environment(self) -> dict[str, str]:
        return {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.settings.slurm_conf),
            process.MARK: self.state.mark,
        }

    def queue(self, job_id: int | str) -> list[Part]:
        # squeue would try for half a minute to reach a controller that was stopped.
        return [] if self.daemon("slurmctld").pid is None else super().queue(job_id)

    def work_folder(self, user: str) -> Path:
        return self.settings.path("work", user)

    def cgroup_of(
        self, job_id: int, name: str, hierarchy: str = "memory", timeout: float = 30.0
    ) -> Path:
        """A job's cgroup on a node; the hierarchy matters with v1 only. A job is called running
        some moments before it has one."""
        deadline = time.monotonic() + timeout
        while True:
            found = cgroup.of_job(self.cgroup_version, job_id, name, hierarchy)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise BedError(f"job {job_id} has no cgroup on {name}\n{self.logs()}")
            time.sleep(0.02)

    def logs(self, lines: int = 12) -> str:
        if self._state is None:
            return ""
        return "\n".join(daemon.tail(lines) for daemon in self.daemons())


def _require_root() -> None:
    if os.geteuid() != 0:
        raise BedUnavailableError("the test bed needs root, for cgroups and for the test users")
