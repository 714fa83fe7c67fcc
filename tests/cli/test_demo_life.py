"""The demo in a process of its own: where it keeps things, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def start(store: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jobsight.cli.main", "demo", "--port", "0", *options]
    return subprocess.Popen(
        [*command, "--store", str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
    )


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo in its first sample."""
    process = start(tmp_path / "store.db")
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Sample 1"):
                break
        time.sleep(3)
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_it_and_its_job_without_a_trace(
    running: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    running.send_signal(number)
    said, _ = running.communicate(timeout=90)
    assert running.returncode == 0
    assert said.strip() == f"Ended. The store stays: {tmp_path / 'store.db'}".strip()
    assert not (tmp_path / "server.json").exists()
    assert not [
        words
        for words in map(_words, Path("/proc").glob("[0-9]*/cmdline"))
        if str(tmp_path) in words
    ]


def _words(file: Path) -> str:
    try:
        return file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


@pytest.mark.long
def test_a_second_one_says_where_the_first_is(
    running: subprocess.Popen[str], tmp_path: Path
) -> None:
    with start(tmp_path / "store.db") as second:
        said, _ = second.communicate(timeout=90)
    assert second.returncode == 1
    assert re.fullmatch(
        r"jobsight: an earlier demo still runs: http://127.0.0.1:\d+ \(process \d+\); .*\n", said
    )


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with start(tmp_path / "file" / "store.db") as process:
        said, _ = process.communicate(timeout=90)
    assert process.returncode == 1
    assert said.startswith("jobsight: ")
    assert said.count("\n") == 1
