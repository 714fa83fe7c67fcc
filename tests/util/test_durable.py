from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.util.durable import (
    make_directories,
    place_new,
    sync_directory,
    temporary_name,
    write_atomically,
    write_temporary,
)


def fail(number: int) -> object:
    def raise_error(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return raise_error


@given(data=st.binary(max_size=300), sync=st.booleans())
def test_the_content_is_what_was_written(
    data: bytes, sync: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("durable") / "file"
    path.write_bytes(b"before")
    write_atomically(path, data, sync=sync)
    assert path.read_bytes() == data
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_the_mode_is_the_one_requested(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", b"x", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_both_the_file_and_its_directory_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
    )
    write_atomically(tmp_path / "file", b"x")
    assert synced == [False, True]
    write_atomically(tmp_path / "file", b"x", sync=False)
    assert synced == [False, True]


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    monkeypatch.setattr(os, call, fail(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"after")
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    path = tmp_path / "file"
    temporary_name(path).symlink_to(victim)
    write_atomically(path, b"x")
    assert victim.read_bytes() == b"precious"
    assert not path.is_symlink()


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    write_atomically(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_never_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", fail(errno.EPERM))
    path = tmp_path / "file"
    for data, placed in ((b"first", True), (b"second", False)):
        write_temporary(temporary_name(path), data)
        assert place_new(temporary_name(path), path) is placed
    assert path.read_bytes() == b"first"


def test_a_long_name_has_a_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    write_atomically(path, b"x")
    assert path.read_bytes() == b"x"


def test_a_file_system_that_cannot_sync_directories_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", fail(errno.EINVAL))
    sync_directory(tmp_path)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        sync_directory(tmp_path)


def test_directories_are_created_with_their_parents(tmp_path: Path) -> None:
    make_directories(tmp_path / "a" / "b" / "c")
    make_directories(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
