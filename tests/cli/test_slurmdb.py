"""`jobsight slurmdb` without a database: names, passwords and addresses that are refused."""

from pathlib import Path

import pytest

from jobsight.cli.main import main
from jobsight.errors import ConfigError
from jobsight.store.slurm_database import Address


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--cluster", "a`; drop"], "cluster 'a`; drop' is not valid"),
        (["--cluster", "c", "--user", "x'@'%"], "is not valid"),
        (["--cluster", "c", "--view", ""], "view '' is not valid"),
        (["--cluster", "c", "--host", "%"], "bound to a host"),
        (["--cluster", "c", "--host", "a'b"], "is not a host name"),
        (["--cluster", "c" * 60], "longer than 64"),
        ([], "--cluster"),
    ],
)
def test_names_that_are_refused(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurmdb", "setup", "--dry-run", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_the_password_file_is_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "password"
    command = ["slurmdb", "setup", "--cluster", "c", "--password-file", str(file)]
    assert main(command) == 2
    assert "cannot be read" in capsys.readouterr().err
    file.write_text("long enough\n")
    file.chmod(0o644)
    assert main(command) == 2
    assert "can be read by others" in capsys.readouterr().err
    file.chmod(0o600)
    for content, sentence in ((b"short", "8 to 1024"), (b"\xff" * 9, "UTF-8")):
        file.write_bytes(content)
        assert main(command) == 2
        assert sentence in capsys.readouterr().err
    assert main(command[:-2]) == 2
    assert "--password-file" in capsys.readouterr().err


def test_addresses() -> None:
    assert Address.parse("/run/x.sock") == Address(socket="/run/x.sock")
    assert Address.parse("db.example") == Address(host="db.example", port=3306)
    assert Address.parse("[::1]:33") == Address(host="::1", port=33)
    for wrong in ("", "a:b", "host:99999", "host:0", "mysql://x"):
        with pytest.raises(ConfigError):
            Address.parse(wrong)
