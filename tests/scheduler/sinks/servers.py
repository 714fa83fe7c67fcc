"""A server that speaks MongoDB's protocol, and one that speaks OpenSearch's; both on loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from osmem_server import OsmemServer
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.ports import free_port


@contextmanager
def mongodb(folder: Path, port: int | None = None, *, auth: bool = False) -> Iterator[str]:
    """The daemon of SecantusDB with its files in a directory; the address to connect to."""
    port = port or free_port()
    program = Path(sys.executable).with_name("secantusd-py")
    command = [program, "--port", str(port), "--storage-path", folder, "--log-level", "ERROR"]
    process = subprocess.Popen(
        [*command, *(["--auth"] if auth else [])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder.parent,
    )
    url = f"mongodb://127.0.0.1:{port}"
    try:
        _wait_for(url, process)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            # Now and then it waits for itself when it is to end; its files are whole.
            process.kill()
            process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + 60
    while time.monotonic() < ends and process.poll() is None:
        client: MongoClient[dict[str, object]] = MongoClient(url, serverSelectionTimeoutMS=500)
        try:
            client.admin.command("hello")
        except PyMongoError:
            time.sleep(0.1)
        else:
            return
        finally:
            client.close()
    raise AssertionError("the MongoDB server did not start")


@contextmanager
def opensearch() -> Iterator[str]:
    """An OpenSearch without anything in it."""
    with OsmemServer.start() as server:
        yield server.url
    # Its own class forgets these.
    for pipe in (server.process.stdin, server.process.stdout, server.process.stderr):
        if pipe is not None:
            pipe.close()
