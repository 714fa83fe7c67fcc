"""Where batches become remote writes: Prometheus, VictoriaMetrics, Mimir and their like."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from jobsight.config.settings import RemoteWriteSettings
from jobsight.prometheus.batch_series import BatchSeries
from jobsight.prometheus.remote_write import snappy
from jobsight.transport.delivery import Answer
from jobsight.transport.http import Web
from jobsight.transport.wire import WireError, decode

logger = logging.getLogger("jobsight.remote_write")

_HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
#: Answers that a person can put right, or that pass: the samples wait. Other 4xx are for ever.
_LATER: Final = frozenset({401, 403, 404, 407, 408, 425, 429})


class RemoteWriteTarget:
    """Takes encoded batches, in their order. Samples keep the times at which they were taken."""

    def __init__(self, where: str, settings: RemoteWriteSettings) -> None:
        self._web = Web(where, settings)
        self._series = BatchSeries(seed_names=settings.seed_names)
        #: Samples that were taken, and those that were refused for good.
        self.samples = 0
        self.dropped = 0
        self._said = ""

    def counts(self) -> Mapping[str, int]:
        return {
            "remote_write_samples_total": self.samples,
            "remote_write_dropped_total": self.dropped,
        }

    def send(self, data: bytes) -> Answer:
        try:
            batch = decode(data)
        except WireError as error:
            return Answer(stored=False, refused=True, reason=str(error))
        message, samples = self._series.encode(batch)
        if not samples:
            return Answer(stored=True)
        try:
            reply = self._web.send("POST", "", snappy(message), _HEADERS)
        except OSError as error:
            return self._later(f"{self._web.name} does not answer: {error}")
        if not 200 <= reply.status < 300:
            said = reply.body.decode(errors="replace").strip()[:300]
            reason = f"{self._web.name} answered {reply.status}: {said}"
            if reply.status >= 500 or reply.status < 400 or reply.status in _LATER:
                return self._later(reason, reply.retry_after)
            self.dropped += samples
            logger.error("%s; %d samples are dropped", reason, samples)
        else:
            self.samples += samples
            self._said = ""
        self._series.settle(batch)
        # Also what was refused for good is done with: a copy, which nobody would look at.
        return Answer(stored=True)

    def _later(self, reason: str, wait: float = 0.0) -> Answer:
        if reason != self._said:
            logger.warning("%s; samples wait", reason)
            self._said = reason
        return Answer(stored=False, reason=reason, wait=wait)
