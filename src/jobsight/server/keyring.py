"""The clusters' tokens as a running server knows them: read every few seconds, not per request."""

from __future__ import annotations

import asyncio
import threading
import time

from starlette.concurrency import run_in_threadpool

from jobsight.errors import StoreError
from jobsight.model import SECOND
from jobsight.store.store import Store
from jobsight.store.tokens import ClusterToken, Tokens, digest_of

#: Seconds after which a token that was revoked by another process is refused here, too.
REVOKED_WITHIN = 5.0
#: Uses of all tokens are written together, once in so many seconds.
_USES_EVERY = 60.0


class Keyring:
    """Finds the cluster of a token, and remembers when each was used."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, ClusterToken] = {}
        self._read_at = -REVOKED_WITHIN
        # One question at a time: guesses then cost those who guess, and not the store.
        self._asking = asyncio.Lock()
        self._uses: dict[int, int] = {}
        self._uses_written = time.monotonic()
        self._mutex = threading.Lock()

    async def find(self, given: str) -> ClusterToken | None:
        """The token as it stands in the store; a new one is known at once."""
        digest = digest_of(given)
        if time.monotonic() - self._read_at >= REVOKED_WITHIN:
            async with self._asking:
                if time.monotonic() - self._read_at >= REVOKED_WITHIN:
                    self._known = await run_in_threadpool(Tokens(self._store.database).by_digest)
                    self._read_at = time.monotonic()
        if digest not in self._known:
            async with self._asking:
                found = await run_in_threadpool(Tokens(self._store.database).find, digest)
            if found is not None:
                self._known[digest] = found
        return self._known.get(digest)

    def note_use(self, token: ClusterToken) -> None:
        """A batch has been stored for whoever showed it; now and then that is written down."""
        with self._mutex:
            self._uses[token.id] = time.time_ns() // SECOND * SECOND
            if time.monotonic() - self._uses_written < _USES_EVERY:
                return
            self._uses_written = time.monotonic()
        self.write_uses()

    def write_uses(self) -> None:
        """Write down when tokens were used; a store that cannot take it gets it later."""
        with self._mutex:
            uses, self._uses = self._uses, {}
        if not uses:
            return
        try:
            Tokens(self._store.database).note_used(uses)
        except StoreError:
            with self._mutex:
                self._uses = uses | self._uses
