"""Agents of an older or a newer version than the server: their batches are stored.

The files in ``tests/data/batches`` are the two batches of a job, as an agent of that version sent
them. Add those of a version when it is released (``scripts/record-batches``), and leave the older
ones.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

import jobsight
from jobsight.model import RunReference, Series
from jobsight.server.receiver import Receiver
from jobsight.store.store import Store
from jobsight.transport import wire
from jobsight.transport.wire import MAGIC, WireError
from tests.history import unpack_source

RECORDED = Path(__file__).parents[1] / "data" / "batches"
#: CPU time of the job that was recorded with each version, from its last batch.
CPU_TIMES = {"0.1.0": 33_923_783, "0.2.0": 37_265_212, "0.3.0": 34_464_087}
#: The schema that each released version writes. A version with another one is a new version, or
#: the packages would let an older program open a store that it cannot read.
SCHEMAS = {"0.2.0": "0001", "0.3.0": "0004"}
VERSIONS = sorted({file.name.rpartition("-")[0] for file in RECORDED.glob("*.batch")})


def recorded(version: str) -> list[bytes]:
    files = sorted(RECORDED.glob(f"{version}-*.batch"))
    return [file.read_bytes() for file in files]


def of_newer_agent(data: bytes) -> bytes:
    """The same batch with a field in every record that this version does not know."""
    body = zstandard.ZstdDecompressor().decompress(data[len(MAGIC) :])
    (length,) = struct.unpack_from("<I", body)
    header = msgspec.msgpack.encode(_with_news(msgspec.msgpack.decode(body[4 : 4 + length])))
    return MAGIC + zstandard.ZstdCompressor(write_content_size=True).compress(
        struct.pack("<I", len(header)) + header + body[4 + length :]
    )


#: Tables whose keys are names and not fields.
_TABLES = ("coverage", "tres")


def _with_news(value: Any) -> Any:
    if isinstance(value, dict):
        news = {key: inner if key in _TABLES else _with_news(inner) for key, inner in value.items()}
        return news | {"since_the_next_version": [1, {"more": None}]}
    if isinstance(value, list):
        return [_with_news(inner) for inner in value]
    return value


def read(store: Store) -> tuple[Any, ...]:
    run = store.find(RunReference.parse("1"))
    executables = {one.use.path: one.use.executions for one in store.executables(run.id)}
    return run.info.user, run.info.cpus, run.cpu_time, run.open_nodes, executables


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def test_there_are_batches_of_each_version() -> None:
    assert sorted(CPU_TIMES) == VERSIONS
    assert jobsight.__version__ in VERSIONS
    for version in VERSIONS:
        agents = {wire.decode(data).agent for data in recorded(version)}
        assert agents == {f"jobsight {version}"}


def test_another_schema_is_another_version(store: Store) -> None:
    assert SCHEMAS[jobsight.__version__] == store.info().version


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("newer", [False, True])
def test_batches_of_another_version_are_stored(store: Store, version: str, newer: bool) -> None:
    receiver = Receiver(store)
    for data in recorded(version):
        sent = of_newer_agent(data) if newer else data
        assert (sent == data) is not newer
        assert receiver.accept(sent).status == "stored"
    user, cpus, cpu_time, open_nodes, executables = read(store)
    assert (user, cpus, cpu_time, open_nodes) == ("root", 2, CPU_TIMES[version], 0)
    assert executables[b"/usr/bin/cksum"] == 3


def test_a_batch_of_another_format_is_refused_with_a_sentence(store: Store) -> None:
    data = recorded(VERSIONS[0])[0]
    with pytest.raises(WireError, match="does not start with JSB2"):
        Receiver(store).accept(b"JSB3" + data[4:])


#: Calls of the older version: stores the batches of a directory, and tells what its store has.
OLDER_SERVER = """
import json, sys
from pathlib import Path
import jobsight
from jobsight.model import RunReference
from jobsight.server.receiver import Receiver
from jobsight.store.store import Store

directory = Path(sys.argv[1])
batches = [file.read_bytes() for file in sorted(directory.glob("*.batch"))]
with Store.open(directory / "store.db") as store:
    receiver = Receiver(store)
    statuses = [receiver.accept(data).status for data in [*batches, batches[-1]]]
    run = store.find(RunReference.parse("1"))
    executables = {one.use.path.decode(): one.use.executions for one in store.executables(run.id)}
    job = [run.info.user, run.info.cpus, run.cpu_time, run.open_nodes]
print(json.dumps([jobsight.__version__, statuses, job, executables["/usr/bin/cksum"]]))
"""


def run_older_server(version: str, batches: list[bytes], directory: Path) -> Any:
    for number, data in enumerate(batches, 1):
        (directory / f"{number}.batch").write_bytes(data)
    source = unpack_source(version, directory / "tree")
    answer = call_older(source, "-c", OLDER_SERVER, str(directory))
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def call_older(source: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_a_server_of_the_version_before_stores_newer_batches(tmp_path: Path) -> None:
    """Those of this version, and one with the series of a node, which 0.2.0 does not know."""
    batch = wire.decode(recorded("0.3.0")[1])
    batch.sequence = 3
    batch.node_series = Series(array("q", [1, 2]), {"node.load.1m": array("d", [0.5, 1.5])})
    batches = [*recorded("0.3.0"), wire.encode(batch)]
    version, statuses, job, executions = run_older_server("0.2.0", batches, tmp_path)
    assert version == "0.2.0"
    assert statuses == ["stored", "stored", "stored", "duplicate"]
    assert (job, executions) == (["root", 2, CPU_TIMES["0.3.0"], 0], 3)


def test_a_store_of_the_version_before_is_migrated_and_refused_by_it_then(tmp_path: Path) -> None:
    run_older_server("0.2.0", recorded("0.2.0"), tmp_path)
    with Store.open(tmp_path / "store.db") as migrated:
        assert migrated.info().version == SCHEMAS[jobsight.__version__]
        user, _, cpu_time, _, executables = read(migrated)
        assert (user, cpu_time, executables[b"/usr/bin/cksum"]) == ("root", CPU_TIMES["0.2.0"], 3)
        assert Receiver(migrated).accept(recorded("0.2.0")[1]).status == "duplicate"
    answer = call_older(
        tmp_path / "tree" / "src", "-m", "jobsight.cli.main", "report", "--store",
        str(tmp_path / "store.db"),
    )  # fmt: skip
    assert answer.returncode != 0
    assert "has schema version 0004, expected 0001; nothing was changed" in answer.stderr
    assert "Traceback" not in answer.stderr
