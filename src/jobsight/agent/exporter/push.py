"""Pushes the series of the node's jobs to a Pushgateway, a group for each node and job.

A group is replaced and never emptied while its job runs. It is deleted when the job's last values
have been offered long enough, and when the agent ends. Which groups there are is written down
before they are made, so that the next agent takes away what a killed one left.

A Pushgateway: groups that are replaced as a whole and taken away when they are over.
"""

from __future__ import annotations

import base64
import logging
import os
import threading
import time
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

logger = logging.getLogger("jobsight.agent")

_FAMILIES: Final = tuple(chain(names.OWN.values(), names.PETRICORE.values()))
#: Until then the agent has found the jobs that run.
_FIRST: Final = 2.0
#: Seconds in which all groups are to be deleted at the agent's end.
_END: Final = 5.0


class _Remembered(msgspec.Struct):
    gateway: str
    groups: list[str]


class Pusher(threading.Thread):
    """Pushes in a thread of its own: a gateway that is away or hangs delays nothing but itself."""

    def __init__(self, exporter: Exporter, settings: PushSettings, memory: Path) -> None:
        super().__init__(name="push", daemon=True)
        self._exporter = exporter
        self._web = Web("agent.push", settings)
        self._gateway = Pushgateway(self._web)
        self._every = settings.interval
        self._job = settings.job
        self._memory = memory
        self._ended = threading.Event()
        self._known = self._load()
        self.failures = 0
        #: The last request got no answer.
        self._away = False
        self._said = ""

    def counts(self) -> Mapping[str, int]:
        return {"push_failures_total": self.failures}

    def run(self) -> None:
        self._ended.wait(min(self._every, _FIRST))
        while not self._ended.is_set():
            try:
                self.push()
            except Exception:
                logger.exception("a push")
                self.failures += 1
            self._ended.wait(self._every)
        if not self._away:
            self._take_away(self._known, time.monotonic() + _END)

    def end(self) -> None:
        """Delete what there is, as far as the gateway lets us in a few seconds. The next agent
        does the rest."""
        self._ended.set()
        if self.is_alive():
            self.join(2 * _END)

    def push(self) -> None:
        """One round: replace the groups of the jobs that run, delete all others."""
        jobs = {self._group(job): job for job in self._exporter.jobs}
        self._remember(self._known | jobs.keys())
        for group, job in jobs.items():
            text = document(_FAMILIES, {name: [text] for name, text in job.lines.items()})
            if text and self._tried(partial(self._gateway.replace, group, text.encode())) is None:
                return
            if self._ended.is_set():
                return
        self._take_away(self._known - jobs.keys(), time.monotonic() + self._every)

    def _group(self, job: JobSeries) -> str:
        node, job_id = job.key
        return group_path(self._job, {"instance": node, "slurm_job": str(job_id)})

    def _take_away(self, groups: set[str], deadline: float) -> None:
        for group in sorted(groups):
            done = self._tried(partial(self._gateway.delete, group))
            if done:
                self._remember(self._known - {group})
            if done is None or time.monotonic() >= deadline:
                break

    def _tried(self, action: Callable[[], None]) -> bool | None:
        """Whether it was done; None where there was no answer and the rest need not be tried."""
        try:
            action()
            self._away = False
        except GatewayError as error:
            self._failed(str(error))
            return False
        except OSError as error:
            self._away = True
            self._failed(f"{self._web.name} does not answer: {error}")
            return None
        self._said = ""
        return True

    def _failed(self, reason: str) -> None:
        self.failures += 1
        if reason != self._said:
            logger.warning("%s; measuring goes on", reason)
        self._said = reason

    def _load(self) -> set[str]:
        try:
            found = msgspec.json.decode(self._memory.read_bytes(), type=_Remembered)
        except (OSError, msgspec.MsgspecError):
            return set()
        return set(found.groups) if found.gateway == self._web.name else set()

    def _remember(self, groups: set[str]) -> None:
        if groups == self._known:
            return
        self._known = groups
        temporary = self._memory.with_name(f".{self._memory.name}.new")
        try:
            self._memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(_Remembered(self._web.name, sorted(groups))))
            os.replace(temporary, self._memory)
        except OSError as error:
            self._failed(f"{self._memory} cannot be written: {error.strerror}")


class GatewayError(JobsightError):
    """The gateway answered, but did not do it."""


def group_path(job: str, labels: Mapping[str, str]) -> str:
    """The path of a group. A value that the path cannot hold is written in base 64."""
    parts = [_part("job", job), *(_part(name, value) for name, value in labels.items())]
    return "/metrics" + "".join(parts)


def _part(name: str, value: str) -> str:
    if value and "/" not in value:
        return f"/{name}/{quote(value, safe='')}"
    coded = base64.urlsafe_b64encode(value.encode()).decode().rstrip("=") or "="
    return f"/{name}@base64/{coded}"


class Pushgateway:
    """The two things that are done with a group. No answer is an OSError."""

    def __init__(self, web: Web) -> None:
        self._web = web

    def replace(self, group: str, text: bytes) -> None:
        """Put these series in the place of all that the group held: it is never empty."""
        self._do("PUT", group, text)

    def delete(self, group: str) -> None:
        self._do("DELETE", group, b"")

    def _do(self, method: str, group: str, body: bytes) -> None:
        reply = self._web.send(method, group, body, {"Content-Type": PLAIN})
        if not 200 <= reply.status < 300:
            text = reply.body.decode(errors="replace").strip()[:300]
            raise GatewayError(f"{self._web.name} answered {reply.status} to {method}: {text}")
