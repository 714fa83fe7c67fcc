"""From the spool to the receiver: in order, once acknowledged gone, kept while nobody answers."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from jobsight.agent.plain_http import post
from jobsight.agent.spool import Spool
from jobsight.errors import JobsightError, StoreError
from jobsight.wire import WireError

if TYPE_CHECKING:
    from jobsight.server.receiver import Receiver

#: Answers after which the same batch may be taken later.
_TRY_LATER: Final = frozenset({401, 403, 404, 408, 425, 429})


class Answer(NamedTuple):
    """What became of one batch."""

    stored: bool
    #: Never to be sent again; the reason says why it was refused.
    refused: bool = False
    reason: str = ""


class _Receipt(msgspec.Struct):
    status: str


class Target(Protocol):
    """Takes encoded batches."""

    def send(self, data: bytes) -> Answer: ...


class HttpTarget:
    """A receiver behind HTTP."""

    def __init__(self, url: str, token: str, timeout: float = 10.0) -> None:
        try:
            self._parts = urlsplit(url)
            named = bool(self._parts.hostname) and self._parts.port != 0
            right = named and self._parts.scheme in ("http", "https")
        except ValueError:
            right = False
        if not right:
            raise JobsightError(f"{url!r} is not the address of a server; right: http://HOST:PORT")
        self._token = token
        self._timeout = timeout

    def send(self, data: bytes) -> Answer:
        try:
            status, body = self._post(data)
        except OSError as error:
            return Answer(stored=False, reason=f"the server does not answer: {error}")
        if status == 200:
            if _is_receipt(body):
                return Answer(stored=True)
            # A reply that was cut, or the page of some proxy: only a receipt says it is stored.
            return Answer(stored=False, reason="the server answered 200 without a receipt")
        reason = f"the server answered {status}: {body.decode(errors='replace')[:200]}"
        final = 400 <= status < 500 and status not in _TRY_LATER
        return Answer(stored=False, refused=final, reason=reason)

    def _post(self, data: bytes) -> tuple[int, bytes]:
        path = self._parts.path.rstrip("/") + "/api/v1/batches"
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/vnd.jobsight.batch",
        }
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return post(host, port or 80, path, headers, data, self._timeout)
        # Imported only where it is needed: TLS is a fifth of the agent's memory.
        import http.client

        connection = http.client.HTTPSConnection(host, port, timeout=self._timeout)
        try:
            connection.request("POST", path, data, headers)
            response = connection.getresponse()
            return response.status, response.read(2000)
        except http.client.HTTPException as error:
            raise OSError(str(error) or type(error).__name__) from None
        finally:
            connection.close()


def _is_receipt(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_Receipt).status in ("stored", "duplicate")
    except msgspec.MsgspecError:
        return False


class EmbeddedTarget:
    """The receiver in this very process, over a store file."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def send(self, data: bytes) -> Answer:
        try:
            self._receiver.accept(data)
        except StoreError as error:
            return Answer(stored=False, reason=str(error))
        except (WireError, JobsightError) as error:
            return Answer(stored=False, refused=True, reason=str(error))
        return Answer(stored=True)


class Delivery:
    """Empties a spool into a target, and says what stands in the way when it cannot."""

    def __init__(self, spool: Spool, target: Target) -> None:
        self.spool = spool
        self.target = target
        #: Why batches wait, and why others were refused.
        self.reason = ""
        self.refusal = ""

    def deliver(self) -> bool:
        """Send all that waits; False as soon as the target cannot take more now."""
        for name, data in self.spool.pending():
            answer = self.target.send(data)
            if answer.stored:
                self.spool.done(name)
            elif answer.refused:
                self.refusal = answer.reason
                self.spool.refuse(name)
            else:
                self.reason = answer.reason
                return False
        self.reason = ""
        return True


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
            if self._delivery.deliver():
                pause = 1.0
            else:
                self._ended.wait(pause)
                pause = min(pause * 2, self._longest_pause)
                self._work.set()

    def end(self) -> None:
        """Stop after what is under way; the caller delivers the rest."""
        self._ended.set()
        self._work.set()
        self.join()
