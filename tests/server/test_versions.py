"""Agents of an older or a newer version than the server: their batches are stored.

The files in ``tests/data/batches`` are the two batches of a job, as an agent of that version sent
them. Add those of a version when it is released, and leave the older ones.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from jobsight.model import RunReference
from jobsight.server.receiver import Receiver
from jobsight.store.store import Store
from jobsight.transport.wire import MAGIC, WireError

RECORDED = Path(__file__).parents[1] / "data" / "batches"
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


def test_there_are_batches_of_a_version() -> None:
    assert "0.1.0" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("newer", [False, True])
def test_batches_of_another_version_are_stored(store: Store, version: str, newer: bool) -> None:
    receiver = Receiver(store)
    for data in recorded(version):
        sent = of_newer_agent(data) if newer else data
        assert (sent == data) is not newer
        assert receiver.accept(sent).status == "stored"
    user, cpus, cpu_time, open_nodes, executables = read(store)
    assert (user, cpus, cpu_time, open_nodes) == ("root", 2, 33_923_783, 0)
    assert executables[b"/usr/bin/cksum"] == 3


def test_a_batch_of_another_format_is_refused_with_a_sentence(store: Store) -> None:
    data = recorded(VERSIONS[0])[0]
    with pytest.raises(WireError, match="does not start with JSB2"):
        Receiver(store).accept(b"JSB3" + data[4:])
