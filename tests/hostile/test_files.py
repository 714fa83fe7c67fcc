"""Directories in which users write, and links that they put where root reads and writes records."""

import os
import re
from pathlib import Path

import msgspec
import pytest

from jobsight.agent.job import JobView
from jobsight.agent.outputs.file import FileOptions, FileOutput
from jobsight.cli.compat.collector import view_of
from jobsight.sams.inbox import Inbox, RecordFile
from jobsight.sams.receiver import IncomingDirectory
from jobsight.sams.settings import LoaderSettings
from tests.user import NOBODY

SECRET = b'{"password": "x"}'
DOCUMENTS = {"sams.sampler.Core": {"jobid": 2000, "node": "n1"}}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    directory = tmp_path / "victim"
    directory.mkdir(0o700)
    (directory / "1.n1.json").write_bytes(SECRET)
    return directory


@pytest.fixture
def view() -> JobView:
    view = view_of(2000, "n1")
    view.sighting = msgspec.structs.replace(view.sighting, job_id=2000)
    return view


def inbox(directory: Path) -> Inbox:
    (directory / "in" / "sub").mkdir(parents=True, exist_ok=True)
    return Inbox(
        LoaderSettings(
            name="file",
            in_path=directory / "in",
            archive_path=directory / "archive",
            error_path=directory / "error",
            pattern=re.compile(r".*\.json$"),
            max_size=1000,
        )
    )


@pytest.mark.parametrize("opened_before", [True, False])
def test_s16_a_directory_exchanged_for_a_link_leads_nowhere(
    tmp_path: Path, victim: Path, opened_before: bool
) -> None:
    incoming = inbox(tmp_path)
    (tmp_path / "in" / "sub" / "1.n1.json").write_bytes(b"mine")
    assert incoming.files() == [RecordFile("sub", "1.n1.json")]
    (tmp_path / "in" / "sub").rename(tmp_path / "in" / ".sub")
    (tmp_path / "in" / "sub").symlink_to(victim)
    if not opened_before:
        incoming = inbox(tmp_path)
    file = RecordFile("sub", "1.n1.json")
    # The file that was listed, or none.
    assert incoming.read(file) == (b"mine" if opened_before else None)
    if opened_before:
        incoming.refuse(file, "it is wrong")
        assert (tmp_path / "error" / "sub" / "1.n1.json").read_bytes() == b"mine"
    assert (victim / "1.n1.json").read_bytes() == SECRET
    assert os.listdir(victim) == ["1.n1.json"]


def test_s16_the_trees_of_moved_files_follow_no_link(tmp_path: Path, victim: Path) -> None:
    incoming = inbox(tmp_path)
    (tmp_path / "in" / "sub" / "2.n1.json").write_bytes(b"mine")
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "sub").symlink_to(victim)
    with pytest.raises(NotADirectoryError, match="sub is a symbolic link"):
        incoming.archive(RecordFile("sub", "2.n1.json"), 0)
    assert os.listdir(victim) == ["1.n1.json"]
    assert (tmp_path / "in" / "sub" / "2.n1.json").read_bytes() == b"mine"


def options(base: Path) -> FileOptions:
    return FileOptions(base_path=str(base), jobid_hash_size=1000, spool=str(base / "spool"))


def test_s18_a_planted_link_gets_no_record(tmp_path: Path, victim: Path, view: JobView) -> None:
    (tmp_path / "2").symlink_to(victim)
    with pytest.raises(NotADirectoryError, match="2 is a symbolic link"):
        FileOutput(options(tmp_path), view).write(view, DOCUMENTS)
    with pytest.raises(NotADirectoryError, match="2 is a symbolic link"):
        IncomingDirectory(tmp_path, 1000).write("2000.n1.json", 2000, b"{}")
    assert os.listdir(victim) == ["1.n1.json"]


@pytest.mark.root
def test_s18_a_directory_of_another_user_gets_no_record(tmp_path: Path, view: JobView) -> None:
    planted = tmp_path / "2"
    planted.mkdir()
    os.chown(planted, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match=f"2 belongs to user {NOBODY}"):
        FileOutput(options(tmp_path), view).write(view, DOCUMENTS)
    with pytest.raises(PermissionError, match=f"2 belongs to user {NOBODY}"):
        IncomingDirectory(tmp_path, 1000).write("2000.n1.json", 2000, b"{}")
    assert os.listdir(planted) == []
    # A base of that user is his to fill.
    os.chown(tmp_path, NOBODY, NOBODY)
    FileOutput(options(tmp_path), view).write(view, DOCUMENTS)
    assert os.listdir(planted) == ["2000.n1.json"]
