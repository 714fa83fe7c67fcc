"""A site's own SAMS modules: classes written for SAMS's threads, called by jobsight's agent.

They derive from SAMS's base classes (``Sampler(id, outQueue, config)``, ``Output(id, config)``), so
SAMS itself must be installed where they are used.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import Any

from jobsight.agent.job import Document, JobView, Row
from jobsight.model import Coverage


def is_site_plugin(part: Any) -> bool:
    """Whether a class derives from SAMS's base classes."""
    return any(base.__module__ == "sams.base" for base in getattr(part, "__mro__", ()))


class PluginConfig:
    """SAMS's configuration object: values by section and key. Unlike in SAMS, 0 is a value."""

    def __init__(self, sections: Mapping[str, Any], view: JobView) -> None:
        options = {"jobid": view.sighting.job_id, "node": view.sighting.node}
        self._sections: dict[str, Any] = {**sections, "options": options}

    def get(self, items: list[str], default: Any = None) -> Any:
        value: Any = self._sections
        for item in items:
            if not isinstance(value, Mapping) or value.get(item) is None:
                return default
            value = value[item]
        return value


class PluginSampler:
    """Calls a SAMS sampler when it is due, without a thread."""

    def __init__(self, part: Any, name: str, interval: float, config: PluginConfig) -> None:
        self.name = name
        self.interval = interval
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self._part = part(name, self._messages, config)
        self._seen: set[int] = set()
        self._ready = False

    def columns(self, view: JobView) -> Row:
        return {}

    def document(self, view: JobView) -> Document | None:
        if not self._ready:
            self._ready = True
            self._part.init()
        new = [pid for pid in view.usage.members if pid not in self._seen]
        self._seen.update(new)
        self._part.pids.extend(new)
        if self._part.do_sample():
            self._part.sample()
        return self._queued()

    def _queued(self) -> Document | None:
        """The messages in its queue, joined to one document; there may be one per GPU."""
        document: Document | None = None
        while not self._messages.empty():
            message = self._messages.get()
            self._messages.task_done()
            document = (document or {}) | message["data"]
        return document

    def final(self, view: JobView) -> Document:
        return dict(self._part.final_data() or {})

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        """SAMS's samplers report no coverage."""
        return {}

    def close(self) -> None:
        pass


class PluginOutput:
    """Calls a SAMS output from jobsight's thread."""

    def __init__(self, part: Any, name: str, config: PluginConfig) -> None:
        self.name = name
        self._part = part(name, config)
        self._stored = False

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        self._part.store({sampler: document})

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        if not self._stored:
            self._stored = True
            for sampler, document in documents.items():
                self._part.store({sampler: document})
                self._part.final({sampler: document})
        if self._part.write() is False:
            # SAMS treats this as success and loses the record.
            raise OSError(f"{self.name} could not write")

    def close(self) -> None:
        pass
