"""The spool: in order, bounded, numbered for ever, whatever happens to the disk or the agent."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from jobsight.model import Batch, JobPart, Series, Sighting
from jobsight.transport.spool import Spool, SpoolError
from jobsight.transport.wire import decode


def batch(size: int = 0) -> Batch:
    """A batch that does not compress: ``size`` bytes of noise in a column."""
    noise = array("q", os.urandom(size // 8 * 8))
    part = JobPart(
        sighting=Sighting("alpha", 1, "n1", "boot", 1),
        epoch="one",
        series=Series(array("q", range(len(noise))), {"a": noise}),
    )
    return Batch(
        cluster="alpha",
        node="n1",
        spool="",
        sequence=0,
        written=1,
        monotonic=1,
        agent="test",
        parts=[part],
    )


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool(tmp_path / "spool")
    yield opened
    opened.close()


def sequences(spool: Spool) -> list[int]:
    return [decode(data).sequence for _, data in spool.pending()]


def test_batches_are_numbered_and_come_in_order(spool: Spool) -> None:
    assert all(spool.put(batch()) for _ in range(12))
    assert sequences(spool) == list(range(1, 13))
    assert {decode(data).spool for _, data in spool.pending()} == {spool.uuid}


def test_what_is_done_is_gone(spool: Spool) -> None:
    spool.put(batch())
    spool.put(batch())
    name, _ = next(spool.pending())
    spool.done(name)
    assert sequences(spool) == [2]
    assert len(spool) == 1


def test_a_restart_continues_the_numbers_and_keeps_the_name(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    first.put(batch())
    first.put(batch())
    name, _ = next(first.pending())
    first.done(name)
    first.close()
    second = Spool(tmp_path)
    second.put(batch())
    assert second.uuid == first.uuid
    assert sequences(second) == [2, 3]
    second.close()


def test_numbers_go_on_after_everything_was_delivered(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    first.put(batch())
    for name, _ in first.pending():
        first.done(name)
    first.close()
    second = Spool(tmp_path)
    second.put(batch())
    assert sequences(second) == [2]
    second.close()


def test_a_number_is_never_given_twice_when_the_counter_is_old(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    first.put(batch())
    old = (tmp_path / "spool.json").read_bytes()
    first.put(batch())
    first.close()
    (tmp_path / "spool.json").write_bytes(old)
    second = Spool(tmp_path)
    second.put(batch())
    assert sequences(second) == [1, 2, 3]
    second.close()


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\x00", b"[]", b'{"uuid": 7}'])
def test_a_damaged_counter_starts_a_new_name(tmp_path: Path, damage: bytes) -> None:
    first = Spool(tmp_path)
    first.put(batch())
    first.close()
    (tmp_path / "spool.json").write_bytes(damage)
    second = Spool(tmp_path)
    second.put(batch())
    assert second.uuid != first.uuid
    # The old batch keeps the name it was written under.
    names = [decode(data).spool for _, data in second.pending()]
    assert names == [first.uuid, second.uuid]
    second.close()


def test_files_that_are_no_batches_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.batch").write_text("mine")
    (tmp_path / "README").write_text("mine")
    spool = Spool(tmp_path)
    spool.put(batch())
    assert len(spool) == 1
    spool.close()
    assert (tmp_path / "notes.batch").read_text() == "mine"


def test_the_oldest_are_dropped_and_counted_when_it_is_full(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit=10_000)
    for _ in range(10):
        spool.put(batch(3000))
    assert spool.size <= 10_000
    assert spool.dropped == 10 - len(spool)
    assert sequences(spool) == list(range(11 - len(spool), 11))
    assert "was full" in spool.problem
    spool.close()
    again = Spool(tmp_path)
    assert again.dropped == spool.dropped
    again.close()


def test_a_second_agent_is_refused(spool: Spool) -> None:
    with pytest.raises(SpoolError, match=r"^the spool .* is in use by another agent$"):
        Spool(spool.directory)


def test_a_second_attempt_leaves_no_descriptor(spool: Spool) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SpoolError):
        Spool(spool.directory)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("obstacle", ["file", "counter is a directory"])
def test_a_place_that_cannot_be_used_is_said(tmp_path: Path, obstacle: str) -> None:
    place = tmp_path / "spool"
    if obstacle == "file":
        place.write_text("")
    else:
        (place / "spool.json").mkdir(parents=True)
    with pytest.raises(SpoolError, match=r"^the spool .* cannot be used: "):
        Spool(place)


def test_a_refused_batch_is_put_aside(spool: Spool) -> None:
    spool.put(batch())
    name, data = next(spool.pending())
    spool.refuse(name)
    assert (len(spool), spool.refused) == (0, 1)
    assert (spool.directory / "refused" / name).read_bytes() == data


def test_refused_batches_do_not_fill_the_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", limit=640_000)
    for _ in range(5):
        assert spool.put(batch(30_000))
        spool.refuse(next(spool.pending())[0])
    # An eighth of the spool, and the newest in any case.
    kept = sorted(path.name for path in (spool.directory / "refused").iterdir())
    assert kept == ["000000000004.batch", "000000000005.batch"]
    assert spool.put(batch(300_000))
    spool.refuse(next(spool.pending())[0])
    assert [path.name for path in (spool.directory / "refused").iterdir()] == ["000000000006.batch"]
    assert spool.refused == 6
    spool.close()


def test_a_batch_dropped_while_it_was_sent_may_be_refused(spool: Spool) -> None:
    spool.put(batch())
    name, _ = next(spool.pending())
    (spool.directory / name).unlink()
    spool.refuse(name)
    assert len(spool) == 0


def test_an_empty_spool_removes_itself_and_a_full_one_stays(tmp_path: Path) -> None:
    empty, full, aside = (Spool(tmp_path / name) for name in ("empty", "full", "aside"))
    full.put(batch())
    aside.put(batch())
    aside.refuse(next(aside.pending())[0])
    assert [empty.remove(), full.remove(), aside.remove()] == [True, False, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["aside", "full"]


def test_a_spool_removed_under_the_eyes_of_another_is_made_anew(tmp_path: Path) -> None:
    """Many open and remove the same place at once, as jobs that start together do."""
    errors: list[BaseException] = []

    def open_and_remove() -> None:
        try:
            for _ in range(50):
                with suppress(SpoolError):
                    Spool(tmp_path / "spool").remove()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=open_and_remove) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_putting_and_delivering_at_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit=20_000)
    seen: list[int] = []
    ended = threading.Event()

    def deliver() -> None:
        while not ended.is_set() or len(spool):
            for name, data in spool.pending():
                seen.append(decode(data).sequence)
                spool.done(name)

    thread = threading.Thread(target=deliver)
    thread.start()
    for _ in range(100):
        spool.put(batch(1000))
    ended.set()
    thread.join()
    assert seen == sorted(set(seen))
    assert len(seen) + spool.dropped >= 100
    spool.close()


@pytest.mark.parametrize("again", range(3))
def test_killed_in_the_middle_of_a_put(tmp_path: Path, again: int) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.transport.test_spool import batch;"
        "from jobsight.transport.spool import Spool; spool = Spool(Path(sys.argv[1]));"
        "print('ready', flush=True)\n"
        "while True: spool.put(batch(50_000))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent.parent,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.05 + again * 0.013)
        child.send_signal(signal.SIGKILL)
    (tmp_path / ".000000099999.batch.new").write_bytes(b"half of")
    spool = Spool(tmp_path)
    found = sequences(spool)
    assert found == list(range(1, len(found) + 1))
    spool.put(batch())
    assert sequences(spool)[-1] == len(found) + 1
    assert not list(tmp_path.glob(".*.new"))
    spool.close()


def test_a_write_cut_short_by_the_kernel_is_no_batch(spool: Spool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores SIGXFSZ, so the kernel takes a part and then says no.
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        assert spool.put(batch(50_000)) is False
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert spool.dropped == 1
    assert "File too large" in spool.problem
    assert spool.put(batch())
    assert sequences(spool) == [2]


@pytest.mark.root
def test_a_full_disk_drops_and_counts_and_the_next_room_is_used(tmp_path: Path) -> None:
    script = f"""
import os, sys
from pathlib import Path
from tests.transport.test_spool import batch, sequences
from jobsight.transport.spool import Spool
folder = Path({str(tmp_path)!r})
spool = Spool(folder / "spool")
put = [spool.put(batch(40_000)) for _ in range(10)]
assert True in put and False in put, put
assert spool.dropped == put.count(False)
assert "No space left" in spool.problem, spool.problem
whole = sequences(spool)
for name, _ in spool.pending():
    spool.done(name)
assert spool.put(batch(30_000))
assert sequences(spool) == [11]
spool.close()
again = Spool(folder / "spool")
assert again.dropped == put.count(False)
"""
    command = 'mount -t tmpfs -o size=256k jobsight-test "$1" && exec "$2" -c "$3"'
    unshared = ("unshare", "--mount", "/bin/sh", "-c", command, "sh")
    ended = subprocess.run(
        [*unshared, str(tmp_path), sys.executable, script],
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.root
def test_another_user_gets_nothing(spool: Spool) -> None:
    spool.put(batch())
    assert spool.directory.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in spool.directory.iterdir())


def test_the_counter_is_json_that_a_person_can_read(spool: Spool) -> None:
    spool.put(batch())
    assert json.loads((spool.directory / "spool.json").read_text())["next"] == 2
