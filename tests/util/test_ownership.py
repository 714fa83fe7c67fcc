"""Files and directories that another user could have placed, or can replace."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from jobsight.agent.control import Control
from jobsight.config import paths
from jobsight.config.settings import Settings
from jobsight.errors import JobsightError
from jobsight.server.serve import BackgroundServer
from jobsight.transport.running_server import (
    RunningServer,
    TokenError,
    announced,
    read_running_server,
    read_token,
)
from jobsight.transport.spool import Spool
from jobsight.util.ownership import ForeignFile, check_directory, check_file

NOBODY = 65534
TOKEN = "a-token-for-the-tests-of-ownership"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "place"
    directory.mkdir(mode=0o700)
    return directory


def _settings(directory: Path, **server: object) -> Settings:
    store = {"location": str(directory / "store.db")}
    values = {"store": store, "server": {"port": 0, **server}, "software": {"interval": 0}}
    return msgspec.convert(values, Settings)


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_a_directory_that_only_its_owner_can_write_is_used(place: Path, mode: int) -> None:
    place.chmod(mode)
    check_directory(place, "the spool")


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
def test_a_directory_that_others_can_write_is_refused(place: Path, mode: int) -> None:
    place.chmod(mode)
    sentence = f"the spool {place} can be written by other users .mode {mode:04o}.* `chmod go-w"
    with pytest.raises(ForeignFile, match=sentence):
        check_directory(place, "the spool")


@pytest.mark.root
def test_a_group_may_write_only_if_it_is_the_owners_own(place: Path) -> None:
    place.chmod(0o770)
    check_directory(place, "the spool")
    # A group that no user is named after.
    os.chown(place, 0, 54_321)
    with pytest.raises(ForeignFile, match="can be written by other users"):
        check_directory(place, "the spool")


def test_above_the_directory_the_sticky_bit_is_enough(place: Path) -> None:
    below = place / "below"
    below.mkdir(mode=0o700)
    place.chmod(0o1777)
    check_directory(below, "the spool")
    place.chmod(0o777)
    with pytest.raises(ForeignFile, match=f"because they can write {place} .*`chmod o-w {place}`"):
        check_directory(below, "the spool")


@pytest.mark.root
def test_a_directory_of_another_user_is_refused_unless_root_uses_that_of_a_service(
    place: Path,
) -> None:
    os.chown(place, NOBODY, NOBODY)
    with pytest.raises(ForeignFile, match="belongs to user 65534; expected root"):
        check_directory(place, "the run directory")
    check_directory(place, "the directory of the store", own=False)


def test_a_file_that_others_can_write_is_refused(place: Path) -> None:
    file = place / "store.db"
    check_file(file, "the store")
    file.touch()
    file.chmod(0o644)
    check_file(file, "the store")
    file.chmod(0o666)
    with pytest.raises(ForeignFile, match=r"\(mode 0666\); run `chmod go-w"):
        check_file(file, "the store")


def test_a_spool_that_others_can_write_is_refused(place: Path) -> None:
    place.chmod(0o777)
    with pytest.raises(JobsightError, match=r"the spool .* can be written by other users"):
        Spool(place)
    assert list(place.iterdir()) == []


def test_a_run_directory_that_others_can_write_is_refused(place: Path) -> None:
    place.chmod(0o1777)
    with pytest.raises(JobsightError, match=r"the run directory .* can be written by other users"):
        Control(place, None, None)  # type: ignore[arg-type]
    with pytest.raises(JobsightError, match="can be written by other users"):
        paths.private_directory(place)
    assert list(place.iterdir()) == []


def test_a_server_refuses_the_directory_of_its_store(place: Path) -> None:
    place.chmod(0o777)
    with pytest.raises(JobsightError, match=r"the directory of the store .* `chmod go-w"):
        BackgroundServer(_settings(place)).__enter__()
    assert list(place.iterdir()) == []


def test_a_server_refuses_a_store_that_others_can_write(place: Path) -> None:
    (place / "store.db").touch()
    (place / "store.db").chmod(0o666)
    with pytest.raises(JobsightError, match=r"the store .* can be written by other users"):
        BackgroundServer(_settings(place)).__enter__()
    assert not (place / "token").exists()


def test_a_server_refuses_a_token_file_in_a_directory_that_others_can_write(
    place: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    settings = _settings(place, token_file=str(shared / "token"))
    with pytest.raises(JobsightError, match=r"the directory of the token file .* can be written"):
        BackgroundServer(settings).__enter__()
    assert not (shared / "token").exists()


@pytest.mark.root
def test_an_agent_refuses_a_token_file_of_another_user(place: Path) -> None:
    file = place / "alpha.token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert read_token(file) == TOKEN
    os.chown(file, NOBODY, NOBODY)
    with pytest.raises(TokenError, match="belongs to user 65534, who knows the token; expected"):
        read_token(file)
    # Root uses the token of a service user.
    os.chown(place, NOBODY, NOBODY)
    assert read_token(file) == TOKEN


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602])
def test_a_token_file_that_others_can_read_is_refused(place: Path, mode: int) -> None:
    file = place / "alpha.token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(mode)
    with pytest.raises(TokenError, match=f"run `chmod 600 {file}`"):
        read_token(file)


def _announced(place: Path) -> tuple[Path, RunningServer]:
    token = place / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    record = RunningServer(url="http://127.0.0.1:1", token_file=str(token), pid=os.getpid())
    return place / "server.json", record


def test_a_record_that_others_can_write_sends_no_token(place: Path) -> None:
    file, record = _announced(place)
    with announced(file, record):
        assert read_running_server(file) == record
        file.chmod(0o622)
        with pytest.raises(ForeignFile, match=r"the record of the running server .* `chmod go-w"):
            read_running_server(file)


@pytest.mark.root
def test_a_record_of_a_service_user_names_only_a_token_of_that_user(place: Path) -> None:
    file, record = _announced(place)
    with announced(file, record):
        os.chown(file, NOBODY, NOBODY)
        # The token is root's, and would go to an address of the other user's choice.
        with pytest.raises(
            ForeignFile, match=r"the token file .* belongs to user 0; expected user"
        ):
            read_running_server(file)
        os.chown(record.token_file, NOBODY, NOBODY)
        assert read_running_server(file) == record
