"""A site's own SAMS modules: classes written for SAMS's threads, called by jobsight's agent.

They derive from SAMS's base classes (``Sampler(id, outQueue, config)``, ``Output(id, config)``,
``Listener(id, config, samplers)``, ``Software(id, config)``): those of an installed SAMS, else
those of :mod:`jobsight.sams.node.base_classes`.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import Any

from jobsight.agent.job import Document, JobView, Row
from jobsight.model import Coverage
from jobsight.sams.node import base_classes


def is_site_plugin(part: Any) -> bool:
    """Whether a class derives from SAMS's base classes."""
    modules = ("sams.base", base_classes.__name__)
    return any(base.__module__ in modules for base in getattr(part, "__mro__", ()))


def plugin_config(sections: Mapping[str, Any], view: JobView) -> base_classes.Config:
    """The configuration as SAMS's modules expect it, with the options of the command line."""
    options = {"jobid": view.sighting.job_id, "node": view.sighting.node}
    return base_classes.Config(sections, {"options": options})


class PluginSampler:
    """Calls a SAMS sampler when it is due, without a thread."""

    def __init__(self, part: Any, name: str, interval: float, config: base_classes.Config) -> None:
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

    def __init__(self, part: Any, name: str, config: base_classes.Config) -> None:
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


class PluginListener:
    """Gives a SAMS listener the latest samples and lets it serve them."""

    def __init__(self, part: Any, name: str, config: base_classes.Config) -> None:
        self.name = name
        self._samplers: dict[str, _LatestSample] = {}
        #: Passed to the listener and completed with each new sampler.
        self._listed: list[_LatestSample] = []
        self._part = part(name, config, self._listed)
        self._part.start()
        self._closed = False

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        latest = self._samplers.get(sampler)
        if latest is None:
            latest = self._samplers[sampler] = _LatestSample(sampler)
            self._listed.append(latest)
        latest.most_recent_sample = [{"id": sampler, "data": document, "type": "now"}]

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._part.exit()


class _LatestSample:
    """The attributes of a SAMS sampler that listeners read."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.most_recent_sample: list[dict[str, Any]] | None = None


class PluginMapper:
    """Calls a site's own mapper of paths to software names."""

    def __init__(self, part: Any, name: str, sections: Mapping[str, Any]) -> None:
        self._part = part(name, base_classes.Config(sections))

    def __call__(self, path: str) -> str | None:
        named = self._part.get(path)
        return None if named is None or named.get("ignore") else str(named["software"])
