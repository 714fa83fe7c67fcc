"""Remote write beside an agent or a server: a bounded queue on disk, and who empties it."""

from __future__ import annotations

from pathlib import Path

from jobsight.config.settings import RemoteWriteSettings
from jobsight.prometheus.exposition import document, line
from jobsight.prometheus.names import SERVER
from jobsight.prometheus.remote_target import RemoteWriteTarget
from jobsight.transport.delivery import Delivery, DeliveryThread
from jobsight.transport.spool import Spool


class RemoteWriting:
    """Takes copies of batches. Whoever gives them waits for nothing but the local disk."""

    def __init__(self, where: str, settings: RemoteWriteSettings, folder: Path) -> None:
        self.target = RemoteWriteTarget(where, settings)
        # Copies: the batches themselves are safe elsewhere.
        self.spool = Spool(folder, settings.limit, power_loss=False)
        self._delivery = Delivery(self.spool, self.target)
        self._thread = DeliveryThread(self._delivery)

    def start(self) -> None:
        self._thread.start()
        # What an earlier life left.
        self._thread.notify()

    def take(self, data: bytes) -> None:
        self.spool.keep(data)
        self._thread.notify()

    def text(self) -> str:
        """Figures for the server's /metrics."""
        counts = {
            **self.target.counts(),
            "remote_write_batches": len(self.spool),
            "remote_write_lost_total": self.spool.dropped,
        }
        lines = {
            f"jobsight_server_{name}": [line(f"jobsight_server_{name}", {}, value)]
            for name, value in counts.items()
        }
        return document(SERVER.values(), lines)

    def close(self) -> None:
        """Send what can be sent now; the rest waits for the next life."""
        if self._thread.is_alive():
            self._thread.end()
            if not self._delivery.reason:
                self._delivery.deliver()
        self.spool.close()
