"""Traffic on the node's network while the job ran: Ethernet and InfiniBand."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Unpack

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers.base import JobSampler, SamplerOptions, item_name, text_list
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Counter
from jobsight.model import SECOND, Coverage

#: Metric -> file below ``statistics`` of an interface.
ETHERNET: Final = {
    "received_bytes": "rx_bytes",
    "sent_bytes": "tx_bytes",
    "received_packets": "rx_packets",
    "sent_packets": "tx_packets",
    "errors": "rx_errors",
}
#: Metric -> file below ``counters`` of a port. InfiniBand counts data in units of four bytes.
INFINIBAND: Final = {
    "received_bytes": "port_rcv_data",
    "sent_bytes": "port_xmit_data",
    "received_packets": "port_rcv_packets",
    "sent_packets": "port_xmit_packets",
    "errors": "port_rcv_errors",
}
_WORD: Final = 4
#: A 32-bit counter of InfiniBand stops at its maximum instead of wrapping.
_SATURATED: Final = 2**32 - 1
_LIST_INTERVAL: Final = 60 * SECOND

#: By link and metric.
Values = dict[tuple[str, str], int]


class NodeNetwork:
    """The counters of all links of the node, read once per round for all its jobs."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._counters: dict[tuple[str, str], Counter] = {}

    def read(self) -> Values:
        """The growth of each counter since the first reading."""
        totals: Values = {}
        links = self._node.reading(
            "network links", lambda: list(self._links()), _LIST_INTERVAL
        ).value
        for link, metric, path, unit in links:
            try:
                value = int(self._node.files.read(path))
            except (OSError, ValueError) as error:
                if not isinstance(error, FileNotFoundError):
                    self._node.errors.add(f"network {link}", error)
                continue
            if unit == _WORD and value == _SATURATED:
                self._node.errors.add(
                    f"network {link}", f"the counter {path} has reached its maximum"
                )
                continue
            counter = self._counters.setdefault((link, metric), Counter())
            totals[link, metric] = counter.update(value) * unit
        return totals

    def _links(self) -> Iterator[tuple[str, str, str, int]]:
        """Link, metric, file and bytes per count."""
        root = self._node.sys / "class" / "net"
        for name in _names(str(root)):
            for metric, file in ETHERNET.items():
                yield name, metric, f"{root}/{name}/statistics/{file}", 1
        for link, files in infiniband_files(self._node.sys, INFINIBAND).items():
            for metric, (path, unit) in zip(INFINIBAND, files, strict=True):
                yield link, metric, path, unit


def infiniband_files(sys: Path, metrics: Iterable[str]) -> dict[str, list[tuple[str, int]]]:
    """The counter of each metric, and its bytes per count, by device and port."""
    root = sys / "class" / "infiniband"
    ports: dict[str, list[tuple[str, int]]] = {}
    for name in _names(str(root)):
        for port in _names(f"{root}/{name}/ports"):
            directory = f"{root}/{name}/ports/{port}"
            ports[f"{name}:{port}"] = [
                (_counter_file(directory, INFINIBAND[metric]), _unit(INFINIBAND[metric]))
                for metric in metrics
            ]
    return ports


def _counter_file(directory: str, file: str) -> str:
    # Old drivers have the 64-bit counters in a directory of their own.
    wide = f"{directory}/counters_ext/{file}_64"
    return wide if os.path.exists(wide) else f"{directory}/counters/{file}"


def _unit(file: str) -> int:
    return _WORD if file.endswith("data") else 1


class Network(JobSampler):
    """The growth of the node's counters since the job's first sample."""

    name = "jobsight.network"

    def __init__(
        self,
        *,
        interfaces: Sequence[str] | None = None,
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        self._patterns = text_list(self.name, "interfaces", interfaces)
        self._selected: dict[str, bool] = {}
        self._base: Values = {}
        self._last: Values = {}

    def _read(self) -> Values:
        shared = self.node.shared("network", lambda: NodeNetwork(self.node))
        try:
            totals = self.node.reading("network", shared.read).value
        except (OSError, ValueError) as error:
            self.errors.add("network", error)
            return {}
        grown = {
            key: total - self._base.setdefault(key, total)
            for key, total in totals.items()
            if self._is_selected(key[0])
        }
        self._last |= grown
        return grown

    def _is_selected(self, link: str) -> bool:
        """Whether the settings name the link or, without settings, whether it is hardware."""
        selected = self._selected.get(link)
        if selected is None:
            if self._patterns:
                selected = any(fnmatch.fnmatchcase(link, pattern) for pattern in self._patterns)
            else:
                hardware = f"{self.node.sys}/class/net/{link}/device"
                selected = ":" in link or os.path.exists(hardware)
            self._selected[link] = selected
        return selected

    def columns(self, view: JobView) -> Row:
        return {
            f"network.{name}.{metric}": value
            for (link, metric), value in self._read().items()
            if (name := item_name(link)) is not None
        }

    def document(self, view: JobView) -> Document | None:
        return _nested(self._read()) or None

    def final(self, view: JobView) -> Document:
        self._read()
        return _nested(self._last)

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        if not self._last:
            return {}
        reason = "counters of the whole node while the job ran"
        return {"network": Coverage(quality="estimate", reason=reason)}


def _nested(values: Values) -> Document:
    document: Document = {}
    for (link, metric), value in values.items():
        document.setdefault(link, {})[metric] = value
    return document


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
