"""A store into another place, SQLite to PostgreSQL or the other way."""

from __future__ import annotations

from contextlib import closing

from jobsight.errors import StoreError
from jobsight.store.database import open_database
from jobsight.store.progress import Progress, silent
from jobsight.store.store import Store
from jobsight.store.stream import Opening, load, read, refuse_content, snapshot


def move(source: str, target: str, progress: Progress = silent) -> Opening:
    """Bring all rows of a store into an empty one; the first stays as it is.

    The target is filled in one transaction: after a failure it is as empty as before.
    """
    with Store.open(source) as store, closing(open_database(target)) as database:
        if database.where == store.database.where:
            raise StoreError(f"{source} and {target} are the same store")
        with database.read() as connection:
            # Before the rows are read, which may take long.
            refuse_content(connection, database.where)
        with snapshot(store.database) as connection:
            opening, blocks = read(connection)
            load(database, opening, blocks, progress)
    return opening
