"""Sends what is in the queue: one round, and the background worker of ``jobsight serve``.

A request about the end of a job waits until the job's nodes have reported it, or for
``mail.wait`` seconds. Requests about tasks of one array are joined to one message. A message that
the mail server does not accept for now stays in the queue, and the round ends: the others would
fail for the same reason. One that it rejects for good is set aside.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jobsight.config.settings import MailSettings
from jobsight.errors import StoreError
from jobsight.mail.message import build_message, recipient
from jobsight.mail.queue import MailQueue, QueuedMail
from jobsight.mail.request import is_address
from jobsight.mail.sender import MailRejected, Sender
from jobsight.model import SECOND, RunReference
from jobsight.reports.pending import find_report
from jobsight.reports.report import JobReport
from jobsight.store.store import Store
from jobsight.util.backoff import Backoff
from jobsight.util.workers import PeriodicWorker

logger = logging.getLogger(__name__)

#: Messages in one round.
MAX_MESSAGES = 500
#: Tasks of an array whose reports are read for one message.
MAX_TASKS = 500
_ENDED = frozenset({"END", "FAIL", "REQUEUE", "TIME_LIMIT"})


class Round(NamedTuple):
    """What one round did."""

    sent: int
    #: Requests that wait for the end of a run or for more tasks of their array.
    waiting: int
    rejected: int


class MailWorker:
    """Sends the mails of a queue."""

    def __init__(
        self,
        store: Store,
        settings: MailSettings,
        *,
        clock: Callable[[], int] = time.time_ns,
        sender: Callable[[MailSettings], Sender] = Sender,
    ) -> None:
        self.queue = MailQueue(Path(settings.queue).expanduser())
        self._store = store
        self._settings = settings
        self._clock = clock
        self._sender = sender

    def once(self, stopped: Callable[[], bool] = lambda: False) -> Round:
        """Send what is due; a mail server that is unavailable raises :class:`JobsightError`."""
        sent = waiting = rejected = 0
        with self._sender(self._settings) as sender:
            for group in self._groups()[:MAX_MESSAGES]:
                if stopped():
                    break
                reports = self._due(group)
                if reports is None:
                    waiting += len(group)
                    continue
                try:
                    self._send(sender, group, reports)
                    sent += 1
                except MailRejected as error:
                    rejected += len(group)
                    logger.warning("mail %s is rejected: %s", group[0].name, error)
                    for mail in group:
                        self.queue.fail(mail.name, str(error))
        if sent or rejected:
            logger.info("mail: %d sent, %d rejected, %d wait", sent, rejected, waiting)
        return Round(sent, waiting, rejected)

    def _send(self, sender: Sender, group: list[QueuedMail], reports: list[JobReport]) -> None:
        to = recipient(self._settings, group[0].request.to)
        if not is_address(to):
            raise MailRejected(f"{to[:80]!r} is not an address")
        requests = [mail.request for mail in group]
        message = build_message(self._settings, group[0].name, requests, reports)
        sender.send(message, to)
        for mail in group:
            self.queue.remove(mail.name)

    def _groups(self) -> list[list[QueuedMail]]:
        """The requests by message: tasks of one array and one kind of event are one message."""
        groups: dict[tuple[object, ...], list[QueuedMail]] = {}
        for mail in self.queue.requests():
            request = mail.request
            key: tuple[object, ...] = (mail.name,)
            if request.array_job_id is not None and request.array_task_id is not None:
                event = request.variables.get("SLURM_JOB_MAIL_TYPE", "")
                key = (request.to, request.cluster, request.array_job_id, event)
            groups.setdefault(key, []).append(mail)
        return list(groups.values())

    def _due(self, group: list[QueuedMail]) -> list[JobReport] | None:
        """The reports for a message; None if it should wait."""
        now = self._clock()
        newest = max(mail.request.created for mail in group)
        oldest = min(mail.request.created for mail in group)
        patient = now - oldest < self._settings.wait * SECOND
        joined = len(group) > 1 or group[0].request.array_task_id is not None
        if joined and patient and now - newest < self._settings.array_wait * SECOND:
            # More tasks may follow.
            return None
        reports = [self._report(mail) for mail in group[:MAX_TASKS]]
        if patient and any(
            report is None or (report.running and _is_end(mail))
            for mail, report in zip(group, reports, strict=False)
        ):
            return None
        return [report for report in reports if report is not None]

    def _report(self, mail: QueuedMail) -> JobReport | None:
        request = mail.request
        if request.job_id is None:
            return None
        reference = RunReference(job_id=request.job_id, cluster=request.cluster or None)
        try:
            return find_report(self._store, reference, clock=self._clock)
        except StoreError:
            return None


def _is_end(mail: QueuedMail) -> bool:
    return mail.request.variables.get("SLURM_JOB_MAIL_TYPE", "").upper() in _ENDED or any(
        word in mail.request.subject for word in (" Ended,", " Failed,", " Cancelled")
    )


def mailing(store: Store, settings: MailSettings) -> PeriodicWorker:
    """A thread that sends the mails of the queue every ``mail.interval`` seconds."""
    worker = MailWorker(store, settings)
    return PeriodicWorker(
        "mail",
        lambda stopped: worker.once(stopped.is_set),
        settings.interval,
        logger=logger,
        failure="mails are not sent",
        backoff=Backoff(5.0, 300.0),
    )
