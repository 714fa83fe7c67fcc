"""The two people whose jobs the tests run."""

import pwd
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bed import process
from tests.bed.errors import BedError

# In the passwd entry itself, so that after any crash it is still known whose users these are.
COMMENT = "jobsight test bed"


@dataclass(frozen=True)
class Person:
    user: str
    account: str


ALICE = Person("jobsight-alice", "alpha")
BOB = Person("jobsight-bob", "beta")
PEOPLE = (ALICE, BOB)


def find(user: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        return None


def create() -> None:
    for person in PEOPLE:
        if find(person.user) is None:
            _run("useradd", "--create-home", "--shell", "/bin/bash", "--comment", COMMENT,
                 person.user)  # fmt: skip


def remove() -> None:
    """Remove those that a bed created, with the processes they still have."""
    for person in PEOPLE:
        entry = find(person.user)
        if entry is None or entry.pw_gecos != COMMENT:
            continue
        process.end(process.all_pids(), partial(_owned_by, entry.pw_uid))
        _run("userdel", "--remove", person.user)


def _owned_by(uid: int, pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid == uid
    return False


def _run(*argv: str) -> None:
    answer = subprocess.run(
        argv, capture_output=True, text=True, check=False, start_new_session=True
    )
    # 12: the user is gone, and something in the home directory or the mail spool is not.
    if answer.returncode not in (0, 12):
        raise BedError(f"{argv[0]} failed: {answer.stderr.strip()}")
