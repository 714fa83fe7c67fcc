import subprocess
import sys
from pathlib import Path

import pytest

import jobsight
from jobsight.cli import main as command
from jobsight.errors import ConfigError


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out == f"jobsight {jobsight.__version__}\n"
    assert command.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in command.COMMANDS)
    assert command.main([]) == 2


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["serv"]) == 2
    assert capsys.readouterr().err == (
        "jobsight: unknown command 'serv'; did you mean `jobsight serve`?\n"
    )


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("no good"), 2, "jobsight: no good\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_one_line(
    error: BaseException,
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("jobsight.cli.report.load_settings", fail)
    assert command.main(["report"]) == code
    assert capsys.readouterr().err == text


@pytest.mark.parametrize("name", ["report", "serve"])
def test_help_and_wrong_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([name, "--help"]) == 0
    assert f"jobsight {name}" in capsys.readouterr().out
    assert command.main([name, "--nothing"]) == 2
    assert "--nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "report",
        "jobs",
        "cluster",
        "software list",
        "software show gromacs",
        "software undetermined",
        "software report",
        "software update",
        "token list",
        "token revoke 1",
        "token rotate 1",
        "archive check",
        "archive write",
        "archive read 1 --dry-run",
    ],
)
def test_a_wrong_path_does_not_become_a_store(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBSIGHT_ARCHIVE__LOCATION", str(tmp_path / "archive"))
    nowhere = tmp_path / "nowhere.db"
    assert command.main([*words.split(), "--store", str(nowhere)]) == 1
    assert f"there is no store at {nowhere}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_heavy_before_the_command_is_known() -> None:
    code = (
        "import sys; from jobsight.cli.main import main; main(['--version']);"
        "print([name for name in ('rich', 'numpy', 'fastapi', 'sqlalchemy') "
        "if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", ["report", "jobs"])
def test_queries_import_nothing_heavy(words: str, tmp_path: Path) -> None:
    """A tenth of a second each; bench_startup measures the sum."""
    store = ["--store", str(tmp_path / "store.db")]
    assert command.main(["run", "-q", *store, "--", "true"]) == 0
    code = (
        f"import sys; from jobsight.cli.main import main; main({[words, *store]!r})\n"
        "heavy = ('numpy', 'pyarrow', 'fastapi', 'sqlalchemy', 'alembic', 'httpx2', 'ssl')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", ["doctor --json", "agent --help", "run --help", "doctor"])
def test_a_node_needs_only_the_packages_of_the_agent(words: str) -> None:
    code = (
        "import sys\n"
        "for name in ('rich', 'numpy', 'fastapi', 'sqlalchemy', 'alembic', 'httpx2'):\n"
        "    sys.modules[name] = None\n"
        f"from jobsight.cli.main import main; sys.exit(main({words.split()!r}))"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        ("jobs --limit 0", "--limit/-n: expected 1 or more, got 0"),
        ("jobs --limit many", "expected an integer"),
        ("jobs --format xml", "expected one of table, csv, json"),
        ("token add --expires nan", "expected 0 to 36,500"),
        ("store", "usage: jobsight store COMMAND"),
        ("software shwo", "did you mean `jobsight software show`?"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    words: str, phrase: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words.split()) == 2
    captured = capsys.readouterr()
    assert phrase in captured.out + captured.err
    assert len(captured.err.splitlines()) <= 1


def test_a_closed_pipe_is_no_trace() -> None:
    script = f"{sys.executable} -m jobsight.cli.main --help | true"
    for _ in range(3):
        ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert ended.stderr == ""
