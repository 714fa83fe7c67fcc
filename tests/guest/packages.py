"""Inside the guest, with systemd as PID 1: the Debian packages of an earlier version are installed,
set up and started, upgraded with data while the services run, refused as a downgrade, removed and
purged, and installed afresh. What it saw comes back as one JSON document, and the host asserts."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.guest.units import AGENT, SERVER, UNITS, exposure, measure_job, pid, run, state, wait

OUT = Path(os.environ.get("OUT", "/out"))
OLDER, NEWER = Path("/project/previous"), Path("/project/dist")
NAMES = ("jobsight", "jobsight-agent", "jobsight-server")
NODE = Path("/etc/jobsight-node")
DROP_IN = UNITS / f"{AGENT}.d"


def main() -> int:
    seen: dict[str, Any] = {}
    try:
        upgrade(seen)
        refuse_downgrade(seen)
        remove(seen)
        install_afresh(seen)
    finally:
        (OUT / "result.json").write_text(json.dumps(seen, indent=1))
        journal = subprocess.run(
            ["journalctl", "--no-pager", "-u", SERVER, "-u", AGENT, "-u", "jobsight-server.socket"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        (OUT / "journal.txt").write_text(journal.stdout)
    return 0


def debs(directory: Path) -> list[str]:
    return [str(next(directory.glob(f"{name}_*.deb"))) for name in NAMES]


def say(what: str) -> None:
    uptime = Path("/proc/uptime").read_text().split()[0]
    print(f"{uptime} s: {what}", flush=True)


def upgrade(seen: dict[str, Any]) -> None:
    say("the packages of the earlier version")
    run("dpkg", "--install", *debs(OLDER))
    seen["older"] = run("jobsight", "--version").split()[1]
    seen["enabled_by_installation"] = [
        unit for unit in (SERVER, AGENT) if state(unit)["UnitFileState"] == "enabled"
    ]
    run("jobsight", "setup", "server", "--cluster", "guest", "--host", "localhost",
        "--port", "8080", "--interval", "0", "--yes", "--force")  # fmt: skip
    run("jobsight", "setup", "node", "--directory", str(NODE), "--cluster", "guest", "--server",
        "https://localhost:8080", "--token", "/etc/jobsight/guest.token", "--ca",
        "/etc/jobsight/ca/ca.pem", "--yes", "--no-check")  # fmt: skip
    settings = NODE / "jobsight.toml"
    # One machine plays both parts; jobs of root are those that this guest can make.
    text = settings.read_text().replace("ignore_uids = [0]", "query_slurm = false")
    settings.write_text(text)
    DROP_IN.mkdir()
    (DROP_IN / "settings.conf").write_text(
        f"[Service]\nExecStart=\nExecStart=/opt/jobsight/bin/jobsight agent --config {settings}\n"
    )
    run("systemctl", "daemon-reload")
    say("its services")
    run("systemctl", "enable", "--now", SERVER, AGENT)
    measure_job()
    before = wait("the job in the store", lambda: stored_job(8080))
    seen["job_before"] = before["run"]
    pids = {unit: pid(unit) for unit in (SERVER, AGENT)}
    changed = Path("/etc/jobsight/jobsight.toml").read_text()

    say("the upgrade")
    run("dpkg", "--force-confold", "--install", *debs(NEWER))
    seen["newer"] = run("jobsight", "--version").split()[1]
    for unit in (SERVER, AGENT):
        wait(f"{unit} after the upgrade", lambda unit=unit: state(unit)["ActiveState"] == "active")
    seen["after_upgrade"] = {unit: state(unit) for unit in (SERVER, AGENT)}
    seen["restarted"] = [unit for unit in (SERVER, AGENT) if pid(unit) != pids[unit]]
    seen["settings_kept"] = Path("/etc/jobsight/jobsight.toml").read_text() == changed
    seen["job_after"] = wait("the job after the upgrade", lambda: stored_job(8080))["run"]
    say("a report as PDF, from the service with all its restrictions")
    status, body = fetch(8080, "/api/v1/jobs/guest:7/report.pdf")
    seen["pdf"] = [status, body[:5].decode(errors="replace")]
    seen["security"] = {unit: exposure(unit) for unit in (SERVER, AGENT)}
    seen["doctor"] = said("jobsight", "doctor", "--config", str(settings))


def refuse_downgrade(seen: dict[str, Any]) -> None:
    say("a downgrade")
    pids = {unit: pid(unit) for unit in (SERVER, AGENT)}
    seen["downgrade"] = said("dpkg", "--install", *debs(OLDER))
    seen["after_downgrade"] = {
        "version": run("jobsight", "--version").split()[1],
        "running": all(state(unit)["ActiveState"] == "active" for unit in pids),
        "health": fetch(8080, "/healthz")[0],
    }


def remove(seen: dict[str, Any]) -> None:
    say("removal")
    processes = [pid(unit) for unit in (SERVER, AGENT)]
    run("dpkg", "--remove", *reversed(NAMES))
    seen["running_after_removal"] = [each for each in processes if Path(f"/proc/{each}").exists()]
    seen["wanted_after_removal"] = [str(path) for path in UNITS.glob("*.wants/jobsight*")]
    kept = ("/etc/jobsight/jobsight.toml", "/var/lib/jobsight/store.db")
    seen["kept"] = [path for path in kept if Path(path).exists()]
    run("dpkg", "--purge", *reversed(NAMES))
    # What this test made itself.
    shutil.rmtree(NODE)
    shutil.rmtree(DROP_IN)
    # /run is a file system of its own; in /run/systemd is what systemd keeps of units.
    found = run("find", "/", "/run", "-xdev", "-name", "*jobsight*", "-not", "-path", "/project/*",
                "-not", "-path", "/out/*", "-not", "-path", "/proc/*",
                "-not", "-path", "/run/systemd/*")  # fmt: skip
    seen["left_after_purge"] = found.splitlines()
    seen["user_after_purge"] = "jobsight" in Path("/etc/passwd").read_text()


def install_afresh(seen: dict[str, Any]) -> None:
    """As docs/install.md says: install, set up, start."""
    say("a new installation")
    run("dpkg", "--install", *debs(NEWER))
    run("jobsight", "setup", "server", "--cluster", "fresh", "--host", "localhost", "--interval",
        "0", "--yes")  # fmt: skip
    run("systemctl", "daemon-reload")
    run("systemctl", "enable", "--now", "jobsight-server.socket", SERVER)
    seen["fresh"] = {**state(SERVER), "health": fetch(8443, "/healthz")[0]}
    seen["fresh"]["listening"] = state_of_socket()
    run("dpkg", "--purge", *reversed(NAMES))
    seen["socket_after_purge"] = (UNITS / "jobsight-server.socket.d").exists()


def state_of_socket() -> str:
    return run("systemctl", "show", "-P", "Listen", "jobsight-server.socket").strip()


def stored_job(port: int) -> dict[str, Any] | None:
    try:
        status, body = fetch(port, "/api/v1/jobs/guest:7")
    except OSError:
        return None
    if status != 200:
        return None
    found: dict[str, Any] = json.loads(body)
    return found if found.get("executables") else None


def fetch(port: int, path: str) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile="/etc/jobsight/ca/ca.pem")
    connection = http.client.HTTPSConnection("localhost", port, timeout=240, context=context)
    token = Path("/var/lib/jobsight/token").read_text().strip()
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def said(*argv: str) -> dict[str, Any]:
    answer = subprocess.run(argv, capture_output=True, text=True, check=False)
    return {"status": answer.returncode, "text": answer.stdout + answer.stderr}


if __name__ == "__main__":
    sys.exit(main())
