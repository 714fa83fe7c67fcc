"""``jobsight user`` and tokens of users on the command line."""

import json
from pathlib import Path

import pytest

from jobsight.access.passwords import verify_password
from jobsight.cli.main import main
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.audit import AuditLog
from jobsight.store.accounts.privacy import erase_user, export_user
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.store import Store
from tests.server.batches import batch
from tests.software.rule_sets import PLAIN
from tests.store.contents import assert_sound
from tests.store.sums import sum_up_everything


@pytest.fixture
def location(tmp_path: Path) -> str:
    with Store.open(tmp_path / "store.db") as store:
        store.write(batch(12))
        store.write(batch(13, name="[other]", user="bob", state="FAILED", exit_code=7))
    return str(tmp_path / "store.db")


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("correct horse battery\nrest\n")
    file.chmod(0o600)
    return file


def run(location: str, *arguments: object) -> int:
    return main(["user", *map(str, arguments), "--store", location])


def test_an_account_from_creation_to_the_end(
    location: str, password: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    added = ("add", "mia", "--role", "mentor", "--account", "physics", "--account", "chemistry")
    assert run(location, *added, "--password-file", password) == 0
    with Store.open(location) as store:
        account = UserAccounts(store.database).get("mia")
        assert (account.role, account.accounts) == ("mentor", ("chemistry", "physics"))
        assert verify_password(account.password_hash, "correct horse battery")
        assert not verify_password(account.password_hash, "correct horse battery\nrest")
    assert run(location, "role", "mia", "--role", "staff") == 0
    assert run(location, "disable", "mia") == 0
    capsys.readouterr()
    assert run(location, "list", "--json") == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["role"], shown["accounts"]) == ("mia", "staff", [])
    assert shown["disabled"] is not None
    assert "argon2" not in json.dumps(shown)
    assert run(location, "enable", "mia") == 0
    password.write_text("another password")
    assert run(location, "passwd", "mia", "--password-file", password) == 0
    with Store.open(location) as store:
        account = UserAccounts(store.database).get("mia")
        assert verify_password(account.password_hash, "another password")
    assert run(location, "list") == 0
    out = capsys.readouterr().out
    assert "mia" in out
    assert "staff" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "mia"), "--role: is required for add"),
        (("add", "mia", "--role", "mentor"), "--account: is required for a mentor"),
        (("add", "mia", "--role", "staff", "--account", "a"), "the role staff has no accounts"),
        (("add", "m a", "--role", "user"), "is not a user name"),
        (("list", "mia"), "expected: jobsight user list"),
        (("disable",), "expected: jobsight user disable NAME"),
        (("disable", "mia"), "there is no user account 'mia'"),
        (("passwd", "mia"), "--password-file: is required for passwd"),
        (("disable", "mia", "--role", "user"), "--role: is for add and role, not for disable"),
        (("erase", "alice"), "repeat the command with --yes"),
        (("erase", "nobody", "--yes"), "the store has nothing about a user 'nobody'"),
        (("export", "nobody"), "the store has nothing about a user 'nobody'"),
        (("add", "mia", "--role", "king"), "expected one of user, coordinator"),
    ],
)
def test_mistakes_are_one_sentence(
    location: str, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(location, *arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_password_files(location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content, mode, words in (
        ("short", 0o600, "has 5 characters; 10 to 1000"),
        ("long enough", 0o644, "can be read by others"),
        (b"\xff" * 12, 0o600, "is not UTF-8"),
        (None, 0, "cannot be read: No such file"),
    ):
        file = tmp_path / "p"
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
            file.chmod(mode)
        assert run(location, "add", "mia", "--role", "user", "--password-file", file) == 2
        assert words in capsys.readouterr().err


def test_an_export_has_what_the_store_knows(location: str) -> None:
    with Store.open(location) as store:
        UserAccounts(store.database).add("alice", "user", password_hash="secret")
        UserTokens(store.database).add("alice", "read", 10**15)
        found = list(export_user(store.database, "alice"))
    assert {record["table"] for record in found} >= {"user_accounts", "user_tokens", "runs"}
    assert [record["job_id"] for record in found if record["table"] == "runs"] == [12]
    text = json.dumps(found)
    assert "secret" not in text
    assert "bob" not in text


def test_erasing_keeps_the_sums_under_a_pseudonym(location: str) -> None:
    with Store.open(location) as store:
        UserAccounts(store.database).add("alice", "user")
        UserTokens(store.database).add("alice", "read", 10**15)
        log = AuditLog(store.database)
        log.record(user="alice", viewer="carol", subject="x")
        log.write()
        sum_up_everything(store, PLAIN)
        before = {run.info.job_id: run.cpu_time for run in store.runs()}
        erased = erase_user(store.database, "alice")
        assert erased.runs == 1
        assert {run.info.job_id: run.cpu_time for run in store.runs()} == before
        run = next(run for run in store.runs() if run.info.job_id == 12)
        assert (run.info.user, run.info.name, run.info.command) == (erased.pseudonym, None, None)
        assert store.runs(search="alice") == []
        assert_sound(store)
        with store.database.query() as transaction:
            for table in ("user_accounts", "user_tokens", "sessions", "audit_log", "preferences"):
                assert transaction.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
            for table in ("usage_by_day", "software_by_day", "usage_by_month"):
                users = transaction.execute(f'SELECT DISTINCT "user" FROM {table}').fetchall()
                assert {user for (user,) in users} == {"bob", erased.pseudonym}
        # The rollups go on by the new name.
        sum_up_everything(store, PLAIN)
        assert_sound(store)


def test_tokens_of_users(location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def token(*arguments: str) -> int:
        return main(["token", *arguments, "--store", location])

    assert token("add", "--user", "alice", "--scope", "read", "--expires", "90d") == 2
    assert "there is no user account 'alice'" in capsys.readouterr().err
    run(location, "add", "alice", "--role", "user")
    file = tmp_path / "token"
    assert (
        token("add", "--user", "alice", "--scope", "write", "--expires", "90d", "--file", str(file))
        == 0
    )
    assert file.stat().st_mode & 0o777 == 0o600
    with Store.open(location) as store:
        found = UserTokens(store.database).find(file.read_text().strip())
        assert found is not None
        assert (found[0].scope, found[1].name) == ("write", "alice")
    capsys.readouterr()
    assert token("list", "--user", "alice") == 0
    assert "write" in capsys.readouterr().out
    assert token("revoke", "1", "--user", "alice") == 0
    assert "was revoked" in capsys.readouterr().err
    for arguments, words in (
        (("add", "--user", "alice"), "--expires: is required"),
        (("add", "--user", "alice", "--expires", "500d"), "366 days at most"),
        (("add", "--scope", "read"), "--scope: is for tokens of users"),
        (("rotate", "1", "--user", "alice"), "expected: jobsight token add, list or revoke"),
        (("add", "--user", "alice", "--expires", "soon"), "expected 0 to 36,500 days, such as 90"),
    ):
        assert token(*arguments) == 2
        assert words in capsys.readouterr().err
