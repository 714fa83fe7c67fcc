"""SAMS's base classes for a site's own modules, where SAMS itself is not installed.

Such a module imports ``sams.base`` and perhaps ``sams.core``. SAMS's package would provide them,
but it also installs commands under the names of ours. :func:`offer` therefore adds a finder behind
all others that provides these two modules, with the classes below. It is called only before a
module of a site is imported, so no other program ever sees a package ``sams`` of jobsight.

The classes have the attributes and methods on which modules of sites rely. The threads of SAMS are
missing: :mod:`jobsight.sams.node.plugins` calls the methods from the loop of the engine.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.abc import Loader as ModuleLoader
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

#: Module that SAMS has -> names in it.
_NAMES: Final = {
    "sams": (),
    "sams.base": (
        "Aggregator",
        "AggregatorException",
        "Backend",
        "BackendException",
        "Config",
        "Listener",
        "Loader",
        "Output",
        "PIDFinder",
        "Sampler",
        "SamplerException",
        "Software",
        "XMLWriter",
    ),
    "sams.core": ("ClassLoader", "Config"),
}
#: The release whose base classes these are.
_RELEASE: Final = "1.10"


def offer() -> None:
    """Let modules that are imported from now on import ``sams.base`` and ``sams.core``."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # The last one: an installed SAMS takes precedence.
        sys.meta_path.append(_Finder())


class _Finder(MetaPathFinder, ModuleLoader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _NAMES:
            return None
        return ModuleSpec(fullname, self, origin="jobsight", is_package=fullname == "sams")

    def exec_module(self, module: ModuleType) -> None:
        for name in _NAMES[module.__name__]:
            setattr(module, name, globals()[name])
        if module.__name__ == "sams":
            module.__dict__["__version__"] = _RELEASE


class Config:
    """Values by section and key. Unlike in SAMS, 0 and false are values."""

    def __init__(
        self, config_file: str | Path | Mapping[str, Any], extra: Mapping[str, Any] | None = None
    ) -> None:
        tree = config_file if isinstance(config_file, Mapping) else _read(Path(config_file))
        self._cfg: dict[str, Any] = _merged(tree, extra or {})

    def get(self, items: Sequence[str], default: Any = None) -> Any:
        value: Any = self._cfg
        for item in items:
            if not isinstance(value, Mapping) or value.get(item) is None:
                return default
            value = value[item]
        return value


def _read(file: Path) -> Mapping[str, Any]:
    from jobsight.sams.settings import read_tree

    return read_tree(file)


def _merged(tree: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(tree)
    for key, value in extra.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return result


class ClassLoader:
    @staticmethod
    def load(package: str, class_name: str) -> Any:
        return getattr(importlib.import_module(package), class_name)


class SamplerException(Exception):
    pass


class AggregatorException(Exception):
    pass


class BackendException(Exception):
    pass


class _Module:
    """What every module of SAMS has: its name and the configuration."""

    def __init__(self, id: str, config: Any) -> None:
        self.id = id
        self.config = config


class Sampler(threading.Thread):
    """A sampler. A thread, because modules may use its attributes; it is never started."""

    def __init__(
        self,
        id: str,
        outQueue: queue.Queue[Any],  # noqa: N803
        config: Any,
    ) -> None:
        super().__init__(name=id, daemon=True)
        self.id = id
        self.outQueue = outQueue
        self.config = config
        self.jobid = config.get(["options", "jobid"])
        self.sampler_interval = config.get([id, "sampler_interval"], 60)
        #: All processes of the job so far.
        self.pids: list[int] = []
        self.pidQueue: queue.Queue[Any] = queue.Queue()
        self._most_recent_sample: list[dict[str, Any]] | None = None

    def init(self) -> None:
        """Called once before the first sample."""

    def do_sample(self) -> bool:
        return bool(self.pids)

    def sample(self) -> None:
        """Measure, and call :meth:`store`."""
        raise NotImplementedError

    def final_data(self) -> Any:
        raise NotImplementedError

    def store(self, data: Any, type: str = "now") -> None:
        self.outQueue.put(self._storage_wrapping(data, type))

    def _storage_wrapping(self, data: Any, type: str = "now") -> dict[str, Any]:
        return {"id": self.id, "data": data, "type": type}

    @property
    def most_recent_sample(self) -> list[dict[str, Any]] | None:
        return self._most_recent_sample

    def exit(self) -> None:
        self.pidQueue.put(None)


class Output(threading.Thread):
    """An output. A thread, because modules may use its attributes; it is never started."""

    def __init__(self, id: str, config: Any) -> None:
        super().__init__(name=id, daemon=True)
        self.id = id
        self.config = config
        self.jobid = config.get(["options", "jobid"])
        self.dataQueue: queue.Queue[Any] = queue.Queue()

    def store(self, data: dict[str, Any]) -> None:
        raise NotImplementedError

    def final(self, data: dict[str, Any]) -> None:
        self.store(data)

    def write(self) -> Any:
        raise NotImplementedError

    def exit(self) -> None:
        self.dataQueue.put(None)


class Listener(ABC):
    """Serves :attr:`encoded_data` on the Unix socket of the job."""

    def __init__(self, id: str, config: Any, samplers: list[Any]) -> None:
        from jobsight.agent.outputs.listener import JobSocket, default_socket_directory

        self.id = id
        self.config = config
        self.samplers = samplers
        self.job_id = config.get(["options", "jobid"], 0)
        directory = config.get([id, "socketdir"], default_socket_directory())
        self._socket = JobSocket(Path(directory), id, self.job_id, self._bytes)
        self.socket_path = str(self._socket.path)

    def _bytes(self) -> bytes:
        data = self.encoded_data
        return data.encode() if isinstance(data, str) else data

    @property
    @abstractmethod
    def encoded_data(self) -> str | bytes:
        raise NotImplementedError

    def start(self) -> None:
        self._socket.start()

    def exit(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class PIDFinder:
    def __init__(self, id: str, jobid: int, config: Any) -> None:
        self.id = id
        self.jobid = jobid
        self.config = config

    def find(self) -> list[int]:
        raise NotImplementedError


class Software(_Module):
    def update(self) -> Any:
        raise NotImplementedError


class Aggregator(_Module):
    def aggregate(self, data: Any) -> Any:
        raise NotImplementedError


class Loader(_Module):
    def load(self) -> Any:
        raise NotImplementedError

    def next(self) -> Any:
        raise NotImplementedError

    def commit(self) -> Any:
        raise NotImplementedError


class Backend(_Module):
    def update(self, software: Any) -> Any:
        raise NotImplementedError

    def extract(self) -> Any:
        raise NotImplementedError


class XMLWriter(_Module):
    def write(self, data: Any) -> Any:
        raise NotImplementedError
