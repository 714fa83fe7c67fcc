"""One connection of the server: knows the client's certificate, and waits for nobody for ever."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

#: In the state of a request: whether the client showed a certificate, which TLS has verified.
CERTIFICATE_IN_STATE = "certificate"
#: Seconds for the head of the first request.
_HEAD_TIME = 30.0


class Connection(H11Protocol):
    """uvicorn's connection; that one says nothing of certificates and gives a head all the time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        shown = bool(transport.get_extra_info("peercert"))
        self.app_state = {**self.app_state, CERTIFICATE_IN_STATE: shown}
        self._head_timer = self.loop.call_later(_HEAD_TIME, self._close_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.cancel()
        super().connection_lost(exc)

    def _close_silent(self) -> None:
        if cast(object, self.cycle) is None:
            self.transport.close()
