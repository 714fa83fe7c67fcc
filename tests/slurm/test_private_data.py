"""A Slurm with PrivateData: what an ordinary user sees, and what docs/privacy.md says to type."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jobsight.scheduler.private_data import hidden_from
from jobsight.scheduler.sources.commands import stream_command
from tests.bed import Cluster
from tests.slurm.jobs import Gate
from tests.waiting import wait_until

ALICE = "jobsight-alice"
#: A user of the machine whom Slurm does not know, as that of a server.
SERVER = "daemon"
DOCUMENT = Path(__file__).parents[2] / "docs" / "privacy.md"


@pytest.fixture(scope="module")
def private(slurm_packages: None) -> Iterator[Cluster]:
    with Cluster.unused("d", nodes=1, extra=("PrivateData=jobs,usage",)) as bed:
        yield bed


def commands_of_the_document(user: str) -> list[str]:
    """Its lines about Slurm, for a user that exists."""
    text = DOCUMENT.read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    wanted = [line for line in lines if line.startswith(("sacctmgr", "runuser"))]
    assert len(wanted) == 3
    return [line.replace("jobsight", user) for line in wanted]


@pytest.mark.long
def test_jobs_of_others_are_hidden_until_the_user_is_an_operator(private: Cluster) -> None:
    environment = private.environment()
    run = functools.partial(stream_command, environment=environment)

    def typed(command: str | Sequence[str]) -> str:
        answer = subprocess.run(
            command, shell=isinstance(command, str), env=environment, cwd="/",
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert answer.returncode == 0, f"{command}: {answer.stdout}{answer.stderr}"
        return answer.stdout

    with Gate(private.settings.path()) as gate:
        job = private.submit(ALICE, f"#!/bin/sh\n{gate.line}\n")
        private.wait(job, "RUNNING", timeout=120)
        add, show, look = commands_of_the_document(SERVER)
        assert str(job) not in typed(look)
        assert hidden_from(SERVER, run, 30) == ("jobs", "usage")
        assert hidden_from("root", run, 30) == hidden_from("slurm", run, 30) == ()
        typed(add)
        assert "operator" in typed(show).lower()
        wait_until(lambda: str(job) in typed(look), 60)
        assert hidden_from(SERVER, run, 30) == ()
