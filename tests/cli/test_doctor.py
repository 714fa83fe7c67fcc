"""``jobsight doctor`` on this machine, and where the kernel gives less."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobsight.cli import doctor
from jobsight.cli.doctor import Check, summary
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from tests.agent.workloads import JOBSIGHT

CLI = [*JOBSIGHT, "doctor"]


def examined(*before: str) -> dict[str, Any]:
    shown = subprocess.run(
        [*before, *CLI, "--json"], capture_output=True, check=False, timeout=60, text=True
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    return dict(json.loads(shown.stdout))


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in found["checks"]}


@pytest.mark.root
def test_as_root_everything_is_tried_and_exact() -> None:
    found = examined()
    given = verdicts(found)
    assert given["privileges"] == given["process connector"] == given["exit records"] == "good"
    assert given["own cgroup"] in ("good", "partly")
    assert (
        "CPU time by executable: exact, from exit records; every execution counted"
        in (found["therefore"])
    )


def test_the_table_is_for_people() -> None:
    shown = subprocess.run(CLI, capture_output=True, check=True, timeout=60, text=True).stdout
    for word in ("privileges", "cgroups", "process connector", "disk", "CPU time of a job"):
        assert word in shown


@pytest.mark.root
@pytest.mark.parametrize(
    ("namespace", "missing"),
    [
        (("unshare", "--pid", "--fork", "--mount-proc"), {"process connector", "exit records"}),
        (("unshare", "--net"), {"process connector"}),
    ],
    ids=["pid", "net"],
)
def test_in_a_namespace_events_are_missing_and_it_says_so(
    namespace: tuple[str, ...], missing: set[str]
) -> None:
    found = examined(*namespace)
    given = verdicts(found)
    assert {name for name in missing if given[name] != "missing"} == set()
    assert "CPU time by executable: polled, an estimate" in found["therefore"]


@pytest.mark.root
def test_in_a_namespace_a_job_runs_and_is_polled(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    job = [*JOBSIGHT, "run", "--store", store, "--", "/bin/sh", "-c", "sleep 0.2; exit 3"]
    ended = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *job], capture_output=True, check=False
    )
    assert ended.returncode == 3
    assert b"estimate" in ended.stderr
    assert b"Traceback" not in ended.stderr


@pytest.mark.root
def test_it_leaves_no_cgroup(tmp_path: Path) -> None:
    examined()
    assert not list(Path("/sys/fs/cgroup").glob("**/jobsight-doctor-*"))


@pytest.mark.root
def test_as_an_ordinary_user_it_says_what_is_polled() -> None:
    asked = ["runuser", "-u", "nobody", "--", sys.executable, "-c", "import jobsight"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("an ordinary user may not read this checkout")
    found = examined("runuser", "-u", "nobody", "--")
    given = verdicts(found)
    assert given["privileges"] == "partly"
    # Newer kernels tell everybody of processes, but nobody but root gets their exit records.
    assert given["exit records"] == "missing"
    assert "CPU time by executable: polled, an estimate" in found["therefore"]
    assert "CPU time of a job: exact at its end, from rusage" in found["therefore"]


def checks(**verdicts: str) -> list[Check]:
    names = ("process connector", "exit records", "own cgroup", "GPU")
    given = {name: verdicts.get(name.replace(" ", "_"), "good") for name in names}
    return [Check(name, verdict, "", "") for name, verdict in given.items()]  # type: ignore[arg-type]


def test_an_older_kernel_still_gives_an_exact_split() -> None:
    assert "exact, from exit records" in summary(checks(exit_records="partly"))[1]
    assert "polled" in summary(checks(exit_records="missing"))[1]


def test_a_slurm_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("sacct", "squeue"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = doctor._slurm(Settings())
    assert check.verdict == "partly"
    assert "do not answer" in check.found


def test_a_slurm_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang(*arguments: object, **named: object) -> None:
        raise subprocess.TimeoutExpired("sacct", 10)

    (tmp_path / "sacct").write_text("")
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", hang)
    assert doctor._slurm(Settings()).verdict == "partly"


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    doctor.examine(Settings())
    assert len(os.listdir("/proc/self/fd")) == before


# Fault 19: a node has only the packages of the agent, and the settings were ignored.
def test_on_a_node_with_the_packages_of_the_agent_only(tmp_path: Path) -> None:
    settings = tmp_path / "jobsight.toml"
    token = tmp_path / "token"
    token.write_text("a-token-of-this-cluster\n")
    token.chmod(0o644)
    settings.write_text(
        f'[server]\nurl = "https://server.test"\ntoken_file = "{token}"\n'
        f'[agent]\nspool = "{tmp_path}/own-spool"\n'
        f'[scheduler]\nslurm_directory = "{tmp_path}/no-slurm"\n'
    )
    absent = "typer rich sqlalchemy alembic numpy fastapi starlette pydantic uvicorn jinja2 pyarrow"
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({absent.split()!r}))\n"
        "from jobsight.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )

    def checks(*arguments: str, **variables: str) -> dict[str, str]:
        shown = subprocess.run(
            [sys.executable, "-c", program, "doctor", "--json", *arguments],
            capture_output=True, check=False, timeout=60, text=True, env=os.environ | variables,
        )  # fmt: skip
        # The name of the server does not exist.
        assert (shown.returncode, shown.stderr) == (1, "")
        return {check["name"]: check["found"] for check in json.loads(shown.stdout)["checks"]}

    for found in (checks("--config", str(settings)), checks(JOBSIGHT_CONFIG=str(settings))):
        assert f"({tmp_path}/own-spool)" in found["disk"]
        assert f"{tmp_path}/no-slurm" in found["Slurm"]
        assert f"chmod 600 {token}" in found["token"]
        assert "the name server.test is not known" in found["address"]
    other = checks("--config", str(settings), JOBSIGHT_AGENT__SPOOL=f"{tmp_path}/of-variable")
    assert f"({tmp_path}/of-variable)" in other["disk"]


def test_a_server_that_is_stopped_is_named(tmp_path: Path) -> None:
    """Also where Slurm is not queried, and no line says that the host has no server."""
    settings = Settings()
    settings.store.location = str(tmp_path / "store.db")
    (row,) = doctor.installation(settings)
    assert (row.name, row.found) == ("server", "server.url is not set")
    settings.server.allowed_hosts = ["jobsight.example.org"]
    found = {check.name: check for check in doctor.installation(settings)}
    assert "no server of this store runs here" in found["server"].found
    assert "systemctl start jobsight-server" in found["server"].todo


# Fault 19: the example without scheduler.interval left ended jobs RUNNING.
def test_the_example_of_the_server_queries_slurm(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/deployment.md").read_text()
    example = text.partition("## The server")[2].partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "jobsight.toml"
    file.write_text(example)
    assert load_settings(file, {}).scheduler.interval > 0


def test_what_each_gpu_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobsight.agent.samplers.gpu.devices import NodeGpus
    from jobsight.agent.samplers.gpu.nvml import Nvml
    from jobsight.agent.samplers.node import Node
    from tests.agent.samplers.test_gpu import Library, recording

    node = Node(proc=tmp_path, sys=tmp_path, dev=tmp_path)
    source = Nvml(recording("h200-multiply"), node.errors)
    monkeypatch.setattr(NodeGpus, "_open", lambda self: source)
    check = doctor._graphics(node)
    assert check.verdict == "good"
    assert check.found.startswith("0 (NVIDIA H200): memory, energy counter, utilization, multip")
    older = Nvml(Library(), node.errors)
    monkeypatch.setattr(NodeGpus, "_open", lambda self: older)
    check = doctor._graphics(node)
    assert check.verdict == "partly"
    assert "bandwidth figures: the NVIDIA driver is too old" in check.found
    assert "1:0 (NVIDIA H200 MIG)" in check.found
