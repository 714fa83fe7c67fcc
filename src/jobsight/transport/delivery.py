"""Delivery of batches: from the spool to the server, in order, each until it is acknowledged.

:class:`Delivery` sends the pending batches of a spool to a :class:`Target`, :class:`DeliveryThread`
does so in the background, and :class:`HttpTarget` is the client of the ingest endpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from jobsight.config import paths
from jobsight.errors import JobsightError
from jobsight.transport.http import Peer, Reply, request
from jobsight.transport.running_server import TokenError, read_running_server, read_token
from jobsight.transport.spool import Spool
from jobsight.transport.wire import CONTENT_TYPE
from jobsight.util.backoff import Backoff, random_fraction
from jobsight.util.decoding import decode_json_as
from jobsight.util.signals import signals_blocked
from jobsight.util.urls import without_credentials
from jobsight.util.workers import Progress, WorkerState

if TYPE_CHECKING:
    from jobsight.config.settings import Settings
    from jobsight.transport.tls import ClientTls


logger = logging.getLogger(__name__)

#: The ingest route.
BATCHES_PATH: Final = "/api/v1/batches"
#: Limit in seconds on the delay that a server may request by Retry-After.
MAX_RETRY_AFTER: Final = 3600.0
#: Seconds before the first retry.
_FIRST_DELAY: Final = 1.0


class Answer(NamedTuple):
    """The result of sending one batch."""

    stored: bool
    #: The server will never accept the batch; see ``reason``.
    refused: bool = False
    #: Why it is not stored, or which values of it are not.
    reason: str = ""
    #: Values of a stored batch that are out of bounds and not stored.
    left_out: int = 0
    #: Seconds of the server's Retry-After header; 0 without it.
    wait: float = 0.0


class Target(Protocol):
    """Receives encoded batches."""

    def send(self, data: bytes) -> Answer: ...


class Delivery:
    """Sends the pending batches of a spool to a target."""

    def __init__(
        self, spool: Spool, target: Target, log: Callable[[str], None] | None = None
    ) -> None:
        """``log`` gets a sentence when deliveries begin to fail, change their reason or resume."""
        self.spool = spool
        self.target = target
        self._log = log or (lambda sentence: None)
        #: Why batches are pending; empty after a complete delivery.
        self.reason = ""
        #: Why the last refused batch was refused.
        self.refusal = ""
        #: Values of stored batches that the server left out, and why it did so last.
        self.left_out = 0
        self.left_out_reason = ""
        #: The target's last Retry-After in seconds; 0 without one.
        self.wait = 0.0

    def deliver(self) -> bool:
        """Send all pending batches; False at the first that the target cannot accept now."""
        for name, data in self.spool.pending():
            answer = self.target.send(data)
            if answer.stored:
                self._count_left_out(answer)
                self.spool.done(name)
            elif answer.refused:
                if answer.reason != self.refusal:
                    self._log(f"the server refused a batch, which is quarantined: {answer.reason}")
                self.refusal = answer.reason
                self.spool.refuse(name)
            else:
                self.fail(answer.reason, answer.wait)
                return False
        if self.reason:
            self._log("all pending batches are delivered")
        self.reason, self.wait = "", 0.0
        return True

    def _count_left_out(self, answer: Answer) -> None:
        self.left_out += answer.left_out
        if answer.left_out and answer.reason != self.left_out_reason:
            self._log(
                f"the server stored a batch without {answer.left_out} values: {answer.reason}"
            )
            self.left_out_reason = answer.reason

    def fail(self, reason: str, wait: float = 0.0) -> None:
        """Record why nothing can be delivered now."""
        if reason != self.reason:
            self._log(f"batches are pending: {reason}")
        self.reason, self.wait = reason, wait


class DeliveryThread(threading.Thread):
    """Delivers in the background, so that a slow server does not delay the sampling loop."""

    def __init__(self, delivery: Delivery, *, max_delay: float = 60.0) -> None:
        super().__init__(name="delivery", daemon=True)
        self._delivery = delivery
        self._backoff = Backoff(_FIRST_DELAY, max_delay)
        self._work = threading.Event()
        self._ended = threading.Event()
        self._progress = Progress("delivery", clock=time.monotonic)

    def status(self, name: str) -> WorkerState:
        """How delivery goes, under the name of its user."""
        return msgspec.structs.replace(self._progress.status(alive=self.is_alive()), name=name)

    def start(self) -> None:
        self._progress.start(0.0)
        # A delivery begins when a batch is there, not at a planned time.
        self._progress.plan(None)
        with signals_blocked():
            super().start()

    def notify(self) -> None:
        """There are new batches."""
        self._work.set()

    def run(self) -> None:
        while not self._ended.is_set():
            self._work.wait()
            self._work.clear()
            if self._ended.is_set():
                return
            self._progress.begin()
            if self._deliver():
                self._progress.succeed()
                self._backoff.reset()
                continue
            self._progress.fail(self._delivery.reason)
            if self._delivery.wait:
                # A server that names a delay is not unreachable: the backoff starts again.
                self._backoff.reset()
                delay = min(self._delivery.wait, MAX_RETRY_AFTER) * (1 + random_fraction() / 4)
            else:
                delay = self._backoff.fail()
            self._progress.plan(delay)
            logger.debug(
                "next delivery in %.1f s, %s: %s",
                delay,
                "as the server requests" if self._delivery.wait else "by the backoff",
                self._delivery.reason,
            )
            self._ended.wait(delay)
            self._work.set()

    def _deliver(self) -> bool:
        try:
            return self._delivery.deliver()
        except Exception as error:
            # An unreadable disk, or a bug: the next attempt may succeed, and without this thread
            # nothing would be delivered any more.
            logger.debug("a delivery failed", exc_info=error)
            self._delivery.fail(f"they cannot be delivered: {error!r}")
            return False

    def end(self) -> None:
        """Stop after the batch in progress; the caller delivers the rest."""
        self._ended.set()
        self._work.set()
        self.join()


#: Statuses after which the same batch may be accepted later.
_RETRY_STATUSES: Final = frozenset({401, 403, 404, 408, 421, 425, 429})
#: Characters of a reply that are logged.
_MAX_REASON: Final = 300
#: Statuses after which the token file is read again.
_TOKEN_STATUSES: Final = (401, 403)


class _Receipt(msgspec.Struct):
    status: Literal["stored", "duplicate"]
    left_out: int = 0
    reasons: tuple[str, ...] = ()


class _Refusal(msgspec.Struct):
    """What the agent reads of the problem details of the server."""

    detail: str


_Reply = TypeVar("_Reply", _Receipt, _Refusal)


class HttpTarget:
    """HTTP(S) client of the ingest endpoint: URL, token and TLS credentials."""

    def __init__(
        self,
        url: str,
        token_file: Path,
        *,
        tls: ClientTls | None = None,
        timeout: float = 10.0,
        source: str | None = None,
    ) -> None:
        """``source`` is the own address to send from."""
        try:
            self._parts = urlsplit(url)
            complete = bool(self._parts.hostname) and self._parts.port != 0
            valid = complete and self._parts.scheme in ("http", "https")
        except ValueError:
            valid = False
        if not valid:
            raise JobsightError(
                f"{without_credentials(url)!r} is not the URL of a server; "
                "expected http://HOST:PORT"
            )
        self._token_file = token_file
        self._token = read_token(token_file)
        self._tls = tls
        self._timeout = timeout
        self._source = source
        if self._parts.scheme == "https" and tls is None:
            # Imported only for HTTPS: ssl takes 4 MB of the agent's memory.
            from jobsight.transport.tls import ClientTls

            self._tls = ClientTls()

    def send(self, data: bytes) -> Answer:
        try:
            reply = self._post(data)
            if reply.status in _TOKEN_STATUSES and self._reload_token():
                reply = self._post(data)
        except OSError as error:
            return Answer(stored=False, reason=f"the server does not answer: {error}")
        if reply.status == 200:
            receipt = _decoded(reply.body, _Receipt)
            if receipt is not None:
                reason = "; ".join(receipt.reasons)[:_MAX_REASON]
                return Answer(stored=True, left_out=receipt.left_out, reason=reason)
            # A truncated reply or the page of a proxy: only a receipt confirms the batch.
            return Answer(stored=False, reason="the server answered 200 without a receipt")
        refusal = _decoded(reply.body, _Refusal)
        text = reply.body.decode(errors="replace") if refusal is None else refusal.detail
        # The page of a proxy is no verdict on the batch, except that it is too large.
        from_server = reply.status == 413 or refusal is not None
        final = 400 <= reply.status < 500 and reply.status not in _RETRY_STATUSES and from_server
        return Answer(
            stored=False,
            refused=final,
            reason=f"the server answered {reply.status}: {text[:_MAX_REASON]}",
            wait=reply.retry_after,
        )

    def _reload_token(self) -> bool:
        """Read the token file again; True if the token was replaced."""
        before = self._token
        try:
            self._token = read_token(self._token_file)
        except TokenError as error:
            logger.warning("%s", error)
        return self._token != before

    def _post(self, data: bytes) -> Reply:
        path = self._parts.path.rstrip("/") + BATCHES_PATH
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": CONTENT_TYPE,
        }
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            peer = Peer(host, port or 80, source=self._source)
        else:
            assert self._tls is not None
            peer = Peer(host, port or 443, self._tls.wrapping(host), source=self._source)
        return request(peer, "POST", path, headers, data, timeout=self._timeout)


def server_target(settings: Settings, location: str) -> HttpTarget | None:
    """The server of the settings, else the running server of the store, else None."""
    own = settings.agent
    if settings.server.url:
        file = settings.server.token_file or str(paths.token_file(location))
        tls = None
        if settings.server.url.startswith("https:"):
            from jobsight.transport.tls import ClientTls

            tls = ClientTls(own.tls_ca, own.tls_certificate, own.tls_key)
        return HttpTarget(settings.server.url, Path(file).expanduser(), tls=tls)
    record = read_running_server(paths.server_file(location))
    if record is None:
        return None
    tls = None
    if record.certificate is not None:
        from jobsight.transport.tls import ClientTls

        # The certificate does not name loopback, but it is known exactly.
        tls = ClientTls(record.certificate, own.tls_certificate, own.tls_key, pinned=True)
    return HttpTarget(record.url, Path(record.token_file), tls=tls)


def _decoded(body: bytes, kind: type[_Reply]) -> _Reply | None:
    try:
        return decode_json_as(kind, body)
    except msgspec.MsgspecError:
        return None
