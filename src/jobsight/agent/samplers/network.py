"""What went over the node's network while the job ran: Ethernet and InfiniBand."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from typing import Final

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers.base import JobSampler, item, texts
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Counter
from jobsight.model import SECOND, Coverage

#: Figure -> file below ``statistics`` of an interface.
ETHERNET: Final = {
    "received_bytes": "rx_bytes",
    "sent_bytes": "tx_bytes",
    "received_packets": "rx_packets",
    "sent_packets": "tx_packets",
    "errors": "rx_errors",
}
#: Figure -> file below ``counters`` of a port. InfiniBand counts data in words of four bytes.
INFINIBAND: Final = {
    "received_bytes": "port_rcv_data",
    "sent_bytes": "port_xmit_data",
    "received_packets": "port_rcv_packets",
    "sent_packets": "port_xmit_packets",
    "errors": "port_rcv_errors",
}
_WORD: Final = 4
#: A counter of 32 bits that stands here has stopped; it does not wrap.
_SATURATED: Final = 2**32 - 1
_FIND_AGAIN: Final = 60 * SECOND

Figures = dict[tuple[str, str], int]


class NodeNetwork:
    """The counters of all links of the node, read once for all its jobs."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._counters: dict[tuple[str, str], Counter] = {}

    def read(self) -> Figures:
        """Totals by link and figure, growing from the first reading on."""
        found: Figures = {}
        links = self._node.reading("network links", lambda: list(self._links()), _FIND_AGAIN).value
        for link, figure, path, unit in links:
            try:
                value = int(self._node.files.read(path))
            except (OSError, ValueError) as error:
                if not isinstance(error, FileNotFoundError):
                    self._node.errors.note(f"network {link}", error)
                continue
            if unit == _WORD and value == _SATURATED:
                self._node.errors.note(f"network {link}", f"the counter {path} is full")
                continue
            counter = self._counters.setdefault((link, figure), Counter())
            found[link, figure] = counter.update(value) * unit
        return found

    def _links(self) -> Iterator[tuple[str, str, str, int]]:
        """Link, figure, file and bytes per count."""
        root = self._node.sys / "class" / "net"
        for name in _names(str(root)):
            for figure, file in ETHERNET.items():
                yield name, figure, f"{root}/{name}/statistics/{file}", 1
        root = self._node.sys / "class" / "infiniband"
        for name in _names(str(root)):
            for port in _names(f"{root}/{name}/ports"):
                folder = f"{root}/{name}/ports/{port}"
                for figure, file in INFINIBAND.items():
                    path = f"{folder}/counters/{file}"
                    # Old drivers keep the counters of 64 bits apart.
                    wide = f"{folder}/counters_ext/{file}_64"
                    path = wide if os.path.exists(wide) else path
                    yield f"{name}:{port}", figure, path, _WORD if file.endswith("data") else 1


class Network(JobSampler):
    """The growth of the node's counters since the job's first sample."""

    name = "jobsight.network"

    def __init__(
        self,
        *,
        interfaces: Sequence[str] | None = None,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        self._wanted = texts(self.name, "interfaces", interfaces)
        self._links: dict[str, bool] = {}
        self._base: Figures = {}
        self._last: Figures = {}

    def _look(self) -> Figures:
        shared = self.node.shared("network", lambda: NodeNetwork(self.node))
        try:
            totals = self.node.reading("network", shared.read).value
        except (OSError, ValueError) as error:
            self.errors.note("network", error)
            return {}
        grown: Figures = {}
        for key, total in totals.items():
            if self._is_wanted(key[0]):
                grown[key] = total - self._base.setdefault(key, total)
        self._last |= grown
        return grown

    def _is_wanted(self, link: str) -> bool:
        """The links of the settings; without them all that are real hardware."""
        known = self._links.get(link)
        if known is None:
            if self._wanted:
                known = any(fnmatch.fnmatchcase(link, pattern) for pattern in self._wanted)
            else:
                hardware = f"{self.node.sys}/class/net/{link}/device"
                known = ":" in link or os.path.exists(hardware)
            self._links[link] = known
        return known

    def columns(self, view: JobView) -> Row:
        return {
            f"network.{name}.{figure}": value
            for (link, figure), value in self._look().items()
            if (name := item(link)) is not None
        }

    def document(self, view: JobView) -> Document | None:
        return _nested(self._look()) or None

    def final(self, view: JobView) -> Document:
        self._look()
        return _nested(self._last)

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        if not self._last:
            return {}
        reason = "counters of the whole node while the job ran"
        return {"network": Coverage(quality="estimate", reason=reason)}


def _nested(figures: Figures) -> Document:
    found: Document = {}
    for (link, figure), value in figures.items():
        found.setdefault(link, {})[figure] = value
    return found


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
