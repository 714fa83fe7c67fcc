"""Alerts for staff: new findings about the system, as signed JSON to a webhook.

A request has the time and the HMAC-SHA256 of ``time.body`` in its headers, so that a receiver can
refuse what is forged or repeated. A receiver that does not answer gets the same alert again, with
the same id; the delay between attempts grows.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from jobsight.config.settings import MailSettings
from jobsight.errors import ConfigError, JobsightError
from jobsight.findings.finding import SEVERITIES
from jobsight.findings.reported import add_address
from jobsight.findings.stored import from_row
from jobsight.mail.message import pages_url
from jobsight.mail.working_days import is_working_day
from jobsight.model import SECOND, Run
from jobsight.store.checkpoints import Checkpoint, read_checkpoint, set_checkpoint
from jobsight.store.findings.read import AgePosition, ListedFinding, new_findings
from jobsight.store.mail import Outcome, log_mail, paused_causes
from jobsight.store.store import Store
from jobsight.transport.client import Address, HttpClient, HttpError
from jobsight.util.backoff import Backoff
from jobsight.util.outer import encode_json
from jobsight.util.workers import PeriodicWorker

logger = logging.getLogger(__name__)

SIGNATURE_HEADER: Final = "X-Jobsight-Signature"
TIME_HEADER: Final = "X-Jobsight-Timestamp"
#: Findings of one request, and requests of one round.
MAX_FINDINGS: Final = 50
MAX_REQUESTS: Final = 20
_CHECKPOINT: Final = "mail.webhook"
#: Above the ids of all runs: a position with it is after all findings of its time.
_LAST_RUN: Final = 2**63 - 1
_DAY: Final = 86400 * SECOND
#: Days before today of the starts of runs whose new findings are alerts.
_DAYS: Final = 30
_TIMEOUT: Final = 20.0
#: Characters of a secret.
_LEAST_SECRET: Final = 16


class AlertedFinding(msgspec.Struct, kw_only=True):
    """A finding in an alert."""

    kind: str
    severity: str
    cluster: str
    run: str
    user: str
    account: str
    title: str
    text: str
    change: str
    #: The page that explains it; its path if `mail.url` is not set.
    help: str
    cost: dict[str, float | None]


class Alert(msgspec.Struct, kw_only=True):
    """The body of a request."""

    #: The same in a repeated request.
    id: str
    #: RFC 3339.
    time: str
    findings: list[AlertedFinding]


def sign(secret: bytes, moment: str, body: bytes) -> str:
    """The signature of a body that is sent at a moment, in seconds since 1970."""
    digest = hmac.new(secret, moment.encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"sha256={digest}"


class WebhookSender:
    """Sends new findings for staff."""

    def __init__(
        self, store: Store, settings: MailSettings, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        webhook = settings.webhook
        self._secret = _read_secret(webhook.secret_file)
        address = Address.parse("mail.webhook.url", webhook.url or "", expected="https://HOST/PATH")
        self._client = HttpClient(address, timeout=_TIMEOUT, keep_alive=False)

    def once(self) -> int:
        """Send what is new; returns how many findings. The first call only notes the time."""
        now = self._clock()
        with self._store.database.query() as transaction:
            done = read_checkpoint(transaction, _CHECKPOINT)
        if done is None:
            self._set_checkpoint(AgePosition(now, _LAST_RUN, ""))
            return 0
        if not is_working_day(self._settings, datetime.fromtimestamp(now // SECOND, UTC).date()):
            return 0
        paused = paused_causes(self._store.database, "", now)
        sent, after = 0, _position(done)
        for _ in range(MAX_REQUESTS):
            found = self._next(after, now)
            if not found:
                break
            wanted = [each for each in found if each.finding.kind not in paused]
            if wanted:
                self._deliver(wanted, now)
            after = found[-1].age_position
            self._set_checkpoint(after)
            sent += len(wanted)
        return sent

    def _next(self, after: AgePosition, now: int) -> list[ListedFinding]:
        lowest = SEVERITIES.index(self._settings.webhook.severity)
        return new_findings(
            self._store.database, "staff", lowest, now // _DAY - _DAYS, after, MAX_FINDINGS
        )

    def _deliver(self, found: list[ListedFinding], now: int) -> None:
        outcome: Outcome = "would be sent"
        if not self._settings.webhook.dry_run:
            self._post(found, now)
            outcome = "sent"
        log_mail(self._store.database, "webhook", "", outcome, now=now, mails=len(found))

    def _post(self, found: list[ListedFinding], now: int) -> None:
        first = found[0].finding
        alert = Alert(
            id=f"{first.first}-{first.run_id}-{first.kind}",
            time=datetime.fromtimestamp(now // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            findings=[_alerted(each, pages_url(self._settings)) for each in found],
        )
        body, moment = encode_json(alert), str(now // SECOND)
        headers = {
            "Content-Type": "application/json",
            TIME_HEADER: moment,
            SIGNATURE_HEADER: sign(self._secret, moment, body),
        }
        shown = self._client.address.shown
        try:
            reply = self._client.request("POST", content=body, headers=headers, max_size=2**20)
        except HttpError as error:
            raise JobsightError(f"the webhook {shown}: {error}") from None
        if not 200 <= reply.status < 300:
            raise JobsightError(f"the webhook {shown} answered {reply.status} {reply.phrase[:80]}")

    def _set_checkpoint(self, position: AgePosition) -> None:
        text = f"{position.run_id} {position.kind}"
        with self._store.database.write() as transaction:
            set_checkpoint(transaction, _CHECKPOINT, position.first, text)


def _position(checkpoint: Checkpoint) -> AgePosition:
    run, _, kind = (checkpoint.text or "").partition(" ")
    # Earlier versions stored only the time.
    return AgePosition(checkpoint.value, int(run) if run.isdecimal() else _LAST_RUN, kind)


def _alerted(listed: ListedFinding, pages: str | None) -> AlertedFinding:
    row, finding = listed.finding, from_row(listed.finding)
    add_address([finding], pages)
    return AlertedFinding(
        kind=row.kind,
        severity=SEVERITIES[row.severity],
        cluster=row.cluster,
        run=str(Run(row.cluster, listed.job_id, listed.start)),
        user=row.user,
        account=row.account,
        title=finding.title,
        text=finding.text,
        change=finding.change,
        help=finding.help,
        cost=row.hours(),
    )


def _read_secret(file: str | None) -> bytes:
    """The secret that the receiver of the webhook knows as well."""
    if not file:
        raise ConfigError(
            "mail.webhook.url is set and mail.webhook.secret_file is not; expected a file with the "
            "secret that the receiver checks signatures with"
        )
    try:
        secret = Path(file).expanduser().read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"mail.webhook.secret_file {file}: {error.strerror}") from None
    if len(secret) < _LEAST_SECRET:
        raise ConfigError(
            f"mail.webhook.secret_file {file}: expected at least {_LEAST_SECRET} characters"
        )
    return secret


def alerting(store: Store, settings: MailSettings) -> PeriodicWorker:
    """A thread that sends alerts."""
    sender = WebhookSender(store, settings)

    def work(_: threading.Event) -> None:
        sender.once()

    return PeriodicWorker(
        "webhook",
        work,
        settings.webhook.interval,
        logger=logger,
        failure="alerts are not sent",
        backoff=Backoff(5.0, 600.0),
    )
