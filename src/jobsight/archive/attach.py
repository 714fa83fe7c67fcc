"""Lets a store read what was pruned from the archive of the settings."""

from __future__ import annotations

from functools import cache

from jobsight.config.settings import ArchiveSettings
from jobsight.store.read.external import Archive
from jobsight.store.store import Store


def attach(store: Store, settings: ArchiveSettings) -> None:
    """Give a store its archive, where there is one."""
    if settings.location is None:
        return

    # Arrow is large: it is loaded when the first pruned run is looked at.
    @cache
    def open_reader() -> Archive:
        from jobsight.archive.place import open_place
        from jobsight.archive.reader import Reader

        return Reader(open_place(settings))

    store.archive = open_reader
