"""The route of the agents' batches: who may send how much, and what is held at once.

The threads that write what agents have sent: what waits together is written together.

SQLite has one writer, so there one thread takes all batches that wait: they share a transaction,
and threads that would only take turns cost more than some of the work. PostgreSQL has many.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from fastapi import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from jobsight.config.settings import ServerSettings
from jobsight.errors import JobsightError
from jobsight.server.api.jobs import json_reply, refuse_unknown, replies
from jobsight.server.auth import CERTIFICATE_IN_STATE, TOKEN_IN_SCOPE, TokenCache, drain
from jobsight.server.limits import AT_ONCE, Busy, MemoryBudget, RateLimiter, weight
from jobsight.server.receiver import Receipt, Receiver
from jobsight.store.store import Store
from jobsight.store.tokens import ClusterToken
from jobsight.transport.wire import WireError

logger = logging.getLogger("jobsight.server")

#: Largest batches whose bytes may be in memory at once, before they are unpacked.
_BODIES = 8


#: A batch as it came, and the token of a cluster that it came with.
_Arrived: TypeAlias = tuple[bytes, ClusterToken | None]


class Ingest:
    """Takes batches over HTTP, within bounds of rate, size, time and memory."""

    def __init__(
        self,
        store: Store,
        keyring: TokenCache,
        settings: ServerSettings,
        copy: Callable[[bytes], None] | None = None,
    ) -> None:
        self._receiver = Receiver(store, copy)
        self._keyring = keyring
        self._limits = settings.ingest
        self._certificates = settings.tls_client_ca is not None
        self._behind_proxy = bool(settings.trusted_proxies)
        self._rates = RateLimiter(self._limits.requests_per_second, self._limits.bytes_per_second)
        self._room = MemoryBudget(self._limits.memory, self._limits.patience)
        parallel = store.writes_in_parallel
        self._writers = WriteQueue(
            self._accept, threads=AT_ONCE if parallel else 1, together=1 if parallel else AT_ONCE
        )
        self._bodies = 0

    async def take(self, request: Request) -> Receipt:
        """Store the batch of a request, or raise with the status and sentence of the refusal."""
        token: ClusterToken | None = request.scope.get(TOKEN_IN_SCOPE)
        self._notice_proxy(request)
        # Without a proxy's word the address is the proxy's: then its agents share one bound.
        agent = (token.id if token else None, request.client.host if request.client else "")
        try:
            self._check_certificate(request)
            self._check_rate(agent)
        except HTTPException:
            await drain(request.receive)
            raise
        data = await self._read(request)
        try:
            self._rates.charge(agent, len(data))
            return await self._store(data, token)
        finally:
            self._bodies -= len(data)

    def _check_certificate(self, request: Request) -> None:
        if self._certificates and not request.scope.get("state", {}).get(CERTIFICATE_IN_STATE):
            raise HTTPException(
                403,
                "batches need a client certificate that server.tls_client_ca has signed; "
                "on a node: agent.tls_certificate and agent.tls_key",
            )

    def _check_rate(self, agent: tuple[int | None, str]) -> None:
        seconds = self._rates.admit(agent)
        if seconds:
            raise HTTPException(
                429,
                f"this agent sends more than {self._limits.requests_per_second:g} requests or "
                f"{self._limits.bytes_per_second} bytes a second",
                {"Retry-After": str(math.ceil(seconds))},
            )

    def _notice_proxy(self, request: Request) -> None:
        if not self._behind_proxy and "x-forwarded-for" in request.headers:
            # Once is enough.
            self._behind_proxy = True
            logger.warning(
                "batches come through a proxy at %s that server.trusted_proxies does not name: "
                "all agents behind it count as one",
                request.client.host if request.client else "an unknown address",
            )

    async def _read(self, request: Request) -> bytes:
        """The bytes of a batch, which count as held until the caller lets them go."""
        parts: list[bytes] = []
        whole = False
        try:
            async with asyncio.timeout(self._limits.body_time):
                size, more = await self._read_parts(request, parts)
            if more:
                await drain(request.receive)
            if size > self._limits.body_limit:
                raise HTTPException(
                    413,
                    f"a batch of more than {self._limits.body_limit} bytes is refused; "
                    "send it in parts",
                )
            if more:
                raise Busy("the server holds as many batches as it can; try later")
            whole = True
        except TimeoutError:
            raise HTTPException(
                408, f"the batch did not come whole within {self._limits.body_time:g} seconds"
            ) from None
        except ClientDisconnect:
            raise HTTPException(400, "the connection ended before the batch did") from None
        finally:
            if not whole:
                self._bodies -= sum(map(len, parts))
        return b"".join(parts)

    async def _read_parts(self, request: Request, parts: list[bytes]) -> tuple[int, bool]:
        """Read until the end or a bound; gives the size, and whether more would have come."""
        limit = self._limits.body_limit
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > limit:
            return int(announced), True
        size, more = 0, True
        while more and size <= limit and self._bodies <= _BODIES * limit:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
            size += len(parts[-1])
            self._bodies += len(parts[-1])
        return size, more

    async def _store(self, data: bytes, token: ClusterToken | None) -> Receipt:
        size = weight(data)
        await self._room.enter(size)
        work = self._writers.submit((data, token))
        work.add_done_callback(partial(self._done, size))
        await asyncio.wait({work}, timeout=self._limits.patience)
        if not work.done():
            # The thread goes on. Should it store the batch yet, the next try is a duplicate.
            raise Busy("the store is busy: the batch is not known to be stored; send it again")
        try:
            return work.result()
        except WireError as error:
            raise HTTPException(400, str(error)) from None

    def _accept(self, arrived: Sequence[_Arrived]) -> list[Receipt | Exception]:
        outcomes = self._receiver.accept_all(
            [(data, token.cluster if token else None) for data, token in arrived]
        )
        for (_, token), outcome in zip(arrived, outcomes, strict=True):
            if isinstance(outcome, Receipt) and token is not None:
                self._keyring.note_use(token)
            elif isinstance(outcome, JobsightError | WireError):
                # Its trace would hold all that was unpacked until the answer is given.
                outcome.with_traceback(None)
                outcome.__cause__ = outcome.__context__ = None
        return outcomes

    def _done(self, size: int, work: asyncio.Future[Receipt]) -> None:
        self._room.leave(size)
        # Asked for, so that nobody complains of an error whose request has had its answer.
        if not work.cancelled():
            work.exception()


class BatchRoute:
    """The one route that writes.

    Nearly all requests of a server come here: it stands before the framework's routes, whose
    layers would cost more than the rest of HTTP.
    """

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        refuse_unknown(request, ())
        reply = json_reply(await self._ingest.take(request))
        await reply(scope, receive, send)

    @staticmethod
    def description() -> dict[str, Any]:
        """What the framework would say of it in the description of the API."""
        bad = (400, 403, 408, 413, 422, 429, 503)
        return {
            "tags": ["agents"],
            "summary": "Batches",
            "description": (
                "Store one batch of an agent; a batch that is there already is answered as stored."
            ),
            "operationId": "batches_api_v1_batches_post",
            "requestBody": {
                "required": True,
                "content": {"application/octet-stream": {"schema": {"type": "string"}}},
            },
            "responses": {str(status): reply for status, reply in replies(Receipt, *bad).items()},
        }


_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")


class WriteQueue(Generic[_Item, _Outcome]):
    """Hands items to threads, from the event loop of whoever asks."""

    def __init__(
        self,
        write: Callable[[Sequence[_Item]], Sequence[_Outcome | Exception]],
        *,
        threads: int,
        together: int,
    ) -> None:
        """``write`` gets up to ``together`` items at once and gives an outcome for each."""
        self._write = write
        self._together = together
        # Threads of their own: while the store is held by another, pages are still served.
        self._threads = ThreadPoolExecutor(threads, "jobsight-batches")
        self._lock = threading.Lock()
        self._idle = threads
        self._waiting: list[tuple[_Item, asyncio.Future[_Outcome]]] = []

    def submit(self, item: _Item) -> asyncio.Future[_Outcome]:
        """What becomes of an item, in the future."""
        future: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append((item, future))
            starts = self._idle > 0
            self._idle -= starts
        if starts:
            self._threads.submit(self._work)
        return future

    def _work(self) -> None:
        while some := self._take():
            futures = [future for _, future in some]
            try:
                outcomes = self._write([item for item, _ in some])
            except Exception as error:
                outcomes = [error] * len(some)
            # What was sent must not be held until the next is here.
            del some
            answers = list(zip(futures, outcomes, strict=True))
            for loop in {future.get_loop() for future in futures}:
                own = [answer for answer in answers if answer[0].get_loop() is loop]
                try:
                    loop.call_soon_threadsafe(_settle, own)
                except RuntimeError:
                    # The loop has ended, and with it all who might have heard the answer.
                    continue

    def _take(self) -> list[tuple[_Item, asyncio.Future[_Outcome]]]:
        with self._lock:
            some = self._waiting[: self._together]
            del self._waiting[: self._together]
            if not some:
                self._idle += 1
            return some


def _settle(
    answers: Sequence[tuple[asyncio.Future[_Outcome], _Outcome | Exception]],
) -> None:
    for future, outcome in answers:
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
