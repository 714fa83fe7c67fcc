"""Pushes the series of the node's jobs to a Pushgateway, as one group per node and job.

A group is replaced atomically while its job runs, and once more when the job ends. It is deleted
when these last values have been exposed long enough, and when the agent stops. The list of groups
is written to disk before they are created, so that the next agent deletes the groups of one that
was killed.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from jobsight.agent.exporter.exporter import Exporter
from jobsight.agent.exporter.job_series import JobSeries
from jobsight.config.settings import PushSettings
from jobsight.errors import JobsightError
from jobsight.prometheus import names
from jobsight.prometheus.exposition import PLAIN, document
from jobsight.transport.http import Web
from jobsight.util.decoding import decode_json_as
from jobsight.util.durable import write_atomically
from jobsight.util.log_once import LogOnce

logger = logging.getLogger(__name__)

_FAMILIES: Final = tuple(chain(names.OWN.values(), names.PETRICORE.values()))
#: Seconds before the first push, in which the agent finds the running jobs.
_FIRST_DELAY: Final = 2.0
#: Seconds in which the groups are deleted when the agent stops.
_STOP_TIMEOUT: Final = 5.0


class _GroupList(msgspec.Struct):
    gateway: str
    groups: list[str]


class Pusher(threading.Thread):
    """Pushes in a thread, so that an unreachable gateway delays nothing else."""

    def __init__(self, exporter: Exporter, settings: PushSettings, groups_file: Path) -> None:
        super().__init__(name="push", daemon=True)
        self._exporter = exporter
        self._web = Web("agent.push", settings)
        self._gateway = Pushgateway(self._web)
        self._interval = settings.interval
        self._job = settings.job
        self._groups_file = groups_file
        self._stopped = threading.Event()
        self._wake = threading.Event()
        #: Groups of jobs that ended since the last push.
        self._ended: deque[str] = deque()
        exporter.on_end.append(self.job_ended)
        self._groups = self._load_groups()
        self.failures = 0
        #: Whether the last request got no reply.
        self._unreachable = False
        self._log = LogOnce(logger)

    def counts(self) -> Mapping[str, int]:
        return {"push_failures_total": self.failures}

    def run(self) -> None:
        logger.info("pushing to %s every %g s", self._web.name, self._interval)
        next_push = time.monotonic() + min(self._interval, _FIRST_DELAY)
        while True:
            self._wake.wait(self._timeout(next_push))
            self._wake.clear()
            if self._stopped.is_set():
                break
            try:
                if time.monotonic() >= next_push:
                    self.push()
                    next_push = time.monotonic() + self._interval
                else:
                    self.push(only_ended=True)
            except Exception:
                logger.exception("a push failed")
                self.failures += 1
                next_push = time.monotonic() + self._interval
        if not self._unreachable:
            self._delete_groups(self._groups, time.monotonic() + _STOP_TIMEOUT)

    def _timeout(self, next_push: float) -> float:
        """Seconds until the next push, or until the series of an ended job expire."""
        timeout = next_push - time.monotonic()
        expiry = self._exporter.next_expiry
        return max(0.0, timeout if expiry is None else min(timeout, expiry))

    def stop(self) -> None:
        """Stop, and delete the groups within a few seconds. The next agent deletes the rest."""
        self._stopped.set()
        self._wake.set()
        if self.is_alive():
            self.join(2 * _STOP_TIMEOUT)

    def job_ended(self, job: JobSeries) -> None:
        """Push the final values of a job at once: the series may expire before the next push."""
        self._ended.append(self._group(job))
        self._wake.set()

    def push(self, *, only_ended: bool = False) -> None:
        """Replace the groups of the running jobs, or of those that ended since the last call, and
        delete all others."""
        jobs = {self._group(job): job for job in self._exporter.jobs}
        ended = {self._ended.popleft() for _ in range(len(self._ended))}
        self._save_groups(self._groups | jobs.keys())
        for group, job in jobs.items():
            if only_ended and group not in ended:
                continue
            text = document(_FAMILIES, {name: [text] for name, text in job.lines.items()})
            if text and self._try(partial(self._gateway.replace, group, text.encode())) is None:
                return
            if self._stopped.is_set():
                return
        self._delete_groups(self._groups - jobs.keys(), time.monotonic() + self._interval)

    def _group(self, job: JobSeries) -> str:
        node, job_id = job.key
        return group_path(self._job, {"instance": node, "slurm_job": str(job_id)})

    def _delete_groups(self, groups: set[str], deadline: float) -> None:
        for group in sorted(groups):
            deleted = self._try(partial(self._gateway.delete, group))
            if deleted:
                self._save_groups(self._groups - {group})
            if deleted is None or time.monotonic() >= deadline:
                break

    def _try(self, request: Callable[[], None]) -> bool | None:
        """Whether the request succeeded; None if the gateway is unreachable."""
        try:
            request()
        except GatewayError as error:
            self._unreachable = False
            self._fail(str(error))
            return False
        except OSError as error:
            self._unreachable = True
            self._fail(f"{self._web.name} does not answer: {error}")
            return None
        self._unreachable = False
        self._log.resolve("push", f"{self._web.name} accepts pushes again")
        return True

    def _fail(self, reason: str) -> None:
        self.failures += 1
        self._log.report("push", f"{reason}; measuring continues")

    def _load_groups(self) -> set[str]:
        try:
            stored = decode_json_as(_GroupList, self._groups_file.read_bytes())
        except (OSError, msgspec.MsgspecError):
            return set()
        return set(stored.groups) if stored.gateway == self._web.name else set()

    def _save_groups(self, groups: set[str]) -> None:
        if groups == self._groups:
            return
        self._groups = groups
        data = msgspec.json.encode(_GroupList(self._web.name, sorted(groups)))
        try:
            self._groups_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._groups_file, data, sync=False)
        except OSError as error:
            self._fail(f"{self._groups_file} cannot be written: {error.strerror}")


class GatewayError(JobsightError):
    """The gateway refused a request."""


class Pushgateway:
    """The HTTP interface of a Pushgateway. Raises OSError if there is no reply."""

    def __init__(self, web: Web) -> None:
        self._web = web

    def replace(self, group: str, text: bytes) -> None:
        """Replace all series of a group; it is never empty in between."""
        self._request("PUT", group, text)

    def delete(self, group: str) -> None:
        self._request("DELETE", group, b"")

    def _request(self, method: str, group: str, body: bytes) -> None:
        reply = self._web.send(method, group, body, {"Content-Type": PLAIN})
        if not 200 <= reply.status < 300:
            text = reply.body.decode(errors="replace").strip()[:300]
            raise GatewayError(f"{self._web.name} answered {reply.status} to {method}: {text}")


def group_path(job: str, labels: Mapping[str, str]) -> str:
    """The URL path of a group. A value that a path cannot contain is encoded in base64."""
    parts = [_part("job", job), *(_part(name, value) for name, value in labels.items())]
    return "/metrics" + "".join(parts)


def _part(name: str, value: str) -> str:
    if value and "/" not in value:
        return f"/{name}/{quote(value, safe='')}"
    encoded = base64.urlsafe_b64encode(value.encode()).decode().rstrip("=") or "="
    return f"/{name}@base64/{encoded}"
