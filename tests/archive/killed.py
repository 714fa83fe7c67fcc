"""An archiver that is killed at its first, second, third ... step, and then done again.

Run as a program: it forks for each attempt, so that a kill is a kill and costs no start.
"""

import os
import signal
import sys
import time
from typing import Any

import msgspec

from jobsight.archive import part, restore, storage, writer  # noqa: F401
from jobsight.config.settings import ArchiveSettings
from jobsight.store.store import Store
from jobsight.util.locks import AlreadyRunning
from tests.archive.months import NOVEMBER

#: What is stepped through: before each of these calls, and after.
STEPS = (
    (storage.TableFile, "__init__"),
    (storage.TableFile, "write"),
    (storage.Storage, "put"),
    (writer._Round, "_end_part"),
    (writer._Round, "_add"),
)


def kill_at(step: int) -> None:
    """Let this process kill itself at its n-th step."""
    passed = 0

    def stepping(function: Any) -> Any:
        def call(*positional: Any, **named: Any) -> Any:
            nonlocal passed
            passed += 1
            if passed == step:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*positional, **named)
            passed += 1
            if passed == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for owner, name in STEPS:
        setattr(owner, name, stepping(getattr(owner, name)))


def archive(location: str, settings: ArchiveSettings) -> None:
    for _ in range(1200):
        try:
            with Store.open(location) as store:
                writer.write_archive(store, storage.open_storage(settings), NOVEMBER)
            return
        except AlreadyRunning:
            # The database has not noticed yet that the one before us is dead.
            time.sleep(0.05)
    raise AssertionError("the lock outlived its holder")


def attempt(location: str, settings: ArchiveSettings, step: int | None) -> int:
    """Archive in a process of its own; how that ended."""
    child = os.fork()
    if not child:
        code = 1
        try:
            if step is not None:
                kill_at(step)
            archive(location, settings)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forget(location: str) -> int:
    """Let all runs wait for the archive again, in a process of its own."""
    child = os.fork()
    if not child:
        with Store.open(location) as store, store.database.write() as transaction:
            transaction.execute("UPDATE runs SET archived = NULL, archived_updated = NULL")
            transaction.execute("UPDATE runs SET archived_start = NULL")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(location: str, settings: ArchiveSettings, stride: int) -> int:
    """Kill at every step in turn; prints how many there were."""
    base = settings.location
    step = 1
    while True:
        settings.location = f"{base}/{step}"
        killed = attempt(location, settings, step)
        if killed == 0:
            print(step)
            return 0
        assert killed == -signal.SIGKILL, killed
        assert attempt(location, settings, None) == 0
        assert forget(location) == 0
        step += stride


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[2], type=ArchiveSettings)
    sys.exit(main(sys.argv[1], given, int(sys.argv[3])))
