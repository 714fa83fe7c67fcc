"""The ingest route: receives batches from agents within limits of rate, size, time and memory.

:class:`BatchRoute` is the ASGI route and :class:`Ingest` its logic: check certificate and rate,
read the body, acquire memory, wait for the write queue. :class:`WriteQueue` passes batches from the
event loop to the threads that write. SQLite has a single writer: one thread takes all queued
batches and writes them in one transaction. On PostgreSQL several threads write one batch each.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar
from urllib.parse import quote

from fastapi import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from jobsight import __version__
from jobsight.config.settings import ServerSettings
from jobsight.errors import JobsightError, StoreError
from jobsight.model import SECOND
from jobsight.server.api.common import json_reply, refuse_unknown, replies
from jobsight.server.auth import TOKEN_IN_SCOPE, TokenCache, drain
from jobsight.server.connections import CERTIFICATE_END_IN_STATE, CERTIFICATE_IN_STATE
from jobsight.server.limits import (
    MAX_BATCHES,
    Agent,
    BodyBudget,
    Busy,
    MemoryBudget,
    RateLimiter,
    estimate_memory,
    unpacked_size,
)
from jobsight.server.receiver import Receipt, Receiver
from jobsight.store.store import Store
from jobsight.store.tokens import ClusterToken
from jobsight.transport.wire import CONTENT_TYPE, WireError
from jobsight.util.log_once import LogOnce
from jobsight.util.outer import format_rfc3339
from jobsight.util.workers import INTERNAL_ERROR

logger = logging.getLogger(__name__)

#: Bodies of the maximum size that may be in memory at once, before they are decoded, if they come
#: with one token.
_MAX_BODIES = 4

#: The refusal of a batch without content, which is not counted.
EMPTY = "the batch is empty"

#: An encoded batch, the cluster token that it was sent with, and the names in the certificate of
#: its sender.
_Arrived: TypeAlias = tuple[bytes, ClusterToken | None, frozenset[str] | None]


class BatchRoute:
    """The only route that writes.

    It bypasses FastAPI's routing: nearly all requests of a server come here, and the framework
    would cost more than the rest of HTTP.
    """

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        refuse_unknown(request, ())
        reply = json_reply(await self._ingest.receive(request))
        await reply(scope, receive, send)

    @staticmethod
    def description() -> dict[str, Any]:
        """The route's entry in the OpenAPI description."""
        errors = (400, 403, 408, 413, 422, 429, 503)
        return {
            "tags": ["agents"],
            "summary": "Batches",
            "description": "Store one batch of an agent. The request is idempotent.",
            "operationId": "batches_api_v1_batches_post",
            "requestBody": {
                "required": True,
                "content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}},
            },
            "responses": {
                str(status): reply for status, reply in replies(Receipt, *errors).items()
            },
        }


class IngestCounts:
    """Batches since the start of the server, by what became of them."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: ``refused``: the batch or its sender is at fault. ``failed``: the server is, and the
        #: agent sends the batch again.
        self.batches = {"stored": 0, "duplicate": 0, "refused": 0, "failed": 0}
        #: Values of stored batches that were out of bounds.
        self.left_out = 0
        #: When a batch was last stored.
        self.stored: int | None = None
        #: Why the last batch could not be stored by a fault of the server; empty after a success.
        self.reason = ""
        #: The same, kept after a success, and when that was.
        self.error = ""
        self.failed: int | None = None

    def store(self, receipt: Receipt) -> None:
        with self._lock:
            self.batches[receipt.status] += 1
            self.left_out += receipt.left_out
            self.stored, self.reason = self._clock(), ""

    def refuse(self) -> None:
        with self._lock:
            self.batches["refused"] += 1

    def fail(self, reason: str) -> None:
        with self._lock:
            self.batches["failed"] += 1
            self.reason = self.error = reason
            self.failed = self._clock()


class Ingest:
    """Receives batches over HTTP."""

    def __init__(
        self,
        store: Store,
        tokens: TokenCache,
        settings: ServerSettings,
        copy: Callable[[bytes], None] | None = None,
    ) -> None:
        self._receiver = Receiver(store, copy)
        self.counts = IngestCounts()
        self._tokens = tokens
        self._limits = settings.ingest
        self._needs_certificate = settings.tls_client_ca is not None
        self._proxy_known = bool(settings.trusted_proxies)
        self._rates = RateLimiter(self._limits.requests_per_second, self._limits.bytes_per_second)
        self._memory = MemoryBudget(self._limits.memory, self._limits.queue_timeout)
        parallel = store.writes_in_parallel
        self._queue = WriteQueue(
            self._write,
            threads=MAX_BATCHES if parallel else 1,
            batch_size=1 if parallel else MAX_BATCHES,
        )
        #: By the address of the agent.
        self._refused = LogOnce(logger)
        self._left_out = LogOnce(logger)
        self._bodies = BodyBudget(_MAX_BODIES * self._limits.body_limit)

    async def receive(self, request: Request) -> Receipt:
        """Store the batch of a request, or raise with the status and reason of the refusal."""
        token: ClusterToken | None = request.scope.get(TOKEN_IN_SCOPE)
        self._warn_of_proxy(request)
        # Behind a proxy that is not trusted, the address is the proxy's: its agents share a limit.
        address = request.client.host if request.client else ""
        try:
            receipt = await self._receive(request, token, (token.id if token else None, address))
        except (HTTPException, JobsightError) as error:
            reason = error.detail if isinstance(error, HTTPException) else str(error)
            if reason == EMPTY:
                raise
            self._refused.report(address, f"refused a batch from {address}: {reason}")
            if isinstance(error, StoreError | Busy):
                self.counts.fail(str(reason))
            else:
                self.counts.refuse()
            raise
        except Exception:
            # It is logged with its traceback by the application.
            self.counts.fail(INTERNAL_ERROR)
            raise
        self.counts.store(receipt)
        self._refused.resolve(address, f"batches from {address} are accepted again")
        if receipt.left_out:
            # One sentence for each agent: users choose the values, and could fill the log.
            self._left_out.report(
                address, self._left_out.messages.get(address) or _left_out(receipt, address)
            )
        return receipt

    async def _receive(self, request: Request, token: ClusterToken | None, agent: Agent) -> Receipt:
        try:
            self._check_certificate(request)
            self._check_rate(agent)
        except HTTPException:
            self._rates.charge(agent, await drain(request.receive))
            raise
        data = await self._read(request, agent)
        if not data:
            # `jobsight doctor` sends this: token, certificate and rate were accepted.
            headers = {"Jobsight-Version": __version__}
            if token is not None:
                headers["Jobsight-Cluster"] = quote(token.cluster)
            raise HTTPException(400, EMPTY, headers)
        try:
            # Decompressed, a batch costs more than it did on the network.
            self._rates.charge(agent, max(0, unpacked_size(data) - len(data)))
            return await self._store(data, token, _names_in_certificate(request))
        finally:
            self._bodies.remove(agent, len(data))

    def _check_certificate(self, request: Request) -> None:
        if not self._needs_certificate:
            return
        if _names_in_certificate(request) is None:
            raise HTTPException(
                403,
                "batches need a client certificate that server.tls_client_ca has signed; "
                "on a node: agent.tls_certificate and agent.tls_key",
            )
        end = request.scope.get("state", {}).get(CERTIFICATE_END_IN_STATE)
        if end is not None and end < time.time():
            # A resumed session has been verified before it ended.
            raise HTTPException(
                403,
                f"the client certificate ended on {format_rfc3339(int(end) * SECOND)}; renew "
                "agent.tls_certificate on the node",
            )

    def _check_rate(self, agent: Agent) -> None:
        seconds = self._rates.admit(agent)
        if seconds:
            raise HTTPException(
                429,
                f"this agent exceeds {self._limits.requests_per_second:g} requests or "
                f"{self._limits.bytes_per_second} bytes per second",
                {"Retry-After": str(math.ceil(seconds))},
            )

    def _warn_of_proxy(self, request: Request) -> None:
        if not self._proxy_known and "x-forwarded-for" in request.headers:
            self._proxy_known = True
            logger.warning(
                "batches come through a proxy at %s that server.trusted_proxies does not name: "
                "all agents behind it share one rate limit",
                request.client.host if request.client else "an unknown address",
            )

    async def _read(self, request: Request, agent: Agent) -> bytes:
        """Read a body; its bytes count as held until the caller releases them."""
        parts: list[bytes] = []
        complete = False
        try:
            more = await self._read_parts(request, agent, parts)
            if more:
                self._rates.charge(agent, await drain(request.receive))
                raise Busy("the server has reached its limit of request bodies; try later")
            complete = True
        finally:
            size = sum(map(len, parts))
            # Also for a body that was given up: else it would cost the sender nothing.
            self._rates.charge(agent, size)
            if not complete:
                self._bodies.remove(agent, size)
        return b"".join(parts)

    async def _read_parts(self, request: Request, agent: Agent, parts: list[bytes]) -> bool:
        """Read up to the end, or until the agent's share is used up; then there is more to read."""
        limits = self._limits
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > limits.body_limit:
            await self._refuse_large(request, agent)
        loop = asyncio.get_running_loop()
        end = loop.time() + limits.body_timeout
        size, more = 0, True
        try:
            async with asyncio.timeout(min(limits.stall_timeout, limits.body_timeout)) as timer:
                while more and self._bodies.admits(agent):
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "the connection was closed within the batch")
                    part = message.get("body", b"")
                    more = message.get("more_body", False)
                    parts.append(part)
                    size += len(part)
                    self._bodies.add(agent, len(part))
                    if size > limits.body_limit:
                        break
                    if more:
                        timer.reschedule(min(end, loop.time() + limits.stall_timeout))
        except TimeoutError:
            if loop.time() < end:
                reason = f"no data of the batch arrived for {limits.stall_timeout:g} seconds"
            else:
                reason = f"the batch was not complete after {limits.body_timeout:g} seconds"
            raise HTTPException(408, reason, {"Connection": "close"}) from None
        if size > limits.body_limit:
            await self._refuse_large(request, agent, more=more)
        return more

    async def _refuse_large(self, request: Request, agent: Agent, *, more: bool = True) -> NoReturn:
        if more:
            self._rates.charge(agent, await drain(request.receive))
        raise HTTPException(
            413, f"the batch is larger than {self._limits.body_limit} bytes; split it"
        )

    async def _store(
        self, data: bytes, token: ClusterToken | None, names: frozenset[str] | None
    ) -> Receipt:
        size = estimate_memory(data)
        sender = token.id if token else None
        await self._memory.acquire(size, sender)
        write = self._queue.submit((data, token, names))
        write.add_done_callback(partial(self._release, size, sender))
        await asyncio.wait({write}, timeout=self._limits.queue_timeout)
        if not write.done():
            # The thread continues. If it stores the batch, the next attempt is a duplicate.
            raise Busy("the store is busy and the batch may not be stored; send it again")
        try:
            return write.result()
        except WireError as error:
            raise HTTPException(400, str(error)) from None

    def _write(self, arrived: Sequence[_Arrived]) -> list[Receipt | Exception]:
        outcomes = self._receiver.accept_all(
            [(data, token.cluster if token else None) for data, token, _ in arrived],
            [names for *_, names in arrived],
        )
        for (_, token, _), outcome in zip(arrived, outcomes, strict=True):
            if isinstance(outcome, Receipt) and token is not None:
                self._tokens.record_use(token)
            elif isinstance(outcome, JobsightError | WireError):
                # The traceback would keep the decoded batch in memory until the reply is sent.
                outcome.with_traceback(None)
                outcome.__cause__ = outcome.__context__ = None
        return outcomes

    def _release(self, size: int, sender: int | None, write: asyncio.Future[Receipt]) -> None:
        self._memory.release(size, sender)
        # Retrieved, so that asyncio does not log an error whose request was already answered.
        if not write.cancelled():
            write.exception()


def _names_in_certificate(request: Request) -> frozenset[str] | None:
    names: frozenset[str] | None = request.scope.get("state", {}).get(CERTIFICATE_IN_STATE)
    return names


def _left_out(receipt: Receipt, address: str) -> str:
    return (
        f"a batch from {address} was stored without {receipt.left_out} values that are out of "
        f"bounds, first: {receipt.reasons[0]}; further batches are counted but not logged"
    )


_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")
_Queued: TypeAlias = tuple[_Item, "asyncio.Future[_Outcome]"]


class WriteQueue(Generic[_Item, _Outcome]):
    """Passes items from event loops to threads, several in one call where they are queued."""

    def __init__(
        self,
        write: Callable[[Sequence[_Item]], Sequence[_Outcome | Exception]],
        *,
        threads: int,
        batch_size: int,
    ) -> None:
        """``write`` is called with up to ``batch_size`` items and returns an outcome for each."""
        self._write = write
        self._batch_size = batch_size
        # Separate threads: pages are served while another process locks the store.
        self._threads = ThreadPoolExecutor(threads, "jobsight-batches")
        self._lock = threading.Lock()
        self._idle = threads
        self._queued: list[_Queued[_Item, _Outcome]] = []

    def submit(self, item: _Item) -> asyncio.Future[_Outcome]:
        """Queue an item; the future holds its outcome."""
        future: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._queued.append((item, future))
            start = self._idle > 0
            self._idle -= start
        if start:
            self._threads.submit(self._work)
        return future

    def _work(self) -> None:
        while queued := self._next():
            futures = [future for _, future in queued]
            try:
                outcomes = self._write([item for item, _ in queued])
            except Exception as error:
                outcomes = [error] * len(queued)
            # Release the items before the next ones are taken.
            del queued
            resolved = list(zip(futures, outcomes, strict=True))
            for loop in {future.get_loop() for future in futures}:
                own = [pair for pair in resolved if pair[0].get_loop() is loop]
                try:
                    loop.call_soon_threadsafe(_resolve, own)
                except RuntimeError:
                    # The loop is closed, and nobody waits for the outcome.
                    continue

    def _next(self) -> list[_Queued[_Item, _Outcome]]:
        with self._lock:
            queued = self._queued[: self._batch_size]
            del self._queued[: self._batch_size]
            if not queued:
                self._idle += 1
            return queued


def _resolve(
    resolved: Sequence[tuple[asyncio.Future[_Outcome], _Outcome | Exception]],
) -> None:
    for future, outcome in resolved:
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
