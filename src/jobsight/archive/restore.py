"""Restoring a run from the archive into the store, in addition to what the store has of it."""

from __future__ import annotations

import logging

from jobsight.archive.reader import Reader
from jobsight.store.read.archiving import is_complete
from jobsight.store.read.external import ArchivedRun
from jobsight.store.store import Store
from jobsight.store.write.archiving import restore_run

logger = logging.getLogger(__name__)


def restore(store: Store, reader: Reader, archived: ArchivedRun, into: int | None = None) -> bool:
    """Restore a run completely; False if nothing of it is missing. ``into`` is the id of a run
    whose start has changed since it was archived."""
    if into is None and is_complete(store.database, archived):
        return False
    restore_run(
        store.database,
        archived,
        reader.run(archived),
        list(reader.nodes(archived)),
        reader.rows(archived, "executables"),
        reader.rows(archived, "steps"),
        reader.rows(archived, "gpus"),
        reader.rows(archived, "findings"),
        into,
    )
    logger.info("job %d of %s restored from %s", archived.job_id, archived.cluster, archived.file)
    return True
