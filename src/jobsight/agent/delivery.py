"""From the spool to the receiver: in order, once acknowledged gone, kept while nobody answers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from jobsight.agent.spool import Spool
from jobsight.errors import JobsightError, StoreError
from jobsight.wire import WireError

if TYPE_CHECKING:
    from jobsight.server.receiver import Receiver

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
