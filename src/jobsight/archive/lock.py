"""One archiver at a time on a store, whoever started it and whatever way it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from jobsight.store.database import Database
from jobsight.util.service import AlreadyRunning, LockFile

#: Beside the families of jobsight.store.database.
_NUMBER = 28530


@contextmanager
def alone(database: Database) -> Iterator[None]:
    """Keep other archivers off the store; :class:`AlreadyRunning` where there is one."""
    what = f"an archiver of {database.where}"
    if not database.postgresql:
        lock = LockFile(Path(f"{database.where}.archiving"), what)
        try:
            yield
        finally:
            lock.close()
        return
    # A lock of the connection: it goes with the process.
    with database.engine.connect() as connection:
        taken = text(f"SELECT pg_try_advisory_lock({_NUMBER}, 0)")
        if not connection.scalar(taken):
            raise AlreadyRunning(f"{what} runs already")
        connection.commit()
        try:
            yield
        finally:
            connection.execute(text(f"SELECT pg_advisory_unlock({_NUMBER}, 0)"))
            connection.commit()
