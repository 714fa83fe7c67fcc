"""The units of deploy/systemd, as systemd itself judges them. `make test-guest` runs them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"

#: The highest exposure that systemd-analyze may report.
EXPOSURE = {
    "jobsight-server.service": 2.0,
    "jobsight-agent.service": 3.5,
    "jobs_exporter.service": 3.5,
    "softwareaccounting@.service": 3.5,
}
CAPABILITIES = "CAP_NET_ADMIN CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"


def read(name: str) -> dict[str, list[tuple[str, str]]]:
    """Sections as lists: a unit may name an option several times."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for line in (UNITS / name).read_text().splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), [])
        elif "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            current.append((key, value))
    return sections


def test_every_unit_has_a_limit_of_exposure() -> None:
    assert {file.name for file in UNITS.glob("*.service")} == set(EXPOSURE)


@pytest.mark.parametrize("name", EXPOSURE)
def test_the_exposure_of_a_unit(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    # The commands of the units are not installed here, and without them a unit is not loaded.
    unit = tmp_path / name
    unit.write_text((UNITS / name).read_text().replace("/opt/jobsight/bin/", "/bin/true "))
    answer = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    last = answer.stdout.splitlines()[-1]
    assert float(last.split(":")[1].split()[0]) <= EXPOSURE[name], answer.stdout


def reasons() -> dict[str, str]:
    """The options and capabilities that the comments of the agent's unit name, and why."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in (UNITS / "jobsight-agent.service").read_text().splitlines():
        entry = re.fullmatch(r"#   ((?:[@\w]+=?(?:, )?)+)(?: {2,}(\S.*))?", line)
        if entry is not None:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2] or "")
        elif re.match(r"#    +\S", line):
            found |= {name: f"{found[name]} {line.lstrip('# ')}".strip() for name in names}
        else:
            names = []
    return found


def test_each_exposure_of_the_agent_has_a_reason_in_its_unit() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = UNITS / "jobsight-agent.service"
    answer = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--json=short", str(unit)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    exposed = [str(item["name"]) for item in json.loads(answer.stdout) if item["exposure"]]
    assert len(exposed) >= 10
    assert "ProtectHome=" in exposed
    given = reasons()
    missing = [name for name in exposed if len(given.get(reason_name(name), "")) < 20]
    assert missing == []
    # Nothing is excused that is not exposed any more.
    assert given.keys() == {reason_name(name) for name in exposed}


def reason_name(item: str) -> str:
    """The name under which the unit explains an item of systemd-analyze."""
    option, _, value = item.partition("=~")
    if value == "CAP_(DAC_*|FOWNER|IPC_OWNER)":
        return "CAP_DAC_READ_SEARCH"
    if value == "AF_(INET|INET6)":
        return "AF_INET"
    return value or option.split("/")[0]


@pytest.mark.parametrize("name", sorted(set(EXPOSURE) - {"jobsight-server.service"}))
def test_what_runs_as_root_has_three_capabilities(name: str) -> None:
    service = dict(read(name)["Service"])
    assert service["CapabilityBoundingSet"] == CAPABILITIES
    assert service["NoNewPrivileges"] == "yes"
    assert service["MemoryMax"] == "256M"


@pytest.mark.parametrize("name", ["jobsight-server.service", "jobsight-agent.service"])
def test_both_services_have_readiness_watchdog_and_restarts(name: str) -> None:
    sections = read(name)
    service = dict(sections["Service"])
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > 0
    assert service["Restart"] == "always"
    assert dict(sections["Unit"])["StartLimitIntervalSec"] == "0"


def test_the_server_has_no_privileges_and_a_socket() -> None:
    service = dict(read("jobsight-server.service")["Service"])
    assert service["User"] == "jobsight"
    assert service["CapabilityBoundingSet"] == ""
    parser = RawConfigParser()
    parser.read(UNITS / "jobsight-server.socket")
    assert parser["Socket"]["ListenStream"] == "127.0.0.1:8080"
