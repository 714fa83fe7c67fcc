"""The attacks are what they say: programs that can be repeated, and a file system that hangs."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from jobsight.model import SECOND
from jobsight.transport import wire
from tests.hostile.attacks.batches import KINDS, Sender
from tests.hostile.attacks.fuse import GETATTR, Request, SilentFuse, available, private_mounts
from tests.hostile.attacks.requests import odd_request
from tests.waiting import wait_until

HERE = Path(__file__).parent
NOW = 1_794_860_000 * SECOND
PROGRAMS = sorted({path.stem for path in (HERE / "attacks").glob("[a-z]*.py")} - {"common", "fuse"})
#: They run as a user who cannot read the project's packages.
OF_USERS = {"names", "namespaces", "scrapes", "stalled", "storm"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_attack_is_a_program(program: str) -> None:
    options = ["-S"] if program in OF_USERS else []
    said = subprocess.run(
        [sys.executable, *options, "-m", f"tests.hostile.attacks.{program}", "--help"],
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert said.returncode == 0, said.stderr
    assert "--seed" in said.stdout
    assert "--seconds" in said.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_batches_of_a_random_seed_are_the_same(kind: str) -> None:
    one, other = (Sender(Random(1), "alpha", now=NOW) for _ in range(2))
    first = one.next(kind)
    assert first == other.next(kind)
    # Small on the wire, or nobody would need a limit on what they become.
    assert len(first) < 2**20
    if kind != "mutation":
        assert wire.decode(first).node


def test_the_requests_of_a_random_seed_are_the_same() -> None:
    one, other = Random(1), Random(1)
    assert [odd_request(one) for _ in range(50)] == [odd_request(other) for _ in range(50)]


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.root
@pytest.mark.skipif(not available(), reason="needs /dev/fuse")
def test_a_silent_file_system_answers_its_user_alone(public: Path) -> None:
    outcomes: list[object] = []

    def is_silent(request: Request) -> bool:
        return request.operation == GETATTR and request.uid != 6666

    def scene() -> None:
        # A thread of its own, because the namespace is the thread's and goes with it.
        private_mounts()
        content = Path("/bin/sleep").read_bytes()
        served = SilentFuse(public, content, silent=is_silent, allow_other=True)
        running = subprocess.Popen(
            [served.program, "1000"], user=6666, group=6666, extra_groups=[], cwd="/"
        )
        link = f"/proc/{running.pid}/exe"
        asked = subprocess.Popen(["stat", "--dereference", link], stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: served.unanswered)
            outcomes.append((os.readlink(link), asked.poll(), served.unanswered[0].uid))
        finally:
            running.kill()
            running.wait()
            served.close()
            # It waited for an answer, and gets an error at the end.
            outcomes.append(asked.wait(60))

    thread = threading.Thread(target=scene)
    thread.start()
    thread.join(120)
    assert outcomes == [(str(public / "program"), None, 0), 1]
