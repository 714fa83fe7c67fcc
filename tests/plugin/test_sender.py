"""The plugin's sender against gateways that work, hang and fail; the hook never waits for any."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.plugin.conftest import Compiled
from tests.plugin.gateways import agent, gateway, hanging, silent_agent
from tests.ports import free_port

GROUP = "/metrics/job/42/instance/n1/step/0/group"


class Step(NamedTuple):
    """A whole step of the driver."""

    dropped: int  # by the ring
    said: str


def step(
    program: Path, host: str, *, tasks: int = 2, rounds: int = 5, pause: int = 50, keep: int = 0
) -> Step:
    """Run a step. It fails if it waits for a minute: for a gateway, a resolver, or ``keep``."""
    done = subprocess.run(
        [program, host, *map(str, (tasks, rounds, pause, keep))],
        capture_output=True,
        text=True,
        timeout=59,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert done.returncode == 0, done.stderr
    _longest_hook, dropped = map(int, done.stdout.split())
    return Step(dropped, done.stderr)


@pytest.fixture
def driver(compiled: Compiled) -> Path:
    return compiled("driver", "-fsanitize=address,undefined")


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_each_sample_of_each_task_is_pushed_to_a_group_of_its_own(
    compiled: Compiled, sanitizer: str
) -> None:
    with gateway() as server:
        done = step(compiled("driver", f"-fsanitize={sanitizer}"), server.url, pause=100)
    assert (done.dropped, done.said) == (0, "")
    pushes = 0
    for task in range(2):
        bodies = [
            request.body
            for request in server.requests
            if request[:2] == ("PUT", f"{GROUP}/task/task/{task}")
        ]
        rounds = [int(number(body, "RSS")) - 1000 * task for body in bodies]
        assert rounds == sorted(set(rounds))
        assert rounds[-1] == 4
        # Slurm gives the CPU time since the last sample; the sum misses nothing.
        totals = [number(body, "jobsight_profile_cpu_seconds_total") for body in bodies]
        assert totals == [(round + 1) / 2 for round in rounds]
        pushes += len(rounds)
    # On a busy machine a sample can overtake the one before it, and is counted.
    losses = [one.body for one in server.requests if one[:2] == ("PUT", f"{GROUP}/plugin")]
    assert pushes + number(losses[-1], "jobsight_profile_dropped_samples_total") == 10
    assert server.connections == 1


def number(body: str, name: str) -> float:
    (found,) = re.findall(rf"^{name} (\S+)$", body, re.M)
    return float(found)


def test_the_groups_are_deleted_once_and_last(driver: Path) -> None:
    with gateway() as server:
        step(driver, server.url, tasks=3)
    methods = [request.method for request in server.requests]
    assert methods == sorted(methods, reverse=True)
    deleted = [request.path for request in server.requests if request.method == "DELETE"]
    assert deleted == [*(f"{GROUP}/task/task/{task}" for task in range(3)), f"{GROUP}/plugin"]
    assert set(deleted) == {request.path for request in server.requests}


def test_the_last_samples_stay_for_a_scrape_but_no_longer_than_the_step_ran(driver: Path) -> None:
    with gateway() as server:
        begin = time.monotonic()
        step(driver, server.url, rounds=10, pause=50, keep=60_000)
        assert time.monotonic() - begin >= 1.0
        assert server.requests[-1].method == "DELETE"


def test_a_gateway_that_fails_loses_samples_and_counts_them(driver: Path) -> None:
    with gateway(500) as server:
        done = step(driver, server.url, rounds=8)
        assert done.said == "said: samples cannot be sent: the gateway answers 500\n"
        attempts = [request for request in server.requests if request.method == "PUT"]
    # After a failure the sender pauses, so that it does not try again with every sample.
    assert 2 <= len([one for one in attempts if one.path.endswith("/task/0")]) <= 8
    assert "jobsight_profile_dropped_samples_total 14\n" in attempts[-1].body
    assert re.search(r"^jobsight_profile_failed_sends_total [1-9]", attempts[-1].body, re.M)


@pytest.mark.parametrize(
    "status",
    ["-99999999999 x", "2", "20 OK", "2000 OK", "+200 OK", " 200", "0200", "2x0", "099"],
)
def test_a_status_is_exactly_three_digits(driver: Path, status: str) -> None:
    with gateway(status) as server:
        done = step(driver, server.url, rounds=2)
    reason = "its answer is not one of a Pushgateway"
    assert done.said == f"said: samples cannot be sent: {reason}\n"


@pytest.mark.parametrize("kind", ["stopped", "hanging", "unresolvable", "no agent"])
def test_who_is_away_costs_neither_the_hook_nor_the_end(
    driver: Path, tmp_path: Path, kind: str
) -> None:
    with hanging() as address:
        host = {
            "stopped": "http://127.0.0.1:1",
            "hanging": address,
            "unresolvable": "http://gateway.invalid:9091",
            "no agent": f"unix:{tmp_path}/nobody",
        }[kind]
        done = step(driver, host, keep=60_000)
    assert "samples cannot be sent" in done.said or kind in ("hanging", "unresolvable")


def test_a_resolver_that_takes_a_minute_costs_neither(compiled: Compiled) -> None:
    driver = compiled("driver", "-fsanitize=address,undefined", "-DSLOW_RESOLVER")
    done = step(driver, "http://gateway.example:9091", tasks=100, rounds=20, pause=150)
    # The sender had taken some samples before it went to the resolver, at most what the ring holds.
    assert 100 * 20 - 512 - 512 <= done.dropped <= 100 * 20 - 512


def test_an_agent_gets_each_sample_and_the_end_as_datagrams(driver: Path, tmp_path: Path) -> None:
    with agent(tmp_path / "socket") as got:
        done = step(driver, f"unix:{tmp_path}/socket", rounds=4, pause=20)
    assert (done.dropped, done.said) == (0, "")
    assert got[-1] == {"job": 42, "step": "0", "node": "n1", "dropped": 0, "failed": 0}
    assert {(one["group"], one["task"]) for one in got[:-1]} == {("task", "0"), ("task", "1")}
    assert [one["values"]["RSS"] for one in got[:-1] if one["task"] == "1"] == [
        1000, 1001, 1002, 1003
    ]  # fmt: skip


def test_an_agent_that_hangs_costs_samples_only(driver: Path, tmp_path: Path) -> None:
    with silent_agent(tmp_path / "socket"):
        done = step(driver, f"unix:{tmp_path}/socket", tasks=500, rounds=3, pause=500)
    assert done.said == "said: samples cannot be sent: Resource temporarily unavailable\n"


def test_an_agent_that_comes_back_gets_what_comes_then(driver: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [driver, f"unix:{tmp_path}/socket", "1", "100", "50", "0"],
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "No such file" in process.stderr.readline()
        with agent(tmp_path / "socket") as got:
            assert process.wait(100) == 0
    samples = got[:-1]
    assert 0 < len(samples) < 100
    assert {one["dropped"] for one in samples} == {100 - len(samples)}
    # The sum knows of what was lost.
    assert samples[-1]["values"]["jobsight_profile_cpu_seconds_total"] == 50


@pytest.mark.long
def test_a_gateway_that_comes_back_gets_the_newest_and_is_left_clean(driver: Path) -> None:
    port = free_port()
    with subprocess.Popen(
        [driver, f"http://127.0.0.1:{port}", "1", "80", "100", "0"],
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "Connection refused" in process.stderr.readline()
        with gateway(port=port) as server:
            assert process.wait(100) == 0
            requests = server.requests
    pushed = [
        number(one.body, "RSS") for one in requests if one.path.endswith("/task/0") and one.body
    ]
    assert pushed == sorted(set(pushed))
    assert pushed[-1] == 79
    assert requests[-1].method == "DELETE"
