"""What a test does with a cluster: submit, wait, ask."""

import os
import pwd
import secrets
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bed.errors import BedError

# What sacct may say for good; REQUEUED belongs to an earlier run of the same job.
FINAL_STATES = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
     "PREEMPTED", "TIMEOUT"}
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One array task, one part of a het job, or a plain job, as the controller sees it."""

    job_id: str
    state: str


class Client(ABC):
    """Slurm's commands as methods. Commands run as root unless a user is named."""

    @abstractmethod
    def environment(self) -> dict[str, str]: ...

    @abstractmethod
    def work_folder(self, user: str) -> Path: ...

    @abstractmethod
    def logs(self, lines: int = 12) -> str: ...

    def run(
        self,
        argv: Sequence[str | bytes],
        *,
        user: str | None = None,
        timeout: float = 60.0,
        check: bool = True,
        text_input: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the cluster's environment, as a user in the user's work directory."""
        variables = {**self.environment(), **(environment or {})}
        group = None
        if user is not None:
            entry = pwd.getpwnam(user)
            group = entry.pw_gid
            variables |= {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user}
        try:
            answer = subprocess.run(
                argv,
                env=variables,
                cwd="/" if user is None else self.work_folder(user),
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                input=text_input,
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",
                timeout=timeout,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise BedError(f"{_shown(argv)} took longer than {timeout} s\n{self.logs()}") from error
        if check and answer.returncode != 0:
            raise BedError(
                f"{_shown(argv)} failed with {answer.returncode}: "
                f"{(answer.stderr or answer.stdout).strip()}\n{self.logs()}"
            )
        return answer

    def run_as(
        self, user: str, argv: Sequence[str | bytes], *, timeout: float = 60.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return self.run(argv, user=user, timeout=timeout, check=check)

    def submit(self, user: str, script: str, *options: str | bytes) -> int:
        """sbatch: a text that begins with `#!` is a whole script, any other a command to wrap."""
        whole = script.startswith("#!")
        wrap = [] if whole else ["--wrap", script]
        answer = self.run(
            ["sbatch", "--parsable", *options, *wrap], user=user, text_input=script if whole else ""
        )
        return int(answer.stdout.strip().partition(";")[0])

    def srun(
        self, user: str, *arguments: str | bytes, timeout: float = 60.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return self.run(["srun", *arguments], user=user, timeout=timeout, check=check)

    def scontrol(self, *arguments: str) -> str:
        return self.run(["scontrol", *arguments]).stdout

    def cancel(self, job_id: int | str, *options: str, user: str | None = None) -> None:
        self.run(["scancel", *options, str(job_id)], user=user)

    def requeue(self, job_id: int | str, timeout: float = 60.0) -> None:
        """Put a running job back and let it start again at once, as a new run.

        The controller tells the accounting of a run's begin every five seconds. Of a run that was
        put back before that the accounting keeps a stub, which names root as its user.
        """
        deadline = time.monotonic() + timeout
        while not self._allocations(job_id):
            if time.monotonic() > deadline:
                raise BedError(f"the accounting does not know that job {job_id} runs")
            time.sleep(0.1)
        self.scontrol("requeue", str(job_id))
        self.start_now(job_id, timeout)

    def start_now(self, job_id: int | str, timeout: float = 60.0) -> None:
        """Slurm holds a requeued job back for two minutes (its credential's life): not here.

        The time can be set only once the old run has ended; earlier it is overwritten. slurmd
        compares the second in which it revoked the old credential with the second in which the
        new one was made, and refuses a job that starts again within the same one.
        """
        deadline = time.monotonic() + timeout
        while any(part.state == "COMPLETING" for part in self.queue(job_id)):
            if time.monotonic() > deadline:
                raise BedError(f"the earlier run of job {job_id} does not end\n{self.logs()}")
            time.sleep(0.1)
        time.sleep(1.01 - time.time() % 1)
        self.scontrol("update", f"JobId={job_id}", "StartTime=now")

    def queue(self, job_id: int | str) -> list[Part]:
        """What the controller knows of a job, one entry for each task of an array and each part
        of a het job; nothing when it has forgotten the job or cannot be queried."""
        answer = self.run(
            ["squeue", "--noheader", "--array", "--states=all", f"--jobs={job_id}",
             "--format=%i %T"],
            check=False,
        )  # fmt: skip
        return [Part(*line.split()) for line in answer.stdout.splitlines()]

    def sacct(
        self, job_id: int | str | None, fields: Sequence[str], *options: str
    ) -> list[dict[str, str]]:
        """Rows of the accounting, sizes in bytes and times in seconds since 1970.

        Names of jobs may hold any separator and newlines: the delimiter is random, and a row is
        a number of fields, not a line.
        """
        delimiter = f"\x1f{secrets.token_hex(4)}\x1f"
        scope = ["--allusers"] if job_id is None else [f"--jobs={job_id}"]
        answer = self.run(
            ["sacct", "--parsable", "--noheader", "--noconvert", f"--delimiter={delimiter}",
             f"--format={','.join(fields)}", *scope, *options],
            environment={"SLURM_TIME_FORMAT": "%s"},
        )  # fmt: skip
        values = answer.stdout.split(delimiter)[:-1]
        rows = [values[i : i + len(fields)] for i in range(0, len(values), len(fields))]
        for row in rows[1:]:
            row[0] = row[0].removeprefix("\n")
        return [dict(zip(fields, row, strict=True)) for row in rows]

    def wait(
        self, job_id: int | str, state: str | None = None, timeout: float = 60.0
    ) -> list[dict[str, str]]:
        """Wait until all parts of a job are in a state, or without one at their end.

        The controller is queried first, because the accounting is seconds behind and for a moment
        shows an array as one finished row. A job that ended is waited for in both, so that sacct
        tells the whole truth afterwards. Returns the accounting's rows of the allocations; they
        may still be missing when the state is not a final one.
        """
        deadline = time.monotonic() + timeout
        pause, parts = 0.1, 1
        while True:
            queued = self.queue(job_id)
            parts = max(parts, len(queued))
            states = {part.state for part in queued}
            if states == {state} and state not in FINAL_STATES:
                return self._allocations(job_id)
            if states <= FINAL_STATES:  # ended, forgotten, or the controller is unreachable
                rows = self._allocations(job_id)
                recorded = {row["State"].partition(" ")[0] for row in rows}
                if len(rows) >= parts:
                    ended = recorded <= FINAL_STATES
                    if recorded == {state} or (ended and state is None):
                        return rows
                    if ended:
                        shown = ", ".join(sorted(recorded))
                        raise BedError(f"job {job_id} is {shown}, not {state}\n{self.logs()}")
                states = states or recorded
            if time.monotonic() > deadline:
                raise BedError(
                    f"job {job_id} is still {', '.join(sorted(states)) or 'unknown'}, not "
                    f"{state or 'at its end'}, after {timeout} s\n{self.logs()}"
                )
            time.sleep(pause)
            pause = min(pause * 1.3, 0.5)

    def _allocations(self, job_id: int | str) -> list[dict[str, str]]:
        """Only whole records: of a job that ended within some five seconds the accounting first
        has a stub that names root as its user and no partition."""
        fields = ["JobID", "JobIDRaw", "State", "ExitCode", "NodeList", "Partition"]
        rows = self.sacct(job_id, fields, "--allocations")
        return [row for row in rows if row["Partition"]]

    def output(self, user: str, job_id: int | str) -> str:
        """What a batch job that left `--output` alone has written."""
        path = self.work_folder(user) / f"slurm-{job_id}.out"
        return path.read_text(encoding="utf-8", errors="surrogateescape")


def _shown(argv: Sequence[str | bytes]) -> str:
    return " ".join(os.fsdecode(word) for word in argv)
