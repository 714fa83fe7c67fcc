"""Commands on another host, over a real sshd: known by its key, or refused."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jobsight.config.settings import SshSettings
from jobsight.scheduler.records import SourceError
from jobsight.scheduler.sources.commands import SshRunner
from tests.scheduler import sshd

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshSettings]:
    try:
        environment = {"SLURM_CONF": "/etc/there.conf", "SACCT_FORMAT": "JobID"}
        with sshd.running(tmp_path_factory.mktemp("sshd"), environment) as settings:
            yield settings
    except sshd.Unavailable as reason:
        pytest.skip(str(reason))


def output(settings: SshSettings, *command: str, given: bytes = b"") -> bytes:
    return b"".join(SshRunner(settings)(command, 10, given))


def test_words_arrive_as_they_are(host: SshSettings) -> None:
    words = [
        "a b",
        "$HOME",
        "`id`",
        "it's",
        '"',
        "\\",
        "*",
        "~x~",
        "--format=a;b",
        "newline\nx",
        "",
    ]
    assert output(host, "printf", r"%s\0", *words) == b"".join(
        word.encode() + b"\0" for word in words
    )
    assert output(host, "cat", given=b"\x00\xff" * 1000) == b"\x00\xff" * 1000


def test_the_environment_there_is_slurms_and_ours(host: SshSettings) -> None:
    lines = output(host, "env").decode().splitlines()
    variables = dict(line.split("=", 1) for line in lines)
    assert variables["SLURM_CONF"] == "/etc/there.conf"
    assert (variables["TZ"], variables["SLURM_TIME_FORMAT"]) == ("UTC", "%s")
    assert "SACCT_FORMAT" not in variables


# Fault 17: there was no setting for the directory of Slurm's commands.
def test_commands_are_found_in_the_directory_of_the_settings(
    host: SshSettings, tmp_path: Path
) -> None:
    directory = tmp_path / "slurm bin"
    directory.mkdir()
    (directory / "sacct").write_text("#!/bin/sh\necho slurm 25.05 $*\n")
    (directory / "sacct").chmod(0o755)
    run = SshRunner(host, str(directory))
    assert b"".join(run(["sacct", "--version"], 10)) == b"slurm 25.05 --version\n"


def test_what_fails_there_is_said_in_one_line(host: SshSettings) -> None:
    with pytest.raises(SourceError, match=r"^ls on 127\.0\.0\.1: failed with 2: .*no/such"):
        output(host, "ls", "/no/such")
    with pytest.raises(SourceError, match=r"gave no answer within 0\.5 s"):
        list(SshRunner(host)(["sleep", "60"], 0.5))


def test_a_host_that_is_not_known_is_refused(host: SshSettings, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.touch()
    stranger = msgspec.structs.replace(host, known_hosts=str(known))
    with pytest.raises(SourceError, match="expected the host's key"):
        output(stranger, "true")
    assert known.read_text() == ""
    # Another key than the one that was written down.
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"],
        check=True, timeout=60,
    )  # fmt: skip
    kind, key, *_ = (tmp_path / "other.pub").read_text().split()
    known.write_text(f"[127.0.0.1]:{host.port} {kind} {key}\n")
    with pytest.raises(SourceError, match=r"is missing in .* or differs"):
        output(stranger, "true")


def test_a_host_that_is_away_or_does_not_let_us_in(host: SshSettings, tmp_path: Path) -> None:
    nobody = msgspec.structs.replace(host, port=1)
    with pytest.raises(SourceError, match=r"127\.0\.0\.1 cannot be reached: .*refused"):
        output(nobody, "true")
    key = tmp_path / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=60
    )
    stranger = msgspec.structs.replace(host, key_file=os.fspath(key))
    with pytest.raises(SourceError, match=r"cannot be reached: .*Permission denied"):
        output(stranger, "true")


# Fault 11: what login scripts print before the output of a command is left out.
def test_a_login_banner_is_not_output(tmp_path: Path) -> None:
    script = tmp_path / "banner.sh"
    script.write_text("echo Welcome to the cluster; echo Maintenance on Monday\n")
    try:
        with sshd.running(tmp_path, {"BASH_ENV": str(script)}) as settings:
            assert output(settings, "echo", "n1") == b"n1\n"
            with pytest.raises(SourceError, match="failed with 3"):
                output(settings, "sh", "-c", "exit 3")
    except sshd.Unavailable as reason:
        pytest.skip(str(reason))
