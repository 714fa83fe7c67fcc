"""The tokens of clusters, read from the store every few seconds and not for each batch."""

from __future__ import annotations

import asyncio
import threading
import time

from starlette.concurrency import run_in_threadpool

from jobsight.errors import StoreError
from jobsight.model import SECOND
from jobsight.store.store import Store
from jobsight.store.tokens import ClusterToken, Tokens, digest_of

#: Seconds until a token that another process revoked is refused here.
REVOKED_WITHIN = 5.0
#: Seconds between two writes of the times at which tokens were used.
_USES_INTERVAL = 60.0


class TokenCache:
    """The cluster tokens of the store, read every few seconds and not for each request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, ClusterToken] = {}
        self._read_at = -REVOKED_WITHIN
        # One query at a time: invalid tokens then delay each other and not the store.
        self._querying = asyncio.Lock()
        self._uses: dict[int, int] = {}
        self._uses_written = time.monotonic()
        self._mutex = threading.Lock()

    async def find(self, given: str) -> ClusterToken | None:
        """The stored token; one that was just created is found at once."""
        digest = digest_of(given)
        if time.monotonic() - self._read_at >= REVOKED_WITHIN:
            async with self._querying:
                if time.monotonic() - self._read_at >= REVOKED_WITHIN:
                    self._known = await run_in_threadpool(Tokens(self._store.database).by_digest)
                    self._read_at = time.monotonic()
        if digest not in self._known:
            async with self._querying:
                token = await run_in_threadpool(Tokens(self._store.database).find, digest)
            if token is not None:
                self._known[digest] = token
        return self._known.get(digest)

    def record_use(self, token: ClusterToken) -> None:
        """Record that a batch was stored with this token; written to the store periodically."""
        with self._mutex:
            self._uses[token.id] = time.time_ns() // SECOND * SECOND
            if time.monotonic() - self._uses_written < _USES_INTERVAL:
                return
            self._uses_written = time.monotonic()
        self.write_uses()

    def write_uses(self) -> None:
        """Write the times of use; if the store is not available, the next call writes them."""
        with self._mutex:
            uses, self._uses = self._uses, {}
        if not uses:
            return
        try:
            Tokens(self._store.database).record_use(uses)
        except StoreError:
            with self._mutex:
                self._uses = uses | self._uses
