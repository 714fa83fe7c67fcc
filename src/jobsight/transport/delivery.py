"""From the spool to the receiver: in order, once acknowledged gone, kept while nobody answers.

The server that takes the batches of this node: its address, its token, its papers.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from jobsight.config import paths
from jobsight.errors import JobsightError
from jobsight.transport.http import Reply, post
from jobsight.transport.running_server import TokenError, read_running_server, read_token
from jobsight.transport.spool import Spool

if TYPE_CHECKING:
    from jobsight.config.settings import Settings
    from jobsight.transport.tls import ClientTls


#: However long a server wants to be left alone, it is tried again within so many seconds.
_LONGEST_WAIT: Final = 3600.0


class Answer(NamedTuple):
    """What became of one batch."""

    stored: bool
    #: Never to be sent again; the reason says why it was refused.
    refused: bool = False
    reason: str = ""
    #: Seconds that the server wants to be left alone.
    wait: float = 0.0


class Target(Protocol):
    """Takes encoded batches."""

    def send(self, data: bytes) -> Answer: ...


class Delivery:
    """Empties a spool into a target, and says what stands in the way when it cannot."""

    def __init__(
        self, spool: Spool, target: Target, say: Callable[[str], None] | None = None
    ) -> None:
        """What stands in the way is said when it changes, to whoever wants to hear it."""
        self.spool = spool
        self.target = target
        self._say = say
        #: Why batches wait, and why others were refused.
        self.reason = ""
        self.refusal = ""
        #: Seconds that the target wants to be left alone; none where it said nothing.
        self.wait = 0.0

    def deliver(self) -> bool:
        """Send all that waits; False as soon as the target cannot take more now."""
        for name, data in self.spool.pending():
            answer = self.target.send(data)
            if answer.stored:
                self.spool.done(name)
            elif answer.refused:
                if answer.reason != self.refusal:
                    self._tell(f"a batch was refused and put aside: {answer.reason}")
                self.refusal = answer.reason
                self.spool.refuse(name)
            else:
                self.stand_still(answer.reason, answer.wait)
                return False
        if self.reason:
            self._tell("all batches that waited are delivered")
        self.reason, self.wait = "", 0.0
        return True

    def stand_still(self, reason: str, wait: float = 0.0) -> None:
        """Nothing can be delivered now, for this reason."""
        if reason != self.reason:
            self._tell(f"batches wait: {reason}")
        self.reason, self.wait = reason, wait

    def _tell(self, sentence: str) -> None:
        if self._say is not None:
            self._say(sentence)


class DeliveryThread(threading.Thread):
    """Delivers beside the sampling loop, so that a slow server delays nothing."""

    def __init__(self, delivery: Delivery, *, longest_pause: float = 60.0) -> None:
        super().__init__(name="delivery", daemon=True)
        self._delivery = delivery
        self._longest_pause = longest_pause
        self._work = threading.Event()
        self._ended = threading.Event()

    def start(self) -> None:
        # Signals are for the main thread: one that this thread took would be lost to it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def notify(self) -> None:
        self._work.set()

    def run(self) -> None:
        pause = 1.0
        while not self._ended.is_set():
            self._work.wait()
            self._work.clear()
            if self._ended.is_set():
                return
            if self._deliver():
                pause = 1.0
            else:
                self._ended.wait(_spread(min(self._delivery.wait, _LONGEST_WAIT) or pause))
                # A server that says when to come again is not one that is away.
                pause = 1.0 if self._delivery.wait else min(pause * 2, self._longest_pause)
                self._work.set()

    def _deliver(self) -> bool:
        try:
            return self._delivery.deliver()
        except Exception as error:
            # A disk that cannot be read, or a fault of ours: the next try may fare better, and a
            # thread that ended would deliver nothing any more.
            self._delivery.stand_still(f"they cannot be delivered: {error!r}")
            return False

    def end(self) -> None:
        """Stop after what is under way; the caller delivers the rest."""
        self._ended.set()
        self._work.set()
        self.join()


def _spread(pause: float) -> float:
    """Up to a quarter longer: the agents of a cluster must not all come back at one moment."""
    return pause * (1 + os.urandom(1)[0] / 1024)


logger = logging.getLogger("jobsight.agent")

#: Answers after which the same batch may be taken later.
_TRY_LATER: Final = frozenset({401, 403, 404, 408, 425, 429})
#: Answers to which a token that was replaced in its file may be the remedy.
_REFUSED: Final = (401, 403)


class _Receipt(msgspec.Struct):
    status: Literal["stored", "duplicate"]


class _Refusal(msgspec.Struct):
    error: str


class HttpTarget:
    """A receiver behind HTTP or HTTPS."""

    def __init__(
        self, url: str, token_file: Path, *, tls: ClientTls | None = None, timeout: float = 10.0
    ) -> None:
        try:
            self._parts = urlsplit(url)
            named = bool(self._parts.hostname) and self._parts.port != 0
            right = named and self._parts.scheme in ("http", "https")
        except ValueError:
            right = False
        if not right:
            raise JobsightError(f"{url!r} is not the address of a server; right: http://HOST:PORT")
        self._token_file = token_file
        self._token = read_token(token_file)
        self._tls = tls
        self._timeout = timeout
        if self._parts.scheme == "https" and tls is None:
            # Imported only where it is needed: TLS is a fifth of the agent's memory.
            from jobsight.transport.tls import ClientTls

            self._tls = ClientTls()

    def send(self, data: bytes) -> Answer:
        try:
            reply = self._post(data)
            if reply.status in _REFUSED and self._token_is_new():
                reply = self._post(data)
        except OSError as error:
            return Answer(stored=False, reason=f"the server does not answer: {error}")
        if reply.status == 200:
            if _decoded(reply.body, _Receipt) is not None:
                return Answer(stored=True)
            # A reply that was cut, or the page of some proxy: only a receipt says it is stored.
            return Answer(stored=False, reason="the server answered 200 without a receipt")
        text = reply.body.decode(errors="replace")[:300]
        # Pages of a proxy say nothing of the batch, unless that it is too large for it.
        spoken = reply.status == 413 or _decoded(reply.body, _Refusal) is not None
        final = 400 <= reply.status < 500 and reply.status not in _TRY_LATER and spoken
        return Answer(
            stored=False,
            refused=final,
            reason=f"the server answered {reply.status}: {text}",
            wait=reply.retry_after,
        )

    def _token_is_new(self) -> bool:
        """Read the token again: a rotated one is taken up without a restart."""
        before = self._token
        try:
            self._token = read_token(self._token_file)
        except TokenError as error:
            logger.warning("%s", error)
        return self._token != before

    def _post(self, data: bytes) -> Reply:
        path = self._parts.path.rstrip("/") + "/api/v1/batches"
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/vnd.jobsight.batch",
        }
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return post(host, port or 80, path, headers, data, self._timeout)
        assert self._tls is not None
        wrap = self._tls.wrapping(host)
        return post(host, port or 443, path, headers, data, self._timeout, wrap)


def server_target(settings: Settings, location: str) -> HttpTarget | None:
    """The server of the settings, else the one that runs for the store; None without either."""
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

        # Its certificate is not made out to a name of loopback, but we know which one it is.
        tls = ClientTls(record.certificate, own.tls_certificate, own.tls_key, pinned=True)
    return HttpTarget(record.url, Path(record.token_file), tls=tls)


def _decoded(body: bytes, kind: type[_Receipt] | type[_Refusal]) -> object | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError:
        return None
