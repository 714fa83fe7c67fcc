"""The receiver's HTTP: what it takes, what it refuses, and that nothing half is ever kept."""

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobsight.sams.receiver import IncomingDirectory, PostReceiver
from tests.examples import examples
from tests.sams.documents import START, document, encode


class Client:
    """Speaks to the application without a network in between."""

    def __init__(self, folder: Path, hash_size: int = 0, **limits: Any) -> None:
        self.folder = folder
        self.application = PostReceiver(IncomingDirectory(folder, hash_size), **limits)

    def send(
        self, path: str | bytes, body: bytes = b"", method: str = "POST", **more: Any
    ) -> tuple[int, str, dict[str, str]]:
        return asyncio.run(self.sending(path, body, method, **more))

    async def sending(
        self,
        path: str | bytes,
        body: bytes = b"",
        method: str = "POST",
        announced: int | None = None,
        pieces: int = 1,
    ) -> tuple[int, str, dict[str, str]]:
        raw = path.encode() if isinstance(path, str) else path
        size = max(1, -(-len(body) // pieces))
        bodies = [body[place : place + size] for place in range(0, len(body), size)] or [b""]
        messages = [
            {"type": "http.request", "body": piece, "more_body": number < len(bodies)}
            for number, piece in enumerate(bodies, 1)
        ]
        answers: list[Any] = []

        async def receive() -> Any:
            await asyncio.sleep(0)
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            answers.append(message)

        length = len(body) if announced is None else announced
        scope = {
            "type": "http",
            "method": method,
            "path": raw.decode("latin-1"),
            "raw_path": raw,
            "headers": [(b"content-length", str(length).encode())],
        }
        await self.application(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in answers[0]["headers"]}
        return answers[0]["status"], answers[1]["body"].decode(), headers

    def names(self) -> list[str]:
        return sorted(
            str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()
        )


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "in", 1000)


def test_a_record_is_kept_as_it_came(client: Client) -> None:
    body = encode(document(1234))
    assert client.send("/1234/1234.n1.json", body, pieces=7)[:2] == (200, "OK")
    assert client.names() == ["1/1234.n1.json"]
    assert (client.folder / "1/1234.n1.json").read_bytes() == body


def test_the_address_of_sams_documentation_works_too(client: Client) -> None:
    """It puts the hash of the job id where the receiver has the job id."""
    assert client.send("/1/1234.n1.yaml", encode(document(1234)))[0] == 200
    assert client.names() == ["1/1234.n1.yaml"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_other_methods(client: Client, method: str) -> None:
    status, _, headers = client.send("/1/x", method=method)
    assert (status, headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "path",
    ["/", "/1", "/1/", "/x/f", "/1/a/b", "/1/a%2Fb", "/1/..%2f..%2fetc", "/-1/f", "/1.5/f", "//f",
     "/%D9%A3/f", "/" + "9" * 30 + "/f"],
)  # fmt: skip
def test_other_places(client: Client, path: str) -> None:
    assert client.send(path, encode(document(1)))[0] == 404
    assert client.send(path, method="GET")[0] == 404


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        ".hidden.json",
        "a\nb",
        "a\x00b",
        "a\x7f",
        "a\\..\\b",
        "x" * 221,
        "a\N{LINE SEPARATOR}b",
    ],
)
def test_names_that_are_none(client: Client, name: str) -> None:
    status, sentence, _ = client.send(f"/1/{quote(name)}", encode(document(1)))
    assert status == 400
    assert "file name" in sentence
    assert client.names() == []
    assert client.send(b"/1/%ff%fe", encode(document(1)))[0] == 400


@pytest.mark.parametrize("name", ["%(jobid)s %%", 'say "x"', "\N{PILE OF POO}.json", "a b'c;d"])
def test_odd_names_that_are_names(client: Client, name: str) -> None:
    assert client.send(f"/1/{quote(name)}", encode(document(1)))[0] == 200
    assert client.names() == [f"0/{name}"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not a SAMS record"),
        (b"hello", "not a SAMS record"),
        (encode(document(1))[:-1], "not a SAMS record"),
        (encode(document(2)), "job 2, but it was posted for job 1"),
    ],
)
def test_bodies_that_are_no_record(client: Client, body: bytes, reason: str) -> None:
    status, sentence, _ = client.send("/1/1.n1.json", body)
    assert status == 400
    assert reason in sentence
    assert client.names() == []


def test_a_record_without_owner_or_programs_is_kept(client: Client) -> None:
    """The aggregator refuses it with a reason, or completes it."""
    assert client.send("/1/1.n1.json", encode(document(1, info=None, execs={})))[0] == 200
    invalid = encode(document(1)).replace(b"100.5", b"-1")
    assert client.send("/1/2.n1.json", invalid)[0] == 200


def test_sizes_are_bounded_while_reading(tmp_path: Path) -> None:
    client = Client(tmp_path, max_size=4096, memory_budget=4096)
    assert client.send("/1/x", b" " * 5000, pieces=9)[0] == 413
    assert client.send("/1/x", b" " * 5000, pieces=9, announced=10)[0] == 413
    assert client.send("/1/x", b"", announced=2**50)[0] == 413

    async def many() -> list[int]:
        posts = (client.sending("/1/x", b" " * 4000, pieces=50) for _ in range(5))
        return [status for status, _, _ in await asyncio.gather(*posts)]

    assert 503 in asyncio.run(many())
    assert client.names() == []
    # What was held has been given back.
    assert client.send("/1/x", encode(document(1)))[0] == 200


def test_a_client_that_leaves_or_stalls_keeps_nothing(tmp_path: Path) -> None:
    client = Client(tmp_path, read_timeout=0.05)

    async def cut() -> int:
        started: list[Any] = []

        async def receive() -> Any:
            if started:
                await asyncio.sleep(60)
            started.append(1)
            return {"type": "http.request", "body": b"{", "more_body": True}

        answers: list[Any] = []

        async def send(message: Any) -> None:
            answers.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/1/x", "raw_path": b"/1/x", "headers": [],
        }  # fmt: skip
        await client.application(scope, receive, send)
        return int(answers[0]["status"])

    assert asyncio.run(cut()) == 408
    assert client.names() == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_full_disk_is_said_and_leaves_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    status, _, headers = client.send("/1/1.n1.json", encode(document(1)))
    assert status == 503
    assert int(headers["retry-after"]) > 0
    assert client.names() == []


def test_a_requeued_run_overwrites_nothing(client: Client) -> None:
    first, second = document(1), document(1, start=START + 9000)
    for made in (first, second, first, second):
        assert client.send("/1/1.n1.json", encode(made))[0] == 200
    assert client.names() == ["0/1.n1.20240101T123000Z.json", "0/1.n1.json"]
    assert (client.folder / "0/1.n1.json").read_bytes() == encode(first)


def test_many_records_of_one_name_need_no_search(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    link = os.link

    def counted(source: Path, target: Path, **options: Any) -> None:
        tried.append(target)
        link(source, target, **options)

    monkeypatch.setattr(os, "link", counted)
    bodies = [encode(document(1, execs=_execs(number))) for number in range(30)]
    for body in bodies + bodies:
        assert client.send("/1/1.n1.json", body)[0] == 200
    assert len(tried) <= 3 * len(bodies + bodies)
    kept = [path.read_bytes() for path in client.folder.rglob("*") if path.is_file()]
    assert sorted(kept) == sorted(bodies)


def test_the_longest_name_has_room_for_start_and_digest(client: Client) -> None:
    name = "n" * 215 + ".json"
    for number in range(3):
        assert client.send(f"/1/{name}", encode(document(1, execs=_execs(number))))[0] == 200
    assert len(client.names()) == 3


def test_posts_of_one_file_at_once_do_not_mix(client: Client) -> None:
    bodies = [encode(document(1, execs=_execs(number))) for number in range(12)]

    async def all_at_once() -> list[int]:
        posts = (client.sending("/1/1.n1.json", body, pieces=20) for body in bodies * 2)
        return [status for status, _, _ in await asyncio.gather(*posts)]

    assert asyncio.run(all_at_once()) == [200] * 24
    kept = [path.read_bytes() for path in client.folder.rglob("*") if path.is_file()]
    assert sorted(kept) == sorted(bodies)


def _execs(number: int) -> dict[str, Any]:
    return {f"/bin/{number}/{place}": {"user": 1.0, "system": 0.0} for place in range(200)}


@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.text(max_size=40) | st.text("./\\%\x00\n a", max_size=12), st.booleans())
def test_no_name_leads_out_of_the_folder(client: Client, name: str, whole: bool) -> None:
    path = f"/1/{quote(name.encode('utf-8', 'surrogatepass'))}"
    body = encode(document(1)) if whole else b"{}"
    status, sentence, _ = client.send(path, body)
    assert status in (200, 400, 404)
    assert sentence
    root = client.folder.parent
    found = [path for path in root.rglob("*") if path.is_file()]
    assert all(path.parent == client.folder / "0" for path in found)
    assert not any(path.name.startswith(".") for path in found)


# Fault 17: SAMS creates base_path, the receiver refused to start without it.
def test_a_missing_base_path_is_created(tmp_path: Path) -> None:
    config = tmp_path / "receiver.yaml"
    command = [sys.executable, "-m", "jobsight.cli.compat.post_receiver", "--config", str(config)]
    base_path = tmp_path / "spool" / "in"
    config.write_text(f"sams.post-receiver: {{base_path: {base_path}, port: 0}}\n")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        assert "listen" in receiver.stdout.readline()
        assert base_path.is_dir()
        receiver.terminate()
    (tmp_path / "file").touch()
    config.write_text(f"sams.post-receiver: {{base_path: {tmp_path}/file/in, port: 0}}\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot be created: Not a directory" in done.stderr
