"""Inside the guest, with systemd as PID 1: the units start, measure a job, and survive kills,
hangs, restarts under load and a reboot. The command runs once per boot; what it saw comes back as
one JSON document, and the host asserts."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OUT = Path(os.environ.get("OUT", "/out"))
SEEN = OUT / "result.json"
PROJECT = Path("/project")
UNITS = Path("/etc/systemd/system")
SERVER, AGENT = "jobsight-server.service", "jobsight-agent.service"
PORT = 8080
#: A job as slurmd makes it; nothing of Slurm runs here.
JOB = Path("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7")
#: Of the server under load, and clients that keep their connection; as many use one a request.
RESTARTS, KEEPING_CLIENTS = 2, 3
#: A connection that was closed before any part of an answer came. A reply that is cut is another.
CLOSED = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
BURN = "import time\nwhile time.process_time() < 2: pass"

WRAPPER = """#!/bin/sh
export PYTHONPATH=/opt/python:/opt/jobsight/src
exec /usr/bin/python3 -m jobsight.cli.main "$@"
"""
SETTINGS = """cluster = "guest"
[server]
url = "http://127.0.0.1:8080"
token_file = "{token}"
[agent]
node = "node1"
query_slurm = false
send_interval = 2
[store]
location = "/var/lib/jobsight/store.db"
"""


def main() -> int:
    seen: dict[str, Any] = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    if not seen:
        first_boot(seen)
        write(seen)
        run("sync")
        run("systemctl", "reboot")
        time.sleep(600)
        return 1
    second_boot(seen)
    write(seen)
    return 0


def first_boot(seen: dict[str, Any]) -> None:
    install()
    run("systemctl", "daemon-reload")
    run("systemctl", "enable", "--now", SERVER, AGENT)
    seen["started"] = {unit: state(unit) for unit in (SERVER, AGENT)}
    seen["user"] = Path(f"/proc/{pid(SERVER)}/status").read_text().split("Uid:")[1].split()[0]
    capabilities = re.search(r"CapEff:\s*(\w+)", Path(f"/proc/{pid(AGENT)}/status").read_text())
    assert capabilities is not None
    seen["agent_capabilities"] = int(capabilities[1], 16)
    seen["health"] = get("/healthz")[0]
    measure_job()
    seen["job"] = stored_job()
    seen["security"] = {unit: exposure(unit) for unit in (SERVER, AGENT)}
    seen["after_kill"] = {unit: after_signal(unit, signal.SIGKILL) for unit in (SERVER, AGENT)}
    seen["after_kill"]["health"] = get("/healthz")[0]
    seen["load"] = restart_under_load()
    shorten_watchdog()
    seen["after_hang"] = {unit: after_signal(unit, signal.SIGSTOP) for unit in (SERVER, AGENT)}
    seen["after_hang"]["health"] = get("/healthz")[0]
    for unit in (SERVER, AGENT):
        shutil.rmtree(UNITS / f"{unit}.d")
    seen["boot"] = boot()


def second_boot(seen: dict[str, Any]) -> None:
    for unit in (SERVER, AGENT):
        wait(f"{unit} after the reboot", lambda unit=unit: state(unit)["ActiveState"] == "active")
    seen["rebooted"] = boot() != seen["boot"]
    seen["after_reboot"] = {unit: state(unit) for unit in (SERVER, AGENT)}
    seen["after_reboot"]["health"] = get("/healthz")[0]
    seen["after_reboot"]["job"] = stored_job()
    journal = run("journalctl", "--no-pager", "-u", SERVER, "-u", AGENT)
    (OUT / "journal.txt").write_text(journal)


def install() -> None:
    run("systemd-sysusers", str(PROJECT / "deploy/packages/sysusers.conf"))
    run("systemd-tmpfiles", "--create", str(PROJECT / "deploy/packages/tmpfiles.conf"))
    shutil.copytree(PROJECT / "src", "/opt/jobsight/src")
    wrapper = Path("/opt/jobsight/bin/jobsight")
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(WRAPPER)
    wrapper.chmod(0o755)
    for name in (SERVER, AGENT, "jobsight-server.socket"):
        shutil.copy(PROJECT / "deploy/systemd" / name, UNITS)
    Path("/etc/jobsight").mkdir(exist_ok=True)
    settings = Path("/etc/jobsight/jobsight.toml")
    settings.write_text(SETTINGS.format(token="/var/lib/jobsight/token"))
    run(str(wrapper), "token", "add", "--config", str(settings), "--cluster", "guest",
        "--file", "/etc/jobsight/token")  # fmt: skip
    agent = Path("/etc/jobsight/agent.toml")
    agent.write_text(SETTINGS.format(token="/etc/jobsight/token"))
    # On one machine here, so the agent has settings of its own: another token.
    directory = UNITS / f"{AGENT}.d"
    directory.mkdir()
    (UNITS / AGENT).write_text(
        (UNITS / AGENT).read_text().replace("/etc/jobsight/jobsight.toml", str(agent))
    )


def shorten_watchdog() -> None:
    for unit in (SERVER, AGENT):
        directory = UNITS / f"{unit}.d"
        directory.mkdir(exist_ok=True)
        (directory / "short.conf").write_text("[Service]\nWatchdogSec=15\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", SERVER, AGENT)


def measure_job() -> None:
    task = JOB / "step_0/user/task_0"
    task.mkdir(parents=True)
    time.sleep(2)
    program = subprocess.Popen(
        ["/usr/bin/python3", "-c", BURN],
        preexec_fn=lambda: (task / "cgroup.procs").write_text(str(os.getpid())),
    )
    program.wait()
    time.sleep(4)
    for directory in (task, task.parent, task.parent.parent, JOB):
        directory.rmdir()


def stored_job() -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        status, body = get("/api/v1/jobs/guest:7")
        if status == 200:
            run_of: dict[str, Any] = json.loads(body)
            if run_of.get("executables"):
                return run_of
        return None

    answer: dict[str, Any] = wait("the job in the store", found)
    return answer


def batches(number: int) -> Iterator[tuple[int, bytes]]:
    """The job ids and the bodies of the batches of one agent, each of one ended job."""
    sys.path[:0] = ["/opt/python", "/opt/jobsight/src"]
    from jobsight.transport import wire
    from tests.server.batches import batch

    spool = f"00000000-0000-4000-8000-{number:012d}"
    for sequence in itertools.count(1):
        job_id = 1_000_000 * number + sequence
        made = batch(job_id, agent_cluster="guest", sequence=sequence, spool=spool)
        yield job_id, wire.encode(made)


def restart_under_load() -> dict[str, Any]:
    """Clients that connect for each request, and clients that keep their connection; of each kind,
    one sends batches. What was acknowledged must be in the store afterwards."""
    ended = threading.Event()
    lock = threading.Lock()
    counts = {"answered": 0, "waited": 0}
    errors: list[str] = []
    retried: list[str] = []
    restarts: list[float] = []
    acknowledged: list[int] = []
    token = Path("/etc/jobsight/token").read_text().strip()

    def client(keep: bool, sent: Iterator[tuple[int, bytes]] | None) -> None:
        connection = None
        current = next(sent) if sent is not None else None
        while not ended.is_set():
            begin = time.monotonic()
            reused = connection is not None
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", PORT, 120)
                if current is None:
                    connection.request("GET", "/healthz")
                else:
                    headers = {"Authorization": f"Bearer {token}"}
                    connection.request("POST", "/api/v1/batches", current[1], headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    raise http.client.HTTPException(f"status {answer.status}")
                if not keep or answer.getheader("Connection") == "close":
                    connection.close()
                    connection = None
            except (OSError, http.client.HTTPException) as error:
                connection = None
                # An idle connection may be closed at any time, without any part of an answer; every
                # client then connects again.
                expected = reused and isinstance(error, CLOSED)
                with lock:
                    (retried if expected else errors).append(repr(error))
            else:
                end = time.monotonic()
                with lock:
                    counts["answered"] += 1
                    counts["waited"] += any(begin < ready < end for ready in restarts)
                    if sent is not None and current is not None:
                        # Like an agent, it sends a batch again until it is acknowledged.
                        acknowledged.append(current[0])
                        current = next(sent)

    threads = [
        threading.Thread(
            target=client, args=(number % 2 == 0, batches(number) if number < 2 else None)
        )
        for number in range(2 * KEEPING_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    pids = [pid(SERVER)]
    for _ in range(RESTARTS):
        answered = counts["answered"]
        wait("requests before a restart", lambda seen=answered: counts["answered"] > seen + 10)
        run("systemctl", "stop", SERVER)
        # Nobody accepts now; clients wait in the queue of the kernel.
        time.sleep(1)
        restarts.append(time.monotonic())
        run("systemctl", "start", SERVER)
        pids.append(pid(SERVER))
    before = counts["answered"]
    wait("requests after the last restart", lambda: counts["answered"] > before + 20)
    ended.set()
    for thread in threads:
        thread.join()
    lost = [each for each in acknowledged if get(f"/api/v1/jobs/guest:{each}")[0] != 200]
    return {
        **counts, "errors": errors, "retried": retried, "pids": pids,
        "batches": len(acknowledged), "lost": lost,
    }  # fmt: skip


def after_signal(unit: str, number: int) -> dict[str, str]:
    """Send the main process a signal, and wait until another one runs."""
    before, restarts = pid(unit), int(state(unit)["NRestarts"])
    os.kill(before, number)

    def restarted() -> bool:
        now = state(unit)
        return (
            now["ActiveState"] == "active"
            and int(now["NRestarts"]) > restarts
            and int(now["MainPID"]) not in (0, before)
        )

    wait(f"the restart of {unit}", restarted)
    return {**state(unit), "result": last_result(unit)}


def last_result(unit: str) -> str:
    lines = run("journalctl", "--no-pager", "-o", "cat", "-u", unit).splitlines()
    found = [line for line in lines if "Failed with result" in line]
    return found[-1].split("'")[1] if found else ""


def exposure(unit: str) -> float:
    lines = run("systemd-analyze", "security", "--no-pager", unit).splitlines()
    return float(lines[-1].split(":")[1].split()[0])


def state(unit: str) -> dict[str, str]:
    names = "ActiveState,MainPID,NRestarts,Type,MemoryMax,WatchdogUSec,UnitFileState"
    text = run("systemctl", "show", "-p", names, unit)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def pid(unit: str) -> int:
    return int(state(unit)["MainPID"])


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def get(path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    token = Path("/var/lib/jobsight/token").read_text().strip()
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def wait(what: str, condition: Callable[[], Any], seconds: float = 240) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.3)
    journal = run("journalctl", "--no-pager", "-n", "60", "-u", SERVER, "-u", AGENT)
    raise SystemExit(f"{what}: not within {seconds:g} s\n{journal}")


def write(seen: dict[str, Any]) -> None:
    SEEN.write_text(json.dumps(seen, indent=1))


def run(*argv: str) -> str:
    answer = subprocess.run(argv, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise SystemExit(f"{argv} ended with {answer.returncode}\n{answer.stdout}{answer.stderr}")
    return answer.stdout


if __name__ == "__main__":
    sys.exit(main())
