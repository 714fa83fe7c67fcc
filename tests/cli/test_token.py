"""``jobsight token``, as it is typed."""

import json
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.cli import token as token_command
from jobsight.cli.main import main
from jobsight.store.store import Store
from jobsight.store.tokens import Tokens, digest_of
from jobsight.transport.running_server import TokenError, read_token
from tests.user import NOBODY, as_a_user


class Typed:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store = folder / "store.db"
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main(["token", *arguments, "--store", str(self.store)])
        said = self._capsys.readouterr()
        return code, said.out, said.err


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(tmp_path, capsys)


def test_a_new_token_is_alone_on_the_output(typed: Typed) -> None:
    code, out, err = typed("add", "--cluster", "alpha", "--label", "[nodes]")
    assert code == 0
    assert err.startswith("token 1 of cluster alpha\n")
    assert len(out.split()) == 1
    with Store.open(typed.store) as store:
        found = Tokens(store.database).find(digest_of(out.strip()))
    assert found is not None
    assert (found.cluster, found.label, found.expires) == ("alpha", "[nodes]", None)


def test_a_token_in_a_file_is_one_that_an_agent_takes(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert typed("add", "--cluster", "alpha", "--file", str(file))[:2] == (0, "")
    first = read_token(file)
    code, out, err = typed("rotate", "1", "--grace", "2", "--expires", "30", "--file", str(file))
    assert (code, out) == (0, "")
    assert "token 2 replaces token 1 of cluster alpha" in err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_token(file) != first
    assert [path.name for path in tmp_path.glob(".token*")] == []


def test_a_token_that_cannot_be_written_is_not_lost(typed: Typed, tmp_path: Path) -> None:
    code, out, err = typed("add", "--cluster", "alpha", "--file", str(tmp_path / "none" / "token"))
    assert code == 1
    assert "none/token cannot be written: No such file or directory; see above" in err
    with Store.open(typed.store) as store:
        assert Tokens(store.database).find(digest_of(out.strip())) is not None


def test_the_list(typed: Typed) -> None:
    Store.open(typed.store).close()
    assert typed("list") == (0, "", "there are no cluster tokens\n")
    typed("add", "--cluster", "alpha", "--label", "[nodes]")
    typed("add", "--cluster", "beta", "--expires", "0")
    typed("add", "--cluster", "beta")
    assert "was revoked on" in typed("revoke", "3")[2]
    _, out, _ = typed("list")
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows] == ["ID", "1", "2", "3"]
    assert rows[1][:4] == ["1", "alpha", "[nodes]", "valid"]
    assert "expired" in rows[2]
    assert "revoked" in rows[3]
    found = json.loads(typed("list", "--cluster", "beta", "--json")[1])
    assert [one["id"] for one in found] == [2, 3]
    assert "digest" not in found[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["revoke"], "expected: jobsight token revoke ID"),
        (["add", "3"], "expected: jobsight token add without an ID"),
        (["list", "--grace", "3"], "--grace: is for rotate, not for list"),
        (["rotate", "1", "--cluster", "a"], "--cluster: is for add and list, not for rotate"),
    ],
)
def test_mistakes_are_one_line(typed: Typed, arguments: list[str], words: str) -> None:
    code, out, err = typed(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert words in err
    assert not typed.store.exists()


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user can enter, whatever pytest makes of those above its own."""
    with tempfile.TemporaryDirectory(prefix="jobsight-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


# Fault 19: `token add` as root before the first start left a store that the server could not open.
@pytest.mark.root
def test_a_store_that_root_creates_belongs_to_the_user_of_the_server(
    open_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def usable(store: Path) -> bool:
        with as_a_user():
            if not os.access(store, os.W_OK, effective_ids=True):
                return False
            with Store.open(store) as opened:
                return bool(Tokens(opened.database).list(None))

    owned = open_path / "owned"
    owned.mkdir()
    os.chown(owned, NOBODY, NOBODY)
    assert main(["token", "add", "--store", str(owned / "store.db")]) == 0
    assert usable(owned / "store.db")

    # No such user, or a directory of root: the command says what to do.
    monkeypatch.setattr(token_command, "_SERVER_USER", "nobody-of-that-name")
    assert main(["token", "add", "--store", str(open_path / "fresh" / "store.db")]) == 0
    assert f"chown -R USER: {open_path / 'fresh'}" in capsys.readouterr().err
    monkeypatch.setattr(token_command, "_SERVER_USER", pwd.getpwuid(NOBODY).pw_name)
    assert main(["token", "add", "--store", str(open_path / "of-root.db")]) == 0
    assert f"chown -R USER: {open_path}" in capsys.readouterr().err
    assert open_path.stat().st_uid == 0

    # A directory that did not exist goes to the user of the unit.
    assert main(["token", "add", "--store", str(open_path / "new" / "store.db")]) == 0
    assert usable(open_path / "new" / "store.db")


# Fault 19: a node's token file with mode 0644 got the advice for the server's.
def test_the_advice_about_a_mode_depends_on_whose_token_it_is(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("x" * 40)
    file.chmod(0o644)
    with pytest.raises(TokenError, match=f"chmod 600 {file}.*jobsight token rotate"):
        read_token(file)
    with pytest.raises(TokenError, match="the server creates a new one"):
        read_token(file, own=True)
    file.write_text("short")
    file.chmod(0o600)
    with pytest.raises(TokenError, match="jobsight token add"):
        read_token(file)
