"""The position and health of a scrape: a small file in the directory of the store.

It only saves work. Without it, the scraper reads the configured history again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from urllib.parse import quote

import msgspec

from jobsight.config import paths
from jobsight.util.durable import write_atomically


class ScrapeState(msgspec.Struct, kw_only=True):
    """The position in the accounting, and the outcome of the last attempt."""

    cluster: str
    #: The accounting has been read up to this time.
    until: int | None = None
    attempted: int | None = None
    succeeded: int | None = None
    #: Why the last attempt failed; empty if it succeeded.
    reason: str = ""
    #: Which source is queried, and why it was chosen.
    source: str = ""
    #: In the last attempt: runs seen, runs that changed, fields that were not understood.
    seen: int = 0
    changed: int = 0
    problems: int = 0

    @property
    def healthy(self) -> bool:
        return self.succeeded is not None and not self.reason


def state_file(location: str, cluster: str) -> Path:
    return paths.store_directory(location) / f"scrape-{quote(cluster, safe='')}.json"


def read_state(location: str, cluster: str) -> ScrapeState:
    """The content of the file; a new state if it does not exist or cannot be read."""
    try:
        data = state_file(location, cluster).read_bytes()
        state = msgspec.json.decode(data, type=ScrapeState)
    except (OSError, msgspec.DecodeError):
        return ScrapeState(cluster=cluster)
    return state if state.cluster == cluster else ScrapeState(cluster=cluster)


def write_state(location: str, state: ScrapeState) -> None:
    """Replace the file; a failure is ignored, because it only costs work later."""
    with contextlib.suppress(OSError):
        write_atomically(
            state_file(location, state.cluster), msgspec.json.encode(state), sync=False
        )
