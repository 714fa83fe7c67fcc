"""Records as files: whole or not there, never over another run's, and kept without room."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jobsight.agent.job import JobView
from jobsight.agent.outputs.file import FileOptions, FileOutput, current_fsuid, writing_as
from jobsight.agent.outputs.sams_record import encode_record, with_start
from jobsight.errors import ConfigError
from tests.agent.outputs.conftest import HOSTILE
from tests.waiting import wait_until

CORE = "sams.sampler.Core"
DOCUMENTS = {CORE: {"jobid": 1234, "node": "n1"}}


def options(folder: Path, **more: object) -> FileOptions:
    return FileOptions(base_path=str(folder / "data"), spool=str(folder / "spool"), **more)


def test_the_document_is_sorted_and_without_blanks(tmp_path: Path, view: JobView) -> None:
    output = FileOutput(options(tmp_path, jobid_hash_size=1000, exclude=["secret"]), view)
    output.store(view, "b", {"z": 1, "a": [1, 2.5, None]})
    output.store(view, "secret", {"x": 1})
    output.write(view, {"a": {"k": "v"}, "b": {}, "secret": {"x": 1}})
    file = tmp_path / "data" / "1" / "1234.n1.json"
    # The empty last message of b does not wipe out its sample.
    assert file.read_bytes() == b'{"a":{"k":"v"},"b":{"a":[1,2.5,null],"z":1}}'
    assert os.listdir(file.parent) == ["1234.n1.json"]


def test_0_is_no_subfolder(tmp_path: Path, view: JobView) -> None:
    FileOutput(options(tmp_path, jobid_hash_size=0), view).write(view, DOCUMENTS)
    assert (tmp_path / "data" / "1234.n1.json").is_file()


def test_another_run_never_overwrites(tmp_path: Path, view: JobView) -> None:
    for number in range(3):
        FileOutput(options(tmp_path), view).write(view, {CORE: {"run": number}})
    names = [
        "1234.n1.json",
        "1234.n1.20261115T043312Z.json",
        "1234.n1.20261115T043312Z.2.json",
    ]
    written = [json.loads((tmp_path / "data" / name).read_text())[CORE]["run"] for name in names]
    assert written == [0, 1, 2]
    assert sorted(names) == sorted(os.listdir(tmp_path / "data"))


def test_a_requeued_run_leaves_the_plain_name_to_the_first(tmp_path: Path, view: JobView) -> None:
    view.info.restart_count = 1
    FileOutput(options(tmp_path), view).write(view, DOCUMENTS)
    assert os.listdir(tmp_path / "data") == ["1234.n1.20261115T043312Z.json"]


@pytest.mark.parametrize("node", HOSTILE)
def test_a_node_cannot_lead_out_of_the_folder(tmp_path: Path, view: JobView, node: str) -> None:
    view.sighting = msgspec.structs.replace(view.sighting, node=node)
    output = FileOutput(options(tmp_path), view)
    output.write(view, DOCUMENTS)
    assert output.written is not None
    assert output.written.parent == tmp_path / "data"
    assert json.loads(output.written.read_bytes()) == DOCUMENTS


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_plain_json(text: str) -> None:
    encoded = encode_record({"s": {text: {"user": 1.5, "value": text, "nan": float("nan")}}})
    assert encoded.isascii()
    ((key, value),) = json.loads(encoded)["s"].items()
    # What is no UTF-8 has become text, which every database takes.
    key.encode()
    value["value"].encode()
    assert value["nan"] is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [("1.n.json", "1.n.T.json"), ("record", "record.T"), ("a.b/record", "a.b/record.T")],
)
def test_the_start_goes_before_the_suffix(name: str, expected: str) -> None:
    assert with_start(name, "T") == expected


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("%(user)s.json", r"%\(user\)s .* is not known; expected jobid, node, start"),
        ("%(jobid)", "has a % at character 1 that starts no placeholder"),
        ("../%(jobid)s", "leads out of base_path"),
        ("/etc/%(jobid)s", "leads out of base_path"),
    ],
)
def test_patterns_are_checked_at_the_start(pattern: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        FileOptions(file_pattern=pattern)


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_full_disk_is_an_error_and_the_record_is_kept(
    tmp_path: Path, view: JobView, size: int
) -> None:
    output = FileOutput(options(tmp_path), view)
    output.store(view, "big", {"text": "x" * size})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
        with pytest.raises(OSError, match="File too large"):
            output.write(view, DOCUMENTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert os.listdir(tmp_path / "data") == []
    place = output.save(view, DOCUMENTS)
    assert place is not None
    assert Path(place).is_file()
    # The next job's output finds room and writes what waited.
    view.sighting = msgspec.structs.replace(view.sighting, job_id=1235)
    FileOutput(options(tmp_path), view).write(view, DOCUMENTS)
    assert sorted(os.listdir(tmp_path / "data")) == ["1234.n1.json", "1235.n1.json"]
    assert not Path(place).exists()


@pytest.mark.root
def test_a_full_file_system(tmp_path: Path) -> None:
    """A tiny tmpfs, mounted where only the child sees it."""
    program = f"""
import errno, subprocess
from pathlib import Path
from jobsight.agent.outputs.file import FileOptions, FileOutput
from jobsight.cli.compat.collector import view_of
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tiny", {str(tmp_path)!r}], check=True)
view = view_of(1, "n1")
output = FileOutput(FileOptions(base_path={str(tmp_path)!r}, spool=""), view)
output.store(view, "big", {{"text": "x" * 200_000}})
try:
    output.write(view, {{}})
except OSError as error:
    assert error.errno == errno.ENOSPC, error
else:
    raise SystemExit("no error")
assert list(Path({str(tmp_path)!r}).iterdir()) == []
output.store(view, "big", {{}})
output.write(view, {{}})
assert [path.name for path in Path({str(tmp_path)!r}).iterdir()] == ["1.n1.json"]
"""
    subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", program],
        check=True,
    )


def test_kill_in_mid_write_leaves_no_half_record(tmp_path: Path) -> None:
    program = f"""
import itertools
from jobsight.agent.outputs.file import FileOptions, FileOutput
from jobsight.cli.compat.collector import view_of
for number in itertools.count(1):
    view = view_of(number, "n1")
    output = FileOutput(FileOptions(base_path={str(tmp_path)!r}, spool=""), view)
    output.store(view, "big", {{"text": "x" * 3_000_000}})
    output.write(view, {{}})
"""
    for pause in (0, 0.05, 0.1):
        child = subprocess.Popen([sys.executable, "-c", program])
        wait_until(lambda: list(tmp_path.iterdir()))
        time.sleep(pause)
        child.kill()
        child.wait()
        for file in tmp_path.glob("*.json"):
            json.loads(file.read_bytes())
            file.unlink()
        # What SAMS's loader would take are names that end in .json, hidden ones included.
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".json")]


#: A user that has no entry anywhere: the kernel knows numbers only.
STRANGER = 54321


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that other users can enter, unlike those of the tests."""
    with tempfile.TemporaryDirectory(prefix="jobsight-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.root
def test_files_are_written_as_another_user(open_folder: Path, view: JobView) -> None:
    data = open_folder / "data"
    data.mkdir(mode=0o700)
    os.chown(data, STRANGER, -1)
    output = FileOutput(options(open_folder, jobid_hash_size=100, write_as_uid=STRANGER), view)
    output.write(view, DOCUMENTS)
    file = data / "12" / "1234.n1.json"
    assert file.stat().st_uid == file.parent.stat().st_uid == STRANGER
    assert current_fsuid() == 0
    # And without root's rights: where that user may not write, nobody does.
    os.chown(data, 0, -1)
    with pytest.raises(PermissionError):
        output.write(view, DOCUMENTS)
    assert current_fsuid() == 0


@pytest.mark.root
def test_only_the_writing_thread_is_another_user() -> None:
    begun, look, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        begun.set()
        look.wait(60)
        seen.append(current_fsuid())

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(60)
    with writing_as(STRANGER):
        assert current_fsuid() == STRANGER
        look.set()
        thread.join()
    assert seen == [0]
    assert current_fsuid() == 0


@pytest.mark.root
def test_who_may_not_change_the_user_is_told() -> None:
    program = """
import errno, os
from jobsight.agent.outputs.file import writing_as
os.setuid(65534)  # after the import: nobody may not be able to read this checkout
try:
    with writing_as(0):
        raise SystemExit("written as root")
except PermissionError as error:
    assert error.errno == errno.EPERM
"""
    subprocess.run([sys.executable, "-c", program], check=True)
