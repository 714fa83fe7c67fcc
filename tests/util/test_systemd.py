"""The protocols of the service manager, without one: sockets and descriptors are real."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jobsight.util.systemd import inherited_descriptors, notify, watchdog_interval


@pytest.mark.parametrize("abstract", [False, True])
def test_states_are_one_datagram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"jobsight-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name if abstract else name)
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name if abstract else name)
        assert notify("READY=1", "STATUS=listening")
        assert manager.recv(4096) == b"READY=1\nSTATUS=listening"


@pytest.mark.parametrize("address", ["", "relative", "/no/such/socket"])
def test_without_a_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")


def test_the_watchdog_is_told_three_times_within_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    assert watchdog_interval() is None
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    assert watchdog_interval() == 10
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog_interval() == 10
    # Of the parent, which has passed its environment on.
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_interval() is None
    monkeypatch.delenv("WATCHDOG_PID")
    for text in ("0", "-1", "soon"):
        monkeypatch.setenv("WATCHDOG_USEC", text)
        assert watchdog_interval() is None


def test_sockets_of_another_process_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, count in (("1", "1"), (str(os.getpid()), ""), (str(os.getpid()), "many")):
        monkeypatch.setenv("LISTEN_PID", pid)
        monkeypatch.setenv("LISTEN_FDS", count)
        assert inherited_descriptors() == []
        assert "LISTEN_FDS" not in os.environ


def test_inherited_sockets_are_not_passed_on() -> None:
    """In a process of its own, whose descriptor 3 is the socket."""
    code = (
        "import os, sys; from jobsight.util.systemd import inherited_descriptors\n"
        "os.dup2(int(sys.argv[1]), 3)\n"
        "os.environ['LISTEN_PID'] = str(os.getpid())\n"
        "print(inherited_descriptors(), os.get_inheritable(3), 'LISTEN_PID' in os.environ)"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer = subprocess.run(
            [sys.executable, "-c", code, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            env={**os.environ, "LISTEN_FDS": "1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert answer.stdout.split("\n")[0] == "[3] False False", answer.stderr
