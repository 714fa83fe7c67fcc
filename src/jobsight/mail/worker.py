"""Sends what is in the queue: one round, and the background worker of ``jobsight serve``.

A request about the end of a job waits until the job's nodes have reported it and it was judged, so
that the mail has its findings, or for ``mail.wait`` seconds; one about a heterogeneous job waits
for all of its components. Requests about tasks of one array are joined to one message, which waits
for the end of the array, or for ``mail.array_wait`` seconds. A message that the mail server does
not accept for now stays in the queue, and its recipient is not tried for a while. If the server
cannot be reached, the round ends: the others would fail for the same reason. A message that it
rejects for good is set aside. If the recipient is the reason, or a bounce says so, mails to it are
paused.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from jobsight.config.settings import FindingsSettings, MailSettings, PriceSettings
from jobsight.errors import JobsightError, StoreError
from jobsight.findings.reported import NO_PRICES
from jobsight.mail.bounce import HEADER
from jobsight.mail.digest import DigestSchedule, for_coordinators, without_causes
from jobsight.mail.message import About, build_message, pages_url, recipient
from jobsight.mail.queue import MailCounts, MailQueue, QueuedMail
from jobsight.mail.request import Bounce, MailRequest, is_address
from jobsight.mail.sender import (
    MailDeferred,
    MailRejected,
    RecipientRejected,
    Sender,
    is_policy,
)
from jobsight.mail.subscriptions import Subscriptions, is_paused
from jobsight.mail.working_days import holidays
from jobsight.model import NODE_SOURCES, SECOND, RunReference
from jobsight.reports.pending import find_info, find_report
from jobsight.reports.report import JobReport
from jobsight.reports.subject import Period, SubjectReport, array_report, period_report
from jobsight.store.findings.due import is_judged
from jobsight.store.findings.shown import Shown, record_shown
from jobsight.store.mail import (
    REFUSED,
    Outcome,
    Pause,
    log_mail,
    paused_causes,
    refuse_recipient,
)
from jobsight.store.read.visibility import EVERYTHING
from jobsight.store.store import Store
from jobsight.util.backoff import Backoff
from jobsight.util.units import format_time
from jobsight.util.workers import PeriodicWorker

logger = logging.getLogger(__name__)

#: Messages that one round tries to send, and seconds after which it begins no further one: with a
#: slow mail server, a round of all would take hours.
MAX_MESSAGES = 500
MAX_ROUND = 300.0
#: Intervals of the worker until a recipient that is refused for now is tried again, at first and at
#: most.
_FIRST_DEFERRAL, _LONGEST_DEFERRAL = 3, 90
#: Seconds after which a message that is refused for now is set aside, as mail servers do.
MAX_AGE = 5 * 86_400


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
        monotonic: Callable[[], float] = time.monotonic,
        sender: Callable[[MailSettings], Sender] = Sender,
        prices: Mapping[str, PriceSettings] = NO_PRICES,
        judging: bool = False,
    ) -> None:
        """``judging``: a run is judged soon after its end, and its mail waits for the findings."""
        # A wrong setting is an error at the start, not at the first mail.
        pages_url(settings)
        self.queue = MailQueue(Path(settings.queue).expanduser())
        self._store = store
        self._prices = prices
        self._judging = judging
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._sender = sender
        #: The recipients that are refused for now.
        self._deferrals: dict[str, Backoff] = {}
        self.counts = MailCounts()
        signs = settings.url or settings.bounces
        self._subscriptions = Subscriptions.of(settings) if signs else None

    def once(self, stopped: Callable[[], bool] = lambda: False) -> Round:
        """Send what is due; a mail server that accepts nothing raises :class:`JobsightError`."""
        try:
            return self._once(stopped)
        finally:
            self.counts.rejected = self.queue.set_aside
            self.counts.queued = self.queue.count()

    def _once(self, stopped: Callable[[], bool]) -> Round:
        self._read_bounces()
        sent = waiting = rejected = 0
        deferred: list[MailDeferred] = []
        end = self._monotonic() + MAX_ROUND
        groups = self._groups()
        self._forget_deferrals(groups)
        with self._sender(self._settings) as sender:
            for group in groups:
                full = sent + len(deferred) >= MAX_MESSAGES
                if stopped() or full or self._monotonic() > end:
                    break
                if self._is_paused(group):
                    self._remove(group)
                    continue
                if self._is_deferred(group):
                    continue
                about = self._about(group)
                if about is None:
                    waiting += len(group)
                    continue
                try:
                    self._send(sender, group, about)
                    sent += 1
                except MailDeferred as error:
                    if self._is_too_old(group):
                        self._refuse_recipient(self._address(group), str(error))
                        rejected += self._set_aside(group, error)
                    else:
                        self._defer(group)
                        deferred.append(error)
                except MailRejected as error:
                    if isinstance(error, RecipientRejected):
                        self._refuse_recipient(self._address(group), str(error))
                    rejected += self._set_aside(group, error)
        if sent or rejected:
            logger.info("mail: %d sent, %d rejected, %d wait", sent, rejected, waiting)
        if deferred and not sent:
            raise deferred[-1]
        return Round(sent, waiting, rejected)

    def _address(self, group: list[QueuedMail]) -> str:
        return recipient(self._settings, group[0].request.to).lower()

    def _is_deferred(self, group: list[QueuedMail]) -> bool:
        backoff = self._deferrals.get(self._address(group))
        return backoff is not None and not backoff.ready

    def _defer(self, group: list[QueuedMail]) -> None:
        """Try the recipient again later: what is refused for now is for the next message, too."""
        address, interval = self._address(group), self._settings.interval or 10.0
        if address not in self._deferrals:
            self._deferrals[address] = Backoff(
                _FIRST_DEFERRAL * interval, _LONGEST_DEFERRAL * interval, clock=self._monotonic
            )
        delay = self._deferrals[address].fail()
        logger.debug("the next mail to %s is tried in %.0f s", address, delay)

    def _forget_deferrals(self, groups: list[list[QueuedMail]]) -> None:
        """Only recipients with mails in the queue are kept, so that the number is limited."""
        waiting = set(map(self._address, groups)) if self._deferrals else set()
        for address in self._deferrals.keys() - waiting:
            del self._deferrals[address]

    def _refuse_recipient(self, address: str, reason: str) -> None:
        with contextlib.suppress(StoreError):
            pause = refuse_recipient(self._store.database, address, reason, self._clock())
            logger.warning("mail: %s gets no mails until %s", address, _until(pause))

    def _read_bounces(self) -> None:
        """Pause mails to the recipients of mails that came back."""
        for name, bounce in self.queue.bounces():
            outcome, reason = self._judge_bounce(bounce)
            if outcome == "refused":
                self._refuse_recipient(bounce.recipient.lower(), reason)
            with contextlib.suppress(StoreError):
                now = self._clock()
                log_mail(self._store.database, "bounce", "", outcome, now=now, reason=reason)
            self.queue.remove_bounce(name)

    def _judge_bounce(self, bounce: Bounce) -> tuple[Outcome, str]:
        if not bounce.recipient:
            return "skipped", "no report of a mail of jobsight that failed"
        subscriptions = self._subscriptions
        # Anybody can send a bounce to the address; only who got the mail has its signature.
        if subscriptions is None or not subscriptions.is_signed_bounce(
            bounce.recipient, bounce.signature
        ):
            return "skipped", "not signed by this server"
        if is_policy(bounce.status):
            return "skipped", f"returned by policy: {bounce.text}"[:300]
        return "refused", f"returned: {bounce.text}"

    def _set_aside(self, group: list[QueuedMail], error: JobsightError) -> int:
        logger.warning("mail %s is rejected: %s", group[0].name, error)
        self._log(group, "refused", str(error))
        for mail in group:
            self.queue.fail(mail.name, str(error))
        return len(group)

    def _is_too_old(self, group: list[QueuedMail]) -> bool:
        return self._clock() - group[-1].request.created > MAX_AGE * SECOND

    def _send(self, sender: Sender, group: list[QueuedMail], about: About) -> None:
        to = recipient(self._settings, group[0].request.to)
        if not is_address(to):
            raise MailRejected(f"{to[:80]!r} is not an address")
        requests = [mail.request for mail in group]
        links, signature = None, ""
        if self._subscriptions is not None:
            links = self._subscriptions.links(to, requests[0].kind)
            signature = self._subscriptions.sign_bounce(to)
        message = build_message(self._settings, group[0].name, requests, about, links)
        if signature:
            message[HEADER] = signature
        sender.send(message, to)
        # The request is removed first: a mail that was sent must not be sent again.
        self._remove(group)
        self.counts.sent += 1
        self._deferrals.pop(to.lower(), None)
        self._log(group, "sent")
        self._record_shown(requests[0], about)

    def _remove(self, group: list[QueuedMail]) -> None:
        for mail in group:
            self.queue.remove(mail.name)

    def _is_paused(self, group: list[QueuedMail]) -> bool:
        causes = paused_causes(self._store.database, self._address(group), self._clock())
        if not is_paused(causes, group[0].request.kind):
            return False
        self._log(group, "skipped", "the recipient was refused" if REFUSED in causes else "paused")
        return True

    def _log(self, group: list[QueuedMail], outcome: Outcome, reason: str = "") -> None:
        """Mails about jobs are counted; of others it is known who got them."""
        request = group[0].request
        to = "" if request.kind == "jobs" else self._address(group)
        with contextlib.suppress(StoreError):
            log_mail(
                self._store.database, request.kind, to, outcome, now=self._clock(), reason=reason
            )

    def _record_shown(self, request: MailRequest, about: About) -> None:
        """Record findings as shown to a user of the system; of an address nobody knows whose it
        is."""
        if "@" in request.to:
            return
        runs: list[tuple[str, str]] = []
        if about.run is not None:
            runs = [(about.run.run, each.kind) for each in about.run.findings if each.holds]
        elif about.several is not None:
            runs = [(each.run, each.kind) for each in about.several.findings if each.run]
        shown: dict[Shown, int] = {}
        with contextlib.suppress(StoreError):
            for run, kind in runs:
                run_id = self._store.find(RunReference.parse(run)).id
                shown[Shown(run_id, kind, request.to, "mail")] = 1
            record_shown(self._store.database, shown, self._clock())

    def _groups(self) -> list[list[QueuedMail]]:
        """The requests by message: tasks of one array and one kind of event are one message."""
        groups: dict[tuple[object, ...], list[QueuedMail]] = {}
        for mail in self.queue.requests():
            request = mail.request
            key: tuple[object, ...] = (mail.name,)
            if request.array_job_id is not None and request.array_task_id is not None:
                key = (request.to, request.cluster, request.array_job_id, request.event)
            groups.setdefault(key, []).append(mail)
        return list(groups.values())

    def _about(self, group: list[QueuedMail]) -> About | None:
        """What a message reports; None if it should wait."""
        request, wait = group[0].request, self._settings.wait
        if request.digest is not None or request.account_digest is not None:
            return About(several=self._digest(request))
        oldest, newest = self._passed(group[0]), self._passed(group[-1])
        if not request.array_summary and request.array_task_id is None:
            if request.event == "begin":
                # There is nothing to measure yet.
                return About()
            about, known = self._of_job(request)
            return about if known or oldest >= wait else None
        complete = request.array_summary or _is_complete(group)
        if request.event != "end":
            if not complete and oldest < wait:
                # More tasks may follow.
                return None
            return About(several=None if request.event == "begin" else self._array(request))
        report = self._array(request)
        count = request.array_task_count or 0
        ended = report is not None and not report.is_open and report.states_of >= count
        if complete:
            known = ended and report is not None and self._is_final(report)
            due = known or newest >= wait
        else:
            # With --mail-type=FAIL there are no requests about the other tasks.
            due = (ended and newest >= wait) or oldest >= self._settings.array_wait
        return About(several=report) if due else None

    def _digest(self, request: MailRequest) -> SubjectReport:
        kind: Period = "account" if request.digest is None else "user"
        about = request.digest or request.account_digest
        assert about is not None
        name, since, until = about
        report = period_report(
            self._store,
            kind,
            name,
            since=since,
            until=until,
            prices=self._prices,
            clock=self._clock,
        )
        if kind == "account":
            report = for_coordinators(self._store, report)
        to = recipient(self._settings, request.to).lower()
        return without_causes(report, paused_causes(self._store.database, to, self._clock()))

    def _passed(self, mail: QueuedMail) -> float:
        return (self._clock() - mail.request.created) / SECOND

    def _of_job(self, request: MailRequest) -> tuple[About, bool]:
        """The report of a job, and whether it is complete. Slurm sends the mails of a heterogeneous
        job for its first component: they are about all components."""
        if request.job_id is None:
            return About(), False
        cluster = request.cluster or None
        reference = RunReference(job_id=request.job_id, cluster=cluster)
        try:
            info = find_info(self._store, reference, EVERYTHING)
            several = None if info.het_job_id is None else self._several(info.het_job_id, cluster)
            if several is not None:
                # Only the scheduler knows all components.
                known = info.source not in NODE_SOURCES
                ended = known and not several.is_open and self._is_final(several)
                return About(several=several), request.event != "end" or ended
            run = find_report(self._store, reference, prices=self._prices, clock=self._clock)
        except StoreError:
            return About(), False
        ended = _has_ended(run) and self._is_judged(run.cluster, run.job_id)
        return About(run=run), request.event != "end" or ended

    def _is_final(self, report: SubjectReport) -> bool:
        """Whether nothing more is expected of the runs that have ended."""
        cluster, job_id = report.cluster or "", int(report.subject)
        return not report.unreported and self._is_judged(cluster, job_id)

    def _is_judged(self, cluster: str, job_id: int) -> bool:
        return not self._judging or is_judged(self._store.database, cluster, job_id)

    def _array(self, request: MailRequest) -> SubjectReport | None:
        assert request.array_job_id is not None
        return self._several(request.array_job_id, request.cluster or None)

    def _several(self, job_id: int, cluster: str | None) -> SubjectReport | None:
        try:
            return array_report(
                self._store, job_id, cluster=cluster, prices=self._prices, clock=self._clock
            )
        except StoreError:
            return None


def _until(pause: Pause) -> str:
    return "further notice" if pause.until is None else format_time(pause.until)


def _has_ended(run: JobReport) -> bool:
    """Whether the scheduler and all nodes have reported the end."""
    nodes = run.node_rows
    return run.end is not None and bool(nodes) and all(row.final for row in nodes)


def _is_complete(group: list[QueuedMail]) -> bool:
    """Whether there is a request about every task of the array."""
    tasks = {mail.request.array_task_id for mail in group}
    return len(tasks) >= (group[0].request.array_task_count or len(tasks) + 1)


def mailing(
    store: Store,
    settings: MailSettings,
    findings: FindingsSettings,
    counts: MailCounts | None = None,
) -> PeriodicWorker:
    """A thread that sends the mails of the queue every ``mail.interval`` seconds."""
    # A wrong setting is an error at the start.
    holidays(settings)
    worker = MailWorker(store, settings, prices=findings.prices, judging=findings.interval > 0)
    worker.counts = counts or worker.counts
    digests = DigestSchedule(store, worker.queue, settings)

    def work(stopped: threading.Event) -> None:
        worker.once(stopped.is_set)
        # Afterwards: a queue that is full has to be sent first.
        digests.once()

    return PeriodicWorker(
        "mail",
        work,
        settings.interval,
        logger=logger,
        failure="mails are not sent",
        backoff=Backoff(5.0, 60.0),
    )
