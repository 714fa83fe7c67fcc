"""Replies are kept as they came, for as long as was queried, and can be read again."""

import json
import os
from pathlib import Path

import pytest

from jobsight.scheduler.records import SourceError
from jobsight.scheduler.sources.json import JsonSource
from jobsight.scheduler.sources.recorded import RecordedSource
from jobsight.scheduler.sources.replies import Layout, Replies, read_chunks, read_rows
from jobsight.scheduler.sources.text import TextSource
from tests.scheduler import shapes
from tests.scheduler.sources.test_sources import JOB, STEP, Tools


def kept(folder: Path, days: float = 1, limit: int = 2**20) -> Replies:
    return Replies(folder, "h/c", days, limit)


def test_json_and_text_are_read_again(tmp_path: Path) -> None:
    replies = kept(tmp_path)
    document = json.dumps(shapes.reply(shapes.new_accounting())).encode()
    live = JsonSource("hpc", run=lambda command, timeout: [document], replies=replies)
    as_json = live.accounting(0, 1).records
    again = RecordedSource("hpc", replies.directory)
    assert again.accounting(0, 2**62).records == as_json
    tools = Tools(JOB | {"JobName": b"a\n|\xff"}, STEP)
    rows = TextSource("hpc", run=tools, replies=replies).accounting_of([12]).records
    both = RecordedSource("hpc", replies.directory).accounting(0, 2**62).records
    assert sorted(both, key=str) == sorted(as_json + rows, key=str)
    assert replies.directory.stat().st_mode & 0o077 == 0


def test_a_reply_that_breaks_off_is_not_kept(tmp_path: Path) -> None:
    replies = kept(tmp_path)

    for chunk in replies.keep("sacct", [b"whole"]):
        assert chunk == b"whole"
    stream = replies.keep("sacct", iter([b"half", b"other"]))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    (file,) = os.listdir(replies.directory)
    assert b"".join(read_chunks(replies.directory / file)) == b"whole"


def test_old_ones_and_too_many_go(tmp_path: Path) -> None:
    now = 1_000_000.0
    replies = Replies(tmp_path, "c", 1, 600, clock=lambda: now)
    data = os.urandom(250)
    for hours in (50, 3, 2, 1):
        list(replies.keep("sacct", [data]))
        newest = max(replies.directory.iterdir(), key=lambda file: file.stat().st_ino)
        moment = now - hours * 3600
        os.utime(newest, (moment, moment))
    now += 3600
    list(replies.keep("squeue", [b"x"]))
    left = sorted(file.name.partition("-")[0] for file in replies.directory.iterdir())
    assert left == ["sacct", "sacct", "squeue"]


def test_a_folder_that_cannot_be_written_costs_only_the_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "h%2Fc").write_text("in the way")
    assert list(kept(tmp_path).keep("sacct", [b"a", b"b"])) == [b"a", b"b"]
    assert "cannot be written" in caplog.text


def test_damaged_files_are_named(tmp_path: Path) -> None:
    replies = kept(tmp_path)
    list(replies.keep("sacct", [b"row"], Layout(["A"], "~")))
    (file,) = replies.directory.iterdir()
    layout, chunks = read_rows(file)
    assert (layout.columns, b"".join(chunks)) == (["A"], b"row")
    data = file.read_bytes()
    for odd in (b"", data[:10], b"x" * 30):
        file.write_bytes(odd)
        with pytest.raises(SourceError, match=file.name):
            list(read_rows(file)[1])
