"""A real server and a real agent under attack, with honest data next to the hostile ones.

``python -m tests.hostile.soak`` (``make soak``) draws attacks of tests/hostile/attacks/ at random
for half an hour; with ``--attack`` all of them run at the same time for ten minutes. Server and
agent have the memory limits of their systemd units. What must hold is in :class:`Verdict`: faults
fail everywhere, missed goals (the speed of pages, the growth of memory, a short step that a busy
machine hid and whose coverage says so) fail only here and not in the tests, which run on machines
of any speed.

The parts: :class:`Service` is a process in a cgroup of its own, :class:`Attacker` starts programs
as node, visitor or user, :class:`Reader` opens pages, :mod:`tests.hostile.honest` has the truth,
and :class:`Soak` puts them together.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from jobsight.agent.control import Request, send_request
from jobsight.agent.launch.cgroup import OwnCgroup, create_cgroup
from jobsight.errors import JobsightError
from jobsight.model import SECOND, JobInfo, RunReference
from jobsight.store.store import Store
from jobsight.store.tokens import Tokens
from jobsight.text import parse_size
from jobsight.transport.delivery import HttpTarget
from jobsight.transport.running_server import load_token
from tests.agent.slurm_trees import SlurmJob, SlurmNode, available
from tests.hostile.attacks.batches import SCHEDULED_JOB
from tests.hostile.attacks.namespaces import FORGED
from tests.hostile.honest import HonestCluster, HonestJobs, differences
from tests.ports import free_port
from tests.store import postgresql
from tests.waiting import wait_until

PROJECT = Path(__file__).parent.parent.parent
UNITS = PROJECT / "deploy" / "systemd"
#: The hostile cluster, which the node of the agent belongs to, and the honest one.
HOSTILE, HONEST = "alpha", "beta"
#: The user of the hostile jobs: one that no machine has.
MALLORY = 6666
AGENT_MEMORY = 64 * 2**20
LOG_LIMIT = 10 * 10**6
PAGE_GOAL = 1.0
#: Seconds without an answer of the agent's control socket after which the agent is silent: a prolog
#: would not wait as long.
CONTROL_SILENCE = 60.0
#: What a hostile run costs may be refused; everything else is what people need under attack.
_REFUSABLE = "hostile run"
#: How much larger the last quarter's median may be than the second quarter's.
GROWTH_GOAL = 0.25
#: Seconds that honest work may take after the attack before it counts as stopped: as long as the
#: attack at most, however slow the machine is.
TIMEOUT = 1800.0
#: The job ids of attacks are above this.
_FIRST_ATTACK = 90_000
_PROCESSES_OF_A_JOB = 2000
_MEMORY_OF_A_JOB = 2 * 2**30

_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+.*$", re.MULTILINE)

_SETTINGS = """
cluster = "{cluster}"
[store]
location = "{location}"
[software]
interval = 5.0
[server]
port = {port}
token_file = "{token_file}"
{server}
[agent]
node = "n1"
spool = "{directory}/spool"
run_directory = "{directory}/run"
cgroup_roots = ['{root}']
query_slurm = false
send_interval = 2.0
[agent.metrics]
listen = "127.0.0.1:{metrics}"
"""


@dataclass
class Verdict:
    """What a soak has found."""

    #: Crashes, lost or wrong figures, tracebacks, limits that were exceeded.
    faults: list[str] = field(default_factory=list)
    #: Figures of speed and growth that were not reached.
    missed: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)

    def show(self) -> None:
        for name, value in self.figures.items():
            print(f"| {name} | {value} |")
        for fault in self.faults:
            print(f"FAULT: {fault}")
        for goal in self.missed:
            print(f"missed: {goal}")


class Service:
    """A process in a cgroup with the memory limit of its unit, and its log."""

    def __init__(self, name: str, unit: str, directory: Path, command: list[str]) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.limit = _memory_limit(UNITS / unit)
        self._command = [sys.executable, "-m", "jobsight.cli.main", *command]
        made = create_cgroup(f"jobsight-soak{name}-{os.getpid()}")
        if made is None or not made.limit_memory(self.limit):
            raise SystemExit("jobsight: the soak needs a cgroup with a memory controller")
        self._cgroup: OwnCgroup = made
        self.process: subprocess.Popen[bytes] | None = None
        #: Resident size in bytes, once a second.
        self.sizes: list[int] = []

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=PROJECT,
                # Of the whole environment the service needs nothing.
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT / "src")},
                preexec_fn=self._cgroup.enter,
                # As a service of systemd, so that the kernel shares the CPUs among services and
                # not among all processes of the attacks.
                start_new_session=True,
            )

    def problem(self) -> str:
        """Why the service is not as it should be; empty if it is."""
        assert self.process is not None
        ended = self.process.poll()
        if ended is not None:
            return f"the {self.name} ended with {ended} (OOM kills: {self.oom_kills()})"
        if self.oom_kills():
            return f"the {self.name} was killed for memory"
        return ""

    def oom_kills(self) -> int:
        return self._cgroup.cgroup.memory_peaks().oom_kills or 0

    def measure(self) -> None:
        with suppress(OSError, StopIteration):
            self.sizes.append(self._status("VmRSS"))

    def cpu_seconds(self) -> float:
        """Over all starts: where this is little, figures of speed say nothing of the service."""
        used = self._cgroup.cgroup.cpu()
        return used.time / SECOND if used is not None else 0.0

    def _status(self, name: str) -> int:
        assert self.process is not None
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

    def stop(self, timeout: float = 120.0) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._cgroup.kill_leftovers()
        self._cgroup.remove()


def _memory_limit(unit: Path) -> int:
    match = re.search(r"^MemoryMax=(\S+)$", unit.read_text(), re.MULTILINE)
    assert match is not None, f"{unit} has no MemoryMax"
    return parse_size(match[1], str(unit))


class Reader:
    """Opens pages as a person would, and keeps how long they took."""

    def __init__(self, port: int, token: str, random: Random) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {token}"}
        self._random = random
        #: Seconds of each request, by its kind.
        self.seconds: dict[str, list[float]] = {}
        self.statuses: Counter[str] = Counter()
        #: What a server must never answer, with the path.
        self.errors: list[str] = []

    def get(self, path: str, kind: str | None = None) -> tuple[int, bytes]:
        start = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", path, headers=self._headers)
            reply = connection.getresponse()
            status, body = reply.status, reply.read()
        except (OSError, http.client.HTTPException) as error:
            status, body = 0, repr(error).encode()
        finally:
            connection.close()
        if kind:
            self.statuses[f"{kind}: {status}"] += 1
            # A refusal is fast, and no page.
            if status == 200:
                self.seconds.setdefault(kind, []).append(time.monotonic() - start)
        if _is_fault(kind, status):
            self.errors.append(f"GET {path} answered {status}: {body[:200]!r}")
        return status, body

    def json(self, path: str) -> dict[str, Any] | None:
        status, body = self.get(path)
        return dict(json.loads(body)) if status == 200 else None

    def browse(self) -> None:
        """One round through the pages, and one read of some hostile run."""
        self.get("/", "list")
        self.get(f"/jobs?search=honest&cluster={HONEST}", "list")
        self.get("/api/v1/jobs?user=alice", "list")
        for cluster, kind in ((HONEST, "honest run"), (HOSTILE, "hostile run")):
            user = "alice" if cluster == HONEST else "mallory"
            listed = self.json(f"/api/v1/jobs?user={user}&limit=50") or {"jobs": []}
            if listed["jobs"]:
                run = urllib.parse.quote(self._random.choice(listed["jobs"])["run"], safe=":")
                self.get(f"/jobs/{run}", kind)
                self.get(f"/api/v1/jobs/{run}/series", kind)
        self.get(f"/api/v1/usage?cluster={HONEST}", "usage")
        self.get("/api/v1/software", "usage")
        self.get("/api/v1/health", "health")
        self.get("/metrics", "health")


def _is_fault(kind: str | None, status: int) -> bool:
    """Whether a server must never answer a request of this kind so."""
    if kind == _REFUSABLE:
        # 503 and 413 say why in one sentence; anything else from 500 on is a fault.
        return status in (0, 500) or status > 503
    if kind is None:
        # Of a run that is not stored yet.
        return status not in (200, 404)
    return status != 200


class Silence:
    """How long something has not answered."""

    def __init__(self, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest = longest
        self._clock = clock
        self._since: float | None = None

    def note(self, *, answered: bool) -> bool:
        """Record an attempt; True if it was silent for too long by then."""
        if answered:
            self._since = None
            return False
        now = self._clock()
        if self._since is None:
            self._since = now
        return now - self._since > self._longest


def namespace_faults(store: Store, jobs: Iterable[int], counts: Counter[str]) -> list[str]:
    """What is wrong with the paths of namespaces: each is in the job that made it, and marked."""
    if not counts["forged"]:
        return [f"the attack namespaces proves nothing: {dict(counts)}"]
    faults = []
    marked = 0
    for job in jobs:
        try:
            run = store.find(RunReference(job, HOSTILE))
        except JobsightError:
            continue
        for row in store.executables(run.id):
            if os.fsdecode(row.use.path) in FORGED:
                marked += row.use.own_namespace
                if not row.use.own_namespace:
                    faults.append(f"{HOSTILE}:{job} has {row.use.path!r} without a mark")
    if not marked:
        faults.append("no path of a namespace was kept with its mark in the job that made it")
    return faults


class _Attack(NamedTuple):
    """The options of a program, and the user whose job it is; None on a machine of its own."""

    options: list[str]
    job_of: int | None = None


class _Started(NamedTuple):
    """A program that runs, with the job that it is in."""

    name: str
    process: subprocess.Popen[bytes]
    job: SlurmJob | None


class Attacker:
    """Starts the programs of tests/hostile/attacks/, and collects what they report."""

    def __init__(
        self, directory: Path, port: int, metrics: int, token_file: Path, node: SlurmNode
    ) -> None:
        self._directory = directory
        self._node = node
        self._jobs = 0
        #: The ids of the jobs of each attack.
        self.jobs: dict[str, list[int]] = {}
        self._running: list[_Started] = []
        self.counts: dict[str, Counter[str]] = {}
        # A user cannot read the project where it is root's alone, so the user's programs are
        # copied; they need the standard library only.
        self._public = directory / "public"
        shutil.copytree(PROJECT / "tests/hostile/attacks", self._public / "tests/hostile/attacks")
        server = ["--port", str(port)]
        as_node = [*server, "--source", "127.0.0.66", "--token-file", str(token_file)]
        as_visitor = [*server, "--source", "127.0.0.77"]
        here = ["--directory", "."]
        to_agent = ["--port", str(metrics), "--source", "127.0.0.88"]
        self.attacks = {
            "batches": _Attack([*as_node]),
            "uploads": _Attack(as_node),
            "connections": _Attack(as_visitor),
            "requests": _Attack(as_visitor),
            "storm": _Attack(here, job_of=MALLORY),
            "names": _Attack(here, job_of=MALLORY),
            "namespaces": _Attack([], job_of=MALLORY),
            "scrapes": _Attack(to_agent, job_of=MALLORY),
            # Mounting needs root; its programs are the user's.
            "stalled": _Attack([*here, "--user", str(MALLORY)], job_of=0),
        }

    def start(self, name: str, seed: int, seconds: float) -> None:
        chosen = self.attacks[name]
        module = f"tests.hostile.attacks.{name}"
        bounds = ["--seed", str(seed), "--seconds", str(round(seconds, 1))]
        if chosen.job_of is not None:
            command = ["-m", module, *chosen.options, *bounds]
            started = _Started(name, *self._job(command, chosen.job_of))
            self.jobs.setdefault(name, []).append(_FIRST_ATTACK + self._jobs)
            self._running.append(started)
            return
        process = subprocess.Popen(
            # Elsewhere it would take no CPU time of the server.
            ["nice", "-n", "10", sys.executable, "-m", module, *chosen.options, *bounds],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._running.append(_Started(name, process, None))

    def _job(self, program: list[str], user: int) -> tuple[subprocess.Popen[bytes], SlurmJob]:
        """A job of a user, with the limits that Slurm would set."""
        self._jobs += 1
        place = self._directory / f"mallory{self._jobs}"
        place.mkdir()
        os.chown(place, MALLORY, MALLORY)
        program = [str(place) if word == "." else word for word in program]
        job = self._node.job(_FIRST_ATTACK + self._jobs, uid=user)
        memory = job.directory("memory")
        memory.mkdir(parents=True)
        (memory / "memory.limit_in_bytes").write_text(str(_MEMORY_OF_A_JOB))
        step = job.step(
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"),
            *("prlimit", f"--nproc={_PROCESSES_OF_A_JOB}"),
            *("/usr/bin/python3", *program),
            cwd=self._public,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return step, job

    def running(self) -> list[str]:
        """The names of what runs; what has ended is collected."""
        for started in [started for started in self._running if started.process.poll() is not None]:
            self._running.remove(started)
            self._collect(started)
        return [started.name for started in self._running]

    def _collect(self, started: _Started) -> None:
        output = started.process.communicate(timeout=60)[0].decode(errors="replace")
        if started.job is not None:
            started.job.end()
        counts = self.counts.setdefault(started.name, Counter())
        try:
            counts.update(json.loads(output.strip().splitlines()[-1]))
        except (IndexError, ValueError):
            # An attack that fails proves nothing.
            counts["failed"] += 1
            print(f"the attack {started.name} failed: {output[-2000:]}", file=sys.stderr)

    def stop(self) -> None:
        """Ask all to end, and collect what they report."""
        for started in self._running:
            if started.job is None:
                started.process.send_signal(signal.SIGTERM)
            else:
                # The program is a child of the job's daemon.
                started.job.signal("0", signal.SIGTERM)
        deadline = time.monotonic() + 60
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.1)
        for started in self._running:
            started.process.kill()
            started.process.wait()
            if started.job is not None:
                started.job.end()
        self._running.clear()


@dataclass
class Plan:
    """How long, and what."""

    seconds: float = 30 * 60
    seed: int = 1
    #: All attacks at the same time instead of some at random.
    together: bool = False
    #: Names of attacks; all if empty.
    attacks: tuple[str, ...] = ()
    #: Kinds of hostile batches; all if empty.
    kinds: tuple[str, ...] = ()
    nodes: int = 8
    #: The store is on a PostgreSQL of its own instead of SQLite.
    postgresql: bool = False
    keep: Path | None = None


class Soak:
    """One run: starts everything, lets time pass, and compares the store with the truth."""

    def __init__(self, plan: Plan, directory: Path, stack: ExitStack) -> None:
        self._plan = plan
        self._random = Random(plan.seed)
        self._directory = directory
        self._stack = stack
        self.verdict = Verdict()
        self._stopping = threading.Event()
        self._node = SlurmNode()
        stack.callback(self._node.close)
        self._port, self._metrics = free_port(), free_port()
        self._scrapes: Counter[str] = Counter()
        self._control: list[float] = []
        self._silence = Silence(CONTROL_SILENCE)
        #: Load averages of the machine.
        self._loads: list[float] = []
        self._stored: dict[int, int] = {}
        self._location = str(directory / "server" / "store.db")
        if plan.postgresql:
            self._location = stack.enter_context(postgresql.running()).new_database()
        tokens = self._prepare_store()
        self._start_services(tokens)
        self._reader = Reader(self._port, load_token(tokens["server"]), Random(plan.seed + 1))
        # Its requests are not figures.
        self._questions = Reader(self._port, load_token(tokens["server"]), Random(plan.seed))
        target = HttpTarget(self._url, tokens[HONEST], timeout=30)
        self._cluster = HonestCluster(
            HONEST, plan.nodes, directory / "honest", target, plan.seed + 2
        )
        stack.callback(self._cluster.close)
        self._jobs = HonestJobs(self._node, plan.seed + 3)
        wait_until(lambda: self._status().get("processes"), 120)
        self._attacker = Attacker(directory, self._port, self._metrics, tokens[HOSTILE], self._node)
        for kind in plan.kinds:
            self._attacker.attacks["batches"].options.extend(("--kind", kind))

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _prepare_store(self) -> dict[str, Path]:
        """Tokens, and what the scheduler has reported of one job of the hostile cluster."""
        private = self._directory / "server"
        private.mkdir(mode=0o700)
        (self._directory / "honest").mkdir(mode=0o700)
        files = {"server": private / "token"}
        load_token(files["server"])
        with Store.open(self._location) as store:
            for cluster in (HOSTILE, HONEST):
                files[cluster] = private / f"{cluster}.token"
                files[cluster].touch(mode=0o600)
                files[cluster].write_text(Tokens(store.database).add(cluster, "", None)[1])
            now = time.time_ns() // SECOND * SECOND
            self._scheduled = RunReference(SCHEDULED_JOB, HOSTILE, now - 60 * SECOND)
            record = JobInfo(
                cluster=HOSTILE,
                job_id=SCHEDULED_JOB,
                source="slurmdbd",
                user="alice",
                account="proj-a",
                start=now - 60 * SECOND,
                end=now,
                state="COMPLETED",
            )
            store.record_jobs([record])
        return files

    def _start_services(self, tokens: dict[str, Path]) -> None:
        self._server = self._service("server", "jobsight-server.service", "serve", tokens["server"])
        self._server.start()
        wait_until(self._answers, 120)
        self._agent = self._service("agent", "jobsight-agent.service", "agent", tokens[HOSTILE])
        self._agent.start()
        wait_until(self._agent_answers, 120)
        self._running = [self._server, self._agent]

    def _service(self, name: str, unit: str, command: str, token_file: Path) -> Service:
        settings = self._directory / f"{name}.toml"
        settings.write_text(
            _SETTINGS.format(
                cluster=HOSTILE,
                directory=self._directory,
                location=self._location,
                port=self._port,
                token_file=token_file,
                # The server announces itself; an agent on another machine is given its address.
                server=f'url = "{self._url}"' if name == "agent" else "",
                root=self._node.root,
                metrics=self._metrics,
            )
        )
        service = Service(name, unit, self._directory, [command, "--config", str(settings)])
        self._stack.callback(service.close)
        return service

    def _answers(self) -> bool:
        problem = self._server.problem()
        assert not problem, f"{problem}: {self._server.log.read_text()[-2000:]}"
        return answers(self._port)

    def _agent_answers(self) -> bool:
        problem = self._agent.problem()
        assert not problem, f"{problem}: {self._agent.log.read_text()[-2000:]}"
        start = time.monotonic()
        status = self._status()
        self._control.append(time.monotonic() - start)
        return bool(status)

    def _observe_agent(self) -> None:
        if self._silence.note(answered=self._agent_answers()):
            self._fault(f"the agent's control socket was silent for {CONTROL_SILENCE:g} s")

    def _status(self) -> dict[str, object]:
        """What the agent says of itself; empty if it does not answer."""
        try:
            reply = send_request(self._directory / "run", Request("status"))
        except (OSError, ValueError, JobsightError):
            return {}
        return (reply.status or {}) if reply is not None else {}

    def run(self) -> Verdict:
        threads = [
            threading.Thread(target=self._repeat, args=(self._cluster.work, 1.0), daemon=True),
            threading.Thread(target=self._repeat, args=(self._reader.browse, 1.0), daemon=True),
            threading.Thread(target=self._repeat, args=(self._scrape, 5.0), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            self._attack()
            self._attacker.stop()
            self._settle()
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join(120)
        if not self._has_crashed():
            self._check_restart()
        self._check_logs()
        self._check_truth()
        self._write_figures()
        return self.verdict

    def _repeat(self, work: Callable[[], None], interval: float) -> None:
        while not self._stopping.wait(interval):
            try:
                work()
            except Exception as error:
                self.verdict.faults.append(f"{getattr(work, '__qualname__', work)}: {error!r}")
                return

    def _attack(self) -> None:
        begin = time.monotonic()
        reported = 0.0
        while (left := self._plan.seconds - (time.monotonic() - begin)) > 0:
            if self._has_crashed():
                return
            self._start_attacks(left)
            self._observe()
            if time.monotonic() - reported >= 30:
                reported = time.monotonic()
                self._tell(left)
            time.sleep(1)

    def _start_attacks(self, left: float) -> None:
        running = self._attacker.running()
        names = self._plan.attacks or tuple(self._attacker.attacks)
        if self._plan.together:
            for name in names:
                if name not in running:
                    self._attacker.start(name, self._random.getrandbits(32), left)
            return
        while len(running) < min(3, len(names)):
            name = self._random.choice([name for name in names if name not in running])
            seconds = min(left, self._random.uniform(20, 90))
            self._attacker.start(name, self._random.getrandbits(32), seconds)
            running.append(name)

    def _observe(self) -> None:
        for service in (self._server, self._agent):
            service.measure()
            if service.log.stat().st_size > LOG_LIMIT:
                self._fault(f"the log of the {service.name} is larger than {LOG_LIMIT} bytes")
        self._observe_agent()
        for truth in self._jobs.truths[-1:]:
            report = self._questions.json(f"/api/v1/jobs/{HOSTILE}:{truth.job_id}") or {}
            seconds = (report.get("cpu") or {}).get("cpu_seconds") or 0
            self._stored[truth.job_id] = round(seconds * SECOND)
        self._jobs.advance(self._stored)

    def _fault(self, text: str) -> None:
        if text not in self.verdict.faults:
            self.verdict.faults.append(text)

    def _tell(self, left: float) -> None:
        sizes = ", ".join(
            f"{service.name} {(service.sizes or [0])[-1] >> 20} MiB"
            for service in (self._server, self._agent)
        )
        self._loads.append(os.getloadavg()[0])
        print(
            f"{left:5.0f} s left; {sizes}; {self._cluster.pending()} honest batches pending; "
            f"load {os.getloadavg()[0]:.1f}; {', '.join(self._attacker.running())}",
            flush=True,
        )

    def _scrape(self) -> None:
        """What Prometheus does."""
        connection = http.client.HTTPConnection("127.0.0.1", self._metrics, timeout=10)
        try:
            connection.request("GET", "/metrics")
            reply = connection.getresponse()
            reply.read()
            self._scrapes[str(reply.status)] += 1
        except (OSError, http.client.HTTPException) as error:
            self._scrapes[type(error).__name__] += 1
        finally:
            connection.close()

    def _has_crashed(self) -> bool:
        problems = [service.problem() for service in self._running]
        for problem in filter(None, problems):
            self._fault(problem)
        return any(problems)

    def _settle(self) -> None:
        """Wait until all that was honest is stored and summed."""
        if self._has_crashed():
            return
        self._wait("the jobs on the attacked node have ended", self._jobs_ended)
        self._stopping.set()
        self._cluster.finish()
        self._wait("all honest batches are stored", lambda: self._cluster.pending() == 0)
        self._wait("they are in the rollups", self._is_summed)

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        begin = time.monotonic()
        while not condition():
            if self._has_crashed() or time.monotonic() > begin + TIMEOUT:
                self._fault(f"{what}: not within {TIMEOUT:g} s")
                return
            time.sleep(1)
        self.verdict.figures[f"seconds until {what}"] = f"{time.monotonic() - begin:.0f}"

    def _jobs_ended(self) -> bool:
        if not self._jobs.idle:
            self._observe()
        return self._jobs.idle

    def _is_summed(self) -> bool:
        usage = self._questions.json(f"/api/v1/usage?by=cluster&cluster={HONEST}")
        if usage is None:
            return False
        truth = list(self._cluster.truths())
        hours = sum(run.cpu_time for run in truth) / SECOND / 3600
        rows = usage["rows"]
        return (
            usage["pending_runs"] == 0
            and sum(row["jobs"] for row in rows) == len(truth)
            and abs(sum(row["cpu_hours"] for row in rows) - hours) < 1e-6 * max(1, hours)
        )

    def _check_restart(self) -> None:
        """A poison that only a new start meets."""
        for service in list(self._running):
            self._running.remove(service)
            status = service.stop()
            if status:
                self._fault(f"the {service.name} ended with {status} on SIGTERM")
        self._server.start()
        self._running.append(self._server)
        self._wait("the restarted server answers", lambda: answers(self._port))
        self._wait("its rollups have all honest batches", self._is_summed)
        self._server.measure()
        if self._server.stop():
            self._fault("the restarted server did not end on SIGTERM")

    def _check_logs(self) -> None:
        for service in (self._server, self._agent):
            text = service.log.read_text(errors="replace")
            self.verdict.figures[f"log of the {service.name}"] = f"{len(text):,} bytes"
            for trace, count in Counter(_TRACEBACK.findall(text)).most_common(5):
                self._fault(
                    f"{count} times in the log of the {service.name}: {trace[:200]} ... "
                    f"{trace[-1500:]}"
                )

    def _check_truth(self) -> None:
        for refusal in self._cluster.refusals():
            self._fault(f"honest batches were refused: {refusal}")
        for error in dict.fromkeys(self._reader.errors + self._questions.errors):
            self._fault(error)
        for name, counts in self._attacker.counts.items():
            for what, count in counts.items():
                if what == "500" or what.endswith(": 500") or what == "failed":
                    self._fault(f"the attack {name}: {count} x {what}")
        if "200" not in self._scrapes:
            self._fault(f"no scrape of the agent succeeded: {dict(self._scrapes)}")
        wrong = 0
        with Store.open(self._location) as store:
            runs = [(HONEST, truth) for truth in self._cluster.truths()]
            runs += [(HOSTILE, truth) for truth in self._jobs.truths]
            for cluster, truth in runs:
                found = differences(store, cluster, truth)
                wrong += bool(found.faults)
                self.verdict.faults += found.faults if wrong <= 20 else []
                self.verdict.missed += found.incomplete
            if "namespaces" in self._attacker.counts:
                counts = self._attacker.counts["namespaces"]
                for fault in namespace_faults(store, self._attacker.jobs["namespaces"], counts):
                    self._fault(fault)
            # A node may report another run of the same job, as of one that was requeued.
            info = store.find(self._scheduled).info
        if (info.user, info.account, info.state) != ("alice", "proj-a", "COMPLETED"):
            self._fault(f"a node has changed the record of the scheduler: {info}")
        self.verdict.figures["honest runs of the other cluster"] = str(
            len(runs) - len(self._jobs.truths)
        )
        self.verdict.figures["honest jobs on the node"] = str(len(self._jobs.truths))
        self.verdict.figures["of these wrong"] = str(wrong)

    def _write_figures(self) -> None:
        figures, missed = self.verdict.figures, self.verdict.missed
        for kind, seconds in sorted(self._reader.seconds.items()):
            ordered = sorted(seconds)
            median, late = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
            figures[f"seconds of {kind}: median, 99 %, longest, requests"] = (
                f"{median:.3f}, {late:.3f}, {ordered[-1]:.3f}, {len(ordered)}"
            )
            # What a hostile run costs to show is a figure; who opens it knows whose it is.
            if late > PAGE_GOAL and kind != "hostile run":
                missed.append(f"{kind}: 99 % of the replies within {late:.2f} s, not {PAGE_GOAL} s")
        figures["replies"] = ", ".join(
            f"{k} x {v}" for k, v in sorted(self._reader.statuses.items())
        )
        control = sorted(self._control)
        figures["seconds of the agent's control socket: median, longest"] = (
            f"{control[len(control) // 2]:.3f}, {control[-1]:.3f}"
        )
        figures["load average: least, median, most"] = (
            f"{min(self._loads):.1f}, {statistics.median(self._loads):.1f}, {max(self._loads):.1f}"
        )
        figures["scrapes of the agent"] = str(dict(self._scrapes))
        for service, limit in ((self._server, self._server.limit), (self._agent, AGENT_MEMORY)):
            sizes = service.sizes or [0]
            if max(sizes) > limit:
                self._fault(f"the {service.name} had {max(sizes) >> 20} MiB of {limit >> 20} MiB")
            quarter = max(1, len(sizes) // 4)
            medians = [
                statistics.median(sizes[index * quarter : (index + 1) * quarter] or sizes)
                for index in range(4)
            ]
            before, after = medians[1], medians[3]
            figures[f"MiB of the {service.name}: median of each quarter, most"] = ", ".join(
                f"{size / 2**20:.0f}" for size in (*medians, max(sizes))
            )
            figures[f"CPU seconds of the {service.name}"] = f"{service.cpu_seconds():.0f}"
            if after > before * (1 + GROWTH_GOAL) + 8 * 2**20:
                missed.append(f"the memory of the {service.name} grew from {before} to {after}")
        if not self._plan.postgresql:
            figures["bytes of the store"] = f"{Path(self._location).stat().st_size:,}"
        for name, counts in sorted(self._attacker.counts.items()):
            figures[f"attack {name}"] = ", ".join(f"{k} x {v}" for k, v in sorted(counts.items()))


def answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """A directory that the hostile user may pass through, but not read."""
    if keep is not None:
        keep.mkdir(mode=0o711)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="jobsight-soak-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def soak(plan: Plan) -> Verdict:
    with _directory(plan.keep) as directory, ExitStack() as stack:
        return Soak(plan, directory, stack).run()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, help="default: 30, or 10 with --attack")
    parser.add_argument("--seed", type=int, help="default: another one in every run; it is printed")
    parser.add_argument("--attack", action="store_true", help="all attacks at the same time")
    parser.add_argument("--postgresql", action="store_true", help="a store on PostgreSQL")
    parser.add_argument("--only", action="append", default=[], help="name of an attack")
    parser.add_argument("--kind", action="append", default=[], help="kind of batches")
    parser.add_argument("--keep", type=Path, help="keep logs and store in this new directory")
    options = parser.parse_args(arguments)
    if not available():
        raise SystemExit("jobsight: make soak needs root and the hierarchies of cgroup v1")
    seed = options.seed if options.seed is not None else Random().getrandbits(32)
    minutes = options.minutes or (10 if options.attack else 30)
    print(f"soak of {minutes:g} minutes, seed {seed}", flush=True)
    plan = Plan(
        seconds=minutes * 60,
        seed=seed,
        together=options.attack,
        attacks=tuple(options.only),
        kinds=tuple(options.kind),
        postgresql=options.postgresql,
        keep=options.keep,
    )
    # The cgroups, jobs and processes are removed in any case.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    verdict = soak(plan)
    verdict.show()
    print(f"seed {seed}: {len(verdict.faults)} faults, {len(verdict.missed)} missed goals")
    return 1 if verdict.faults or verdict.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
