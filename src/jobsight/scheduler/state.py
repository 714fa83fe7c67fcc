"""How far a scraper has come, and how it fares: a small file beside the store.

It only saves work. Where it is lost, the scraper looks back over its whole history again.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import msgspec

from jobsight.config import paths


class ScrapeState(msgspec.Struct, kw_only=True):
    """What was reached, and what the last attempt said."""

    cluster: str
    #: The accounting has been read up to this time.
    until: int | None = None
    attempted: int | None = None
    succeeded: int | None = None
    #: Why the last attempt failed; empty where it did not.
    reason: str = ""
    #: Which source is asked, and why that one.
    source: str = ""
    #: Of the last attempt: runs seen, runs that were news, fields not understood.
    seen: int = 0
    changed: int = 0
    problems: int = 0

    @property
    def healthy(self) -> bool:
        return self.succeeded is not None and not self.reason


def state_file(location: str, cluster: str) -> Path:
    return paths.store_directory(location) / f"scrape-{quote(cluster, safe='')}.json"


def read_state(location: str, cluster: str) -> ScrapeState:
    """What the file says; a new state where there is none or it cannot be read."""
    try:
        data = state_file(location, cluster).read_bytes()
        state = msgspec.json.decode(data, type=ScrapeState)
    except (OSError, msgspec.DecodeError):
        return ScrapeState(cluster=cluster)
    return state if state.cluster == cluster else ScrapeState(cluster=cluster)


def write_state(location: str, state: ScrapeState) -> None:
    """Write it whole or not at all; a folder that cannot be written costs only work later."""
    file = state_file(location, state.cluster)
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(msgspec.json.encode(state))
        os.replace(partial, file)
    except OSError:
        partial.unlink(missing_ok=True)
