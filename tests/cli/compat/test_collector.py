"""``sams-collector`` as a prolog starts it: background, pid file, signals, and its own end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsight import __version__
from tests.peers.job_tree import JobTree
from tests.waiting import wait_until

COLLECTOR = (sys.executable, "-m", "jobsight.cli.compat.collector")
BURN = "import time\nwhile time.process_time() < {seconds}: pass\ntime.sleep({rest})"

_CONFIG = """
sams-collector:
  pid_finder: sams.pidfinder.Slurm
  samplers: [sams.sampler.Core, sams.sampler.Software]
  outputs: [sams.output.File]
  logfile: {folder}/log.%(jobid)s.%(node)s
  loglevel: INFO
sams.pidfinder.Slurm:
  grace_period: {grace_period}
sams.output.File:
  base_path: {folder}/data
  jobid_hash_size: 1000
  spool: {folder}/spool
"""


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "sams.yaml"
    file.write_text(_CONFIG.format(folder=tmp_path, grace_period=600))
    yield file
    if (tmp_path / "pid").exists():
        # The test failed before it ended its collector.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process(tmp_path), signal.SIGKILL)


@pytest.fixture
def job() -> Iterator[JobTree]:
    tree = JobTree(900_000_000 + os.getpid() * 10 + int(time.time()) % 10)
    yield tree
    tree.remove()


def collector(*arguments: str | Path, **named: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COLLECTOR, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **named,
    )


def burn(seconds: float, rest: float = 0) -> tuple[str, str, str]:
    return sys.executable, "-c", BURN.format(seconds=seconds, rest=rest)


def record(folder: Path, job: JobTree) -> dict[str, Any]:
    file = folder / "data" / str(job.job_id // 1000) / f"{job.job_id}.{job.node}.json"
    return dict(json.loads(wait_until(lambda: file.exists() and file.read_text())))


def following(folder: Path, job: JobTree, times: int = 1) -> bool:
    file = folder / f"log.{job.job_id}.{job.node}"
    return file.exists() and file.read_text().count("following") >= times


def start(config: Path, job: JobTree, *more: str) -> None:
    options = ["--config", config, f"--jobid={job.job_id}", "--node", job.node, "--daemon"]
    result = collector(*options, "--pidfile", config.parent / "pid", *more)
    assert (result.returncode, result.stderr, result.stdout) == (0, "", "")


def process(folder: Path) -> int:
    return int((folder / "pid").read_text())


def gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_every_signal_writes_the_record(
    tmp_path: Path, config: Path, job: JobTree, number: int
) -> None:
    job.start(*burn(0.5, rest=60))
    start(config, job)
    pid = process(tmp_path)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) not in (pid, os.getsid(0))
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    wait_until(lambda: following(tmp_path, job))
    wait_until(lambda: job.cpu_time() > 450_000_000)
    os.kill(pid, number)
    wait_until(lambda: gone(pid))
    written = record(tmp_path, job)
    assert written["sams.sampler.Core"] == {"jobid": job.job_id, "node": job.node}
    uses = written["sams.sampler.Software"]["execs"]
    (path,) = [path for path in uses if "python" in path]
    # A live process is read in ticks of 10 ms.
    assert uses[path]["user"] + uses[path]["system"] >= 0.4
    assert not (tmp_path / "pid").exists()
    # The file keeps to the umask of the settings, which is 077.
    (file,) = (tmp_path / "data").glob("*/*.json")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.root
def test_the_record_comes_with_the_end_of_the_job(
    tmp_path: Path, config: Path, job: JobTree
) -> None:
    """Slurm removes the cgroups before the epilog sends HUP."""
    child = job.start(*burn(0.7, rest=60))
    start(config, job)
    pid = process(tmp_path)
    wait_until(lambda: following(tmp_path, job))
    wait_until(lambda: job.cpu_time() > 600_000_000)
    child.kill()
    child.wait()
    job.remove()
    uses = record(tmp_path, job)["sams.sampler.Software"]["execs"]
    assert sum(use["user"] + use["system"] for use in uses.values()) >= 0.5
    os.kill(pid, signal.SIGHUP)
    wait_until(lambda: gone(pid))
    assert len(list((tmp_path / "data").glob("*/*"))) == 1


@pytest.mark.root
def test_a_requeued_job_has_two_records(tmp_path: Path, config: Path, job: JobTree) -> None:
    start(config, job)
    pid = process(tmp_path)
    for times in (1, 2):
        seen = len(list((tmp_path / "data").glob("*/*.json")))
        child = job.start(*burn(0.3, rest=60))
        wait_until(lambda times=times: following(tmp_path, job, times))
        child.kill()
        child.wait()
        job.remove()
        wait_until(lambda seen=seen: len(list((tmp_path / "data").glob("*/*.json"))) == seen + 1)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: gone(pid))
    names = sorted(file.name for file in (tmp_path / "data").glob("*/*"))
    assert f"{job.job_id}.{job.node}.json" in names
    assert names[0].startswith(f"{job.job_id}.{job.node}.2")


@pytest.mark.root
def test_a_second_start_says_so_and_leaves_the_first_alone(
    tmp_path: Path, config: Path, job: JobTree
) -> None:
    start(config, job)
    pid = process(tmp_path)
    options = ["--config", config, f"--jobid={job.job_id}", "--node", job.node]
    for more in ([], ["--daemon"], ["--daemon", "--pidfile", tmp_path / "pid"]):
        second = collector(*options, *more)
        assert second.returncode == 1
        assert second.stderr == (
            f"sams-collector: a collector for job {job.job_id} on {job.node} "
            f"is already running as process {pid}\n"
        )
    assert process(tmp_path) == pid
    os.kill(pid, signal.SIGHUP)
    wait_until(lambda: gone(pid))


@pytest.mark.root
def test_it_leaves_by_itself(tmp_path: Path, config: Path, job: JobTree) -> None:
    config.write_text(_CONFIG.format(folder=tmp_path, grace_period=1))
    began = time.monotonic()
    # It would stay for ten minutes, and nobody waits that long for it here.
    result = collector("--config", config, f"--jobid={job.job_id}", "--node", job.node)
    assert result.returncode == 0
    assert time.monotonic() - began >= 1


@pytest.mark.root
def test_a_pid_file_of_the_dead_is_taken_over(tmp_path: Path, config: Path, job: JobTree) -> None:
    (tmp_path / "pid").write_text("1\n")
    start(config, job)
    pid = process(tmp_path)
    assert pid != 1
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))
    start(config, job)
    assert process(tmp_path) != pid
    os.kill(process(tmp_path), signal.SIGTERM)
    wait_until(lambda: not (tmp_path / "pid").exists())


def test_without_a_job_it_helps_and_fails() -> None:
    result = collector()
    assert result.returncode == 1
    assert "--test-output" in result.stdout
    assert collector("--version").stdout == f"jobsight {__version__}\n"


@pytest.mark.parametrize("daemon", [[], ["--daemon"]])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--jobid", "12_3"], "--jobid: '12_3' is not a raw job id; expected a number"),
        (["--jobid", "0"], "--jobid: '0' is not a raw job id"),
        (["--jobid", "1", "--config", "nosuch.yaml"], "nosuch.yaml: cannot be read: No such file"),
        (["--jobid", "1", "--loglevel", "LOUD"], "--loglevel: there is no log level 'LOUD'"),
        (["--jobid", "1", "--logfile", "/nosuch/x"], "the log /nosuch/x cannot be written"),
        (["--jobid", "1", "--logfile", "/x%(user)s"], "%(user)s in '/x%(user)s' is not known"),
    ],
)
def test_mistakes_are_one_line_in_front(
    config: Path, daemon: list[str], arguments: list[str], sentence: str
) -> None:
    if "--config" not in arguments:
        arguments = [*arguments, "--config", str(config)]
    result = collector(*arguments, *daemon, cwd=config.parent)
    assert result.returncode in (1, 2)
    assert result.stderr.startswith("sams-collector: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_outputs_can_be_tried(tmp_path: Path, config: Path) -> None:
    document = {"sams.sampler.Core": {"jobid": 5, "node": "n1"}}
    (tmp_path / "document.json").write_text(json.dumps(document))
    options = ["--config", config, "--jobid", "5", "--node", "n1", "--test-output"]
    result = collector(*options, tmp_path / "document.json")
    assert (result.returncode, result.stdout) == (0, "sams.output.File: done\n")
    assert json.loads((tmp_path / "data" / "0" / "5.n1.json").read_text()) == document
    result = collector(*options, config)
    assert (result.returncode, "is not JSON" in result.stderr) == (1, True)
    (tmp_path / "data" / "0").rename(tmp_path / "data" / "1")
    (tmp_path / "data" / "0").write_text("in the way")
    result = collector(*options, tmp_path / "document.json")
    assert result.returncode == 1
    assert result.stderr.startswith("sams.output.File: failed: ")


def test_warnings_are_seen_without_a_log(tmp_path: Path, config: Path) -> None:
    config.write_text(config.read_text() + "\n  bas_path: x\n")
    (tmp_path / "document.json").write_text("{}")
    result = collector(
        "--config", config, "--jobid", "5", "--test-output", tmp_path / "document.json"
    )
    assert "warning: " in result.stderr
    assert "did you mean sams.output.File.base_path?" in result.stderr
