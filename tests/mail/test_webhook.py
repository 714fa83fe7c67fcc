"""Alerts for staff: signed, once, off and dry by default, repeated until they are accepted."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from jobsight.config.settings import MailSettings, WebhookSettings
from jobsight.errors import ConfigError, JobsightError
from jobsight.findings.finding import Cost, Finding
from jobsight.findings.stored import to_row
from jobsight.mail.webhook import SIGNATURE_HEADER, TIME_HEADER, WebhookSender, sign
from jobsight.model import SECOND, JobInfo
from jobsight.store.checkpoints import set_checkpoint
from jobsight.store.findings.write import store_judged
from jobsight.store.mail import Pause, pause_mail, read_mail_log
from jobsight.store.store import Store
from tests.store.findings.sample import judged
from tests.web import sample

SECRET = "a secret of the site"
NOW = sample.NOW


class Receiver(ThreadingHTTPServer):
    """Keeps what it is sent, and answers with a status."""

    daemon_threads = True

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.status = 204
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.received.append((dict(self.headers), body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store.open(location) as opened:
        sample.fill(opened)
        yield opened


@pytest.fixture
def settings(tmp_path: Path, receiver: Receiver) -> MailSettings:
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    url = f"http://127.0.0.1:{receiver.server_port}/alerts?to=staff"
    webhook = WebhookSettings(url=url, secret_file=str(secret), dry_run=False)
    return MailSettings(
        webhook=webhook, working_days=["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    )


def add(
    store: Store, kind: str, first: int, audience: str = "staff", severity: str = "warning"
) -> None:
    run = store.runs(limit=100, user="ada")[0]
    found = Finding(
        kind=kind, severity=severity, audience=audience, title="A node is slow",  # type: ignore[arg-type]
        text="Node n1 \x1b[31m is slow.", change="scontrol show node", cost=Cost(core_hours=2.0),
    )  # fmt: skip
    before = [row for row in store.findings(run.id) if row.holds]
    assert all(row.kind != kind for row in before)
    kept = [to_row(found)] + [
        to_row(msgspec.msgpack.decode(row.data, type=Finding)) for row in before
    ]
    store_judged(store.database, [judged(run, *kept)], first)


def test_new_findings_for_staff_are_sent_once_and_signed(
    store: Store, settings: MailSettings, receiver: Receiver
) -> None:
    add(store, "node-old", NOW - 5)
    sender = WebhookSender(store, settings, lambda: NOW)
    # What was there before is not new.
    assert sender.once() == 0
    add(store, "node-slow", NOW + SECOND)
    add(store, "for-users", NOW + SECOND, audience="user")
    add(store, "not-severe", NOW + SECOND, severity="info")
    assert sender.once() == 1
    assert sender.once() == 0
    ((headers, body),) = receiver.received
    moment = headers[TIME_HEADER]
    assert moment == str(NOW // SECOND)
    assert headers[SIGNATURE_HEADER] == sign(SECRET.encode(), moment, body)
    expected = hmac.new(SECRET.encode(), f"{moment}.".encode() + body, "sha256").hexdigest()
    assert headers[SIGNATURE_HEADER] == f"sha256={expected}"
    alert = msgspec.json.decode(body)
    (finding,) = alert["findings"]
    assert (finding["kind"], finding["severity"], finding["user"]) == (
        "node-slow",
        "warning",
        "ada",
    )
    assert finding["cost"]["core_hours"] == pytest.approx(2.0)
    assert finding["help"] == "/findings/node-slow"
    (logged,) = read_mail_log(store.database, 0)
    assert (logged.kind, logged.outcome, logged.mails) == ("webhook", "sent", 1)


def test_a_refused_alert_is_sent_again_with_its_id(
    store: Store, settings: MailSettings, receiver: Receiver
) -> None:
    sender = WebhookSender(store, settings, lambda: NOW)
    sender.once()
    add(store, "node-slow", NOW + SECOND)
    receiver.status = 503
    for _ in range(2):
        with pytest.raises(JobsightError, match="answered 503"):
            sender.once()
    receiver.status = 200
    assert sender.once() == 1
    ids = {msgspec.json.decode(body)["id"] for _, body in receiver.received}
    assert len(receiver.received) == 3
    assert len(ids) == 1
    receiver.shutdown()
    receiver.server_close()
    add(store, "node-gone", NOW + 2 * SECOND)
    with pytest.raises(JobsightError, match=r"the webhook 127\.0\.0\.1"):
        sender.once()


def test_a_dry_run_and_a_paused_cause_send_nothing(
    store: Store, settings: MailSettings, receiver: Receiver
) -> None:
    settings.webhook.dry_run = True
    sender = WebhookSender(store, settings, lambda: NOW)
    sender.once()
    add(store, "node-slow", NOW + SECOND)
    assert sender.once() == 1
    (logged,) = read_mail_log(store.database, 0)
    assert logged.outcome == "would be sent"
    settings.webhook.dry_run = False
    pause_mail(store.database, Pause("", "node-new", None, "known", NOW))
    add(store, "node-new", NOW + 2 * SECOND)
    assert sender.once() == 0
    settings.working_days = []
    add(store, "node-later", NOW + 3 * SECOND)
    assert sender.once() == 0
    settings.working_days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    assert sender.once() == 1
    assert len(receiver.received) == 1


def add_batch(store: Store, first: int, runs: int, kinds: tuple[str, ...]) -> int:
    """The findings of runs that were judged together; returns how many there are."""
    jobs = range(5000, 5000 + runs)
    start = NOW - 3600 * SECOND
    store.record_jobs(
        [
            JobInfo(cluster="batch", source="slurm", job_id=job, user="bob", start=start, end=NOW)
            for job in jobs
        ]
    )
    found = [
        to_row(Finding(kind=kind, severity="warning", audience="staff", title="T", text="T"))
        for kind in kinds
    ]
    stored = store.runs(limit=2 * runs, cluster="batch")
    assert len(stored) == runs
    store_judged(store.database, [judged(run, *found) for run in stored], first)
    return runs * len(kinds)


@pytest.mark.parametrize("runs", [26, 300])
def test_findings_of_runs_that_were_judged_together_are_all_sent_once(
    store: Store, settings: MailSettings, receiver: Receiver, runs: int
) -> None:
    sender = WebhookSender(store, settings, lambda: NOW)
    sender.once()
    wanted = add_batch(store, NOW + SECOND, runs, ("node-old", "node-slow"))
    receiver.status = 503
    with pytest.raises(JobsightError, match="answered 503"):
        sender.once()
    receiver.status = 204
    receiver.received.clear()
    assert sender.once() == wanted
    assert sender.once() == 0
    alerts = [msgspec.json.decode(body) for _, body in receiver.received]
    assert len({alert["id"] for alert in alerts}) == len(alerts) == -(-wanted // 50)
    assert max(len(alert["findings"]) for alert in alerts) == 50
    sent = [(each["run"], each["kind"]) for alert in alerts for each in alert["findings"]]
    assert len(set(sent)) == len(sent) == wanted


def test_a_dry_run_counts_all_findings_of_runs_that_were_judged_together(
    store: Store, settings: MailSettings, receiver: Receiver
) -> None:
    settings.webhook.dry_run = True
    sender = WebhookSender(store, settings, lambda: NOW)
    sender.once()
    wanted = add_batch(store, NOW + SECOND, 60, ("node-slow",))
    sender.once()
    assert sender.once() == 0
    assert receiver.received == []
    assert sum(each.mails for each in read_mail_log(store.database, 0)) == wanted


def test_what_a_round_does_not_send_the_next_one_does(
    store: Store,
    settings: MailSettings,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobsight.mail.webhook.MAX_REQUESTS", 2)
    sender = WebhookSender(store, settings, lambda: NOW)
    sender.once()
    wanted = add_batch(store, NOW + SECOND, 120, ("node-slow",))
    assert (sender.once(), sender.once(), sender.once()) == (100, wanted - 100, 0)


def test_a_checkpoint_of_an_earlier_version_is_read(
    store: Store, settings: MailSettings, receiver: Receiver
) -> None:
    add(store, "node-old", NOW)
    with store.database.write() as transaction:
        set_checkpoint(transaction, "mail.webhook", NOW)
    add(store, "node-slow", NOW + SECOND)
    assert WebhookSender(store, settings, lambda: NOW).once() == 1
    ((_, body),) = receiver.received
    assert [each["kind"] for each in msgspec.json.decode(body)["findings"]] == ["node-slow"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"secret_file": None}, "expected a file with the secret"),
        ({"secret_file": "/nowhere/at/all"}, "No such file"),
        ({"url": "ftp://x"}, "not an address"),
    ],
)
def test_wrong_settings_are_one_sentence(
    store: Store, settings: MailSettings, changes: dict[str, str | None], text: str
) -> None:
    settings.webhook = msgspec.structs.replace(settings.webhook, **changes)
    with pytest.raises(ConfigError, match=text):
        WebhookSender(store, settings)
