"""The plugin's hooks, compiled with Slurm's headers and the sanitizers, called as Slurm does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.bed import BedUnavailableError
from tests.plugin.conftest import Compiled, compiled
from tests.plugin.gateways import agent, gateway
from tests.slurm.profiled import REPOSITORY, build

__all__ = ["compiled"]

TASK, NONE, ALL, NOT_SET = "4", "1", "0xffffffff", "0"


@pytest.fixture(scope="module")
def host(slurm_packages: None, compiled: Compiled) -> Path:
    try:
        build()
    except BedUnavailableError as error:
        pytest.skip(f"the plugin cannot be built here: {error}")
    version = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True)
    headers = REPOSITORY / ".cache" / f"slurm-headers-{version.stdout.split()[-1]}"
    return compiled(
        "host", "-fsanitize=address,undefined", slurm=(headers / "build", headers / "source")
    )


def run(host: Path, profile: str, *, code: int = 0, **settings: str) -> tuple[str, str]:
    done = subprocess.run(
        [host, profile, "5"],
        env={"ASAN_OPTIONS": "detect_leaks=0", "ProfilePrometheusKeep": "0", **settings},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_the_calls_of_a_step(host: Path, tmp_path: Path) -> None:
    with gateway() as server:
        shown, said = run(host, TASK, ProfilePrometheusHost=server.url)
    assert said == ""
    assert f"ProfilePrometheusHost={server.url}\n" in shown
    assert "task 1 energy 0\n" in shown
    last = {request.path: request.body for request in server.requests if request.method == "PUT"}
    for task in "01":
        body = last[f"/metrics/job/42/instance/n1/step/3/group/task/task/{task}"]
        assert "RSS 4096\nCPUTime 0.25\n" in body
        assert "\njobsight_profile_cpu_seconds_total 1.25\n" in body
    with agent(tmp_path / "socket") as got:
        assert run(host, ALL, ProfilePrometheusHost=f"unix:{tmp_path}/socket")[1] == ""
    assert len(got) == 11


@pytest.mark.parametrize(
    ("profile", "default", "active"),
    [(NONE, "all", "0 energy 0"), (NOT_SET, "none", "0 energy 0"), (NOT_SET, "all", "1 energy 1"),
     (NOT_SET, "energy,network", "0 energy 1"), (TASK, "none", "1 energy 0")],
)  # fmt: skip
def test_a_job_s_own_wish_goes_before_the_default(
    host: Path, profile: str, default: str, active: str
) -> None:
    shown, _ = run(
        host,
        profile,
        ProfilePrometheusHost="unix:/nobody",
        ProfilePrometheusDefault=default,
    )
    assert f"task {active}\n" in shown


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "ProfilePrometheusHost is missing"),
        ({"NO_FILE": "1"}, "ProfilePrometheusHost is missing"),
        ({"ProfilePrometheusHost": "https://gateway"}, "only http:// and unix: are known"),
        ({"ProfilePrometheusHost": "gateway:99999"}, "the port is not a number from 1 to 65535"),
        ({"ProfilePrometheusHost": "x", "ProfilePrometheusDefault": "tasks"}, "right is all, none"),
        ({"ProfilePrometheusHost": "x", "ProfilePrometheusKeep": "601"}, "at most 600 seconds"),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    host: Path, settings: dict[str, str], sentence: str
) -> None:
    _, said = run(host, TASK, code=1, **settings)
    assert said.startswith("fatal: acct_gather.conf: ")
    assert sentence in said
    assert said.count("\n") == 1
