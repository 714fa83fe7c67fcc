"""``jobsight scrape`` as a person meets it."""

from pathlib import Path

import pytest

from jobsight.cli.main import main
from jobsight.scheduler.adapters.sacct import COLUMNS


# Fault 20: the failure of the controller was printed twice, for its jobs and its reservations.
def test_a_failure_is_printed_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    away = "slurm_load: Unable to contact slurm controller (connect failure)"
    for name in ("squeue", "sinfo", "scontrol", "sacctmgr", "sshare"):
        (commands / name).write_text(f"#!/bin/sh\necho '{away}' >&2\nexit 1\n")
    # The accounting answers, without jobs.
    (commands / "sacct").write_text(
        f'#!/bin/sh\ncase "$*" in *helpformat*) echo "{" ".join(COLUMNS)}";; esac\n'
    )
    for command in commands.iterdir():
        command.chmod(0o755)
    config = tmp_path / "jobsight.toml"
    config.write_text(
        f'cluster = "c1"\n[store]\nlocation = "{tmp_path}/store.db"\n'
        f'[scheduler]\nsource = "text"\nslurm_directory = "{commands}"\n'
    )
    assert main(["scrape", "--once", "--config", str(config)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("jobsight: squeue")
