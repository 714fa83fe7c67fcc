"""``sams.output.Prometheus``: the latest values of a job as a file for node_exporter."""

from __future__ import annotations

import fcntl
import glob
import os
import re
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.mapping import check_template
from jobsight.agent.outputs.sams_record import safe_part
from jobsight.agent.outputs.templates import Exposition, ExpositionOptions
from jobsight.errors import ConfigError
from jobsight.util.durable import temporary_name

#: The first line of every file of this output; files without it are never removed.
_HEADER: Final = b"# jobsight: the job runs as long as this file is locked\n"


class TextfileOptions(ExpositionOptions, kw_only=True):
    path: str = "/var/lib/prometheus/node-exporter/slurm_%(jobid)s.prom"
    #: The umask does not apply, since node_exporter runs as another user.
    mode: str = "0644"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_template("path", self.path, {"jobid": 1, "node": "n"})
        try:
            self.permissions()
        except ValueError:
            raise ConfigError(f"mode: {self.mode!r} is not octal; expected '0644'") from None

    def permissions(self) -> int:
        mode = int(self.mode, 8)
        if not 0 <= mode <= 0o777:
            raise ValueError
        return mode


class TextfileOutput:
    """Rewrites the file at every sample and removes it at the end of the job.

    The current file is kept locked. After a crash it is not, so that the next start can remove
    it.
    """

    Options: ClassVar[type[msgspec.Struct]] = TextfileOptions

    def __init__(
        self, options: TextfileOptions, view: JobView, name: str = "sams.output.Prometheus"
    ) -> None:
        self.name = name
        self._exposition = Exposition(options)
        self._mode = options.permissions()
        names = {"jobid": view.sighting.job_id, "node": safe_part(view.sighting.node)}
        self.path = Path(options.path % names)
        self._lock: int | None = None
        remove_stale(options.path)

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        if self._exposition.update(view, sampler, document):
            self._publish(_HEADER + self._exposition.text().encode())

    def _publish(self, data: bytes) -> None:
        temporary = temporary_name(self.path)
        temporary.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fchmod(descriptor, self._mode)
            # No fsync: after a power failure neither the job nor its file is needed.
            os.replace(temporary, self.path)
        except OSError:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        if self._lock is not None:
            os.close(self._lock)
        self._lock = descriptor

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        """Remove the series of a job that has ended."""
        self.close()

    def close(self) -> None:
        if self._lock is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None


def remove_stale(pattern: str) -> list[Path]:
    """Remove the files of collectors that were killed."""
    wildcard = re.sub(r"%\([a-z]+\)[-+ #0-9.]*[a-z]", "*", glob.escape(pattern)).replace("%%", "%")
    removed = []
    for name in glob.glob(wildcard):
        if _is_stale(name):
            Path(name).unlink(missing_ok=True)
            removed.append(Path(name))
    return removed


def _is_stale(name: str) -> bool:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.read(descriptor, len(_HEADER)) != _HEADER:
            return False
        # A running collector may have replaced the file between the open and the lock.
        return os.path.samestat(os.fstat(descriptor), os.stat(name))
    except OSError:
        return False
    finally:
        os.close(descriptor)
