"""Addresses that a mail server refuses for good, at once or by a mail that comes back."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiosmtpd.controller import Controller
from hypothesis import given
from hypothesis import strategies as st

from jobsight.cli.main import main
from jobsight.config.settings import MailSettings
from jobsight.mail.bounce import HEADER, read_bounce
from jobsight.mail.digest import last_period, plan_digests
from jobsight.mail.queue import MailQueue
from jobsight.mail.request import Bounce, MailRequest
from jobsight.mail.subscriptions import Subscriptions
from jobsight.mail.worker import MailWorker
from jobsight.model import SECOND
from jobsight.server.ingest import IngestCounts
from jobsight.server.own_metrics import OwnMetrics
from jobsight.software.rules import RuleSet
from jobsight.software.worker import update
from jobsight.store.mail import list_pauses, read_mail_log, refuse_recipient
from jobsight.store.store import Store
from tests.mail import exim
from tests.mail.mailbox import Mailbox
from tests.ports import free_port
from tests.waiting import wait_until
from tests.web import sample

NOW = sample.NOW
HOUR = 3600 * SECOND
DAY = 24 * HOUR


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.db")
    sample.fill(opened)
    yield opened
    opened.close()


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def settings(tmp_path: Path, mailbox: Mailbox) -> Iterator[MailSettings]:
    (tmp_path / "queue").mkdir()
    port = free_port()
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    yield MailSettings(
        queue=str(tmp_path / "queue"),
        port=port,
        sender="jobs@example.org",
        bounces="bounces@example.org",
        domain="example.org",
    )
    controller.stop()


def began(to: str, number: int = 0) -> MailRequest:
    return MailRequest(to=to, subject="Slurm Job_id=7 Name=x Began", created=NOW + number)


def test_a_refused_recipient_is_not_tried_again_for_a_growing_time(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    now = [NOW]
    worker = MailWorker(store, settings, clock=lambda: now[0])
    for number, to in enumerate(["nobody", "ada", "Nobody"]):
        worker.queue.put(began(to, number))
    assert worker.once() == (1, 0, 1)
    assert mailbox.named == ["nobody@example.org", "ada@example.org"]
    (pause,) = list_pauses(store.database, NOW)
    assert pause.recipient == "nobody@example.org"
    assert pause.cause == "refused"
    assert "550 no such user" in pause.reason
    (refused,) = worker.queue.failures()
    assert "550 no such user" in refused[1]
    counted = {(each.outcome, each.reason): each.mails for each in read_mail_log(store.database, 0)}
    assert counted["skipped", "the recipient was refused"] == 1

    durations = []
    for _ in range(8):
        (pause,) = list_pauses(store.database, now[0])
        assert pause.until is not None
        durations.append((pause.until - pause.created) // HOUR)
        now[0] = pause.until - SECOND
        worker.queue.put(began("nobody"))
        assert worker.once() == (0, 0, 0)
        now[0] = pause.until
        worker.queue.put(began("nobody"))
        assert worker.once() == (0, 0, 1)
    assert durations == [1, 4, 16, 64, 256, 768, 768, 768]
    assert mailbox.named.count("nobody@example.org") == 9
    # After a month without another one it is forgotten.
    (pause,) = list_pauses(store.database, now[0])
    assert pause.until is not None
    now[0] = pause.until + 33 * DAY
    again = refuse_recipient(store.database, "nobody@example.org", "550", now[0])
    assert again.until == now[0] + HOUR


def test_a_rule_of_the_mail_server_is_no_fault_of_the_recipient(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    worker = MailWorker(store, settings, clock=lambda: NOW)
    for _ in range(2):
        worker.queue.put(began("outside"))
    assert worker.once() == (0, 0, 2)
    assert list_pauses(store.database, NOW) == []
    assert "relaying denied" in worker.queue.failures()[0][1]
    own = OwnMetrics(store, IngestCounts(), mails=worker.counts).text()
    assert 'jobsight_server_mails_total{status="rejected"} 2\n' in own
    assert 'jobsight_server_mails_total{status="sent"} 0\n' in own
    assert "jobsight_server_mail_queue 0\n" in own
    worker.queue.put(began("ada"))
    (worker.queue.directory / "1-x.json").write_text("no request")
    assert worker.once().sent == 1
    own = OwnMetrics(store, IngestCounts(), mails=worker.counts).text()
    assert 'jobsight_server_mails_total{status="rejected"} 3\n' in own
    assert 'jobsight_server_mails_total{status="sent"} 1\n' in own


def test_a_mailbox_that_is_full_for_days_is_refused(store: Store, settings: MailSettings) -> None:
    worker = MailWorker(store, settings, clock=lambda: NOW + 6 * DAY)
    worker.queue.put(began("full"))
    assert worker.once() == (0, 0, 1)
    (pause,) = list_pauses(store.database, NOW + 6 * DAY)
    assert pause.recipient == "full@example.org"
    assert "mailbox full" in pause.reason


def test_digests_skip_a_refused_recipient(store: Store, settings: MailSettings) -> None:
    later = NOW + 2 * DAY
    period = last_period("weekly", later)
    update(store, RuleSet([]))

    def reason() -> str:
        planned = plan_digests(store, settings, "digest", period, later)
        return next(each.skipped for each in planned if each.to == "ada")

    assert reason() == ""
    refuse_recipient(store.database, "ada@example.org", "550 no such user", later)
    assert reason() == "the mail server refused the recipient"


def test_the_commands_show_and_release_it(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import time

    refuse_recipient(store.database, "ada@example.org", "550 no such user", time.time_ns())
    config = tmp_path / "settings.toml"
    config.write_text('[mail]\ndomain = "example.org"\n')
    place = ["--store", str(tmp_path / "store.db"), "--config", str(config)]
    assert main(["mail", "pauses", *place]) == 0
    listed = capsys.readouterr().out
    assert "ada@example.org" in listed
    assert "refused" in listed
    assert "550 no such user" in listed
    assert main(["mail", "resume", "ada", "refused", *place]) == 0
    assert list_pauses(store.database, time.time_ns()) == []


# --- mails that come back -----------------------------------------------------------------

POSTFIX = """\
From: MAILER-DAEMON@relay.example.org
To: bounces@example.org
Subject: Undelivered Mail Returned to Sender
MIME-Version: 1.0
Content-Type: multipart/report; report-type=delivery-status; boundary="B"

--B
Content-Type: text/plain; charset=us-ascii

This is the mail system at host relay.example.org.

--B
Content-Type: message/delivery-status

Reporting-MTA: dns; relay.example.org
Arrival-Date: Wed, 18 Nov 2026 09:00:00 +0000 (UTC)

Final-Recipient: rfc822; ada@elsewhere.example.edu
Original-Recipient: rfc822;ada@example.org
Action: {action}
Status: {status}
Diagnostic-Code: smtp; 550 {status} <ada@elsewhere.example.edu>: Recipient address
    rejected: User unknown

--B
Content-Type: {original}

From: jobs@example.org
To: ada@example.org
Subject: Slurm Job_id=7 Name=x Ended
{header}: {signature}

--B--
"""


def returned(settings: MailSettings, **values: str) -> bytes:
    defaults = {
        "action": "failed",
        "status": "5.1.1",
        "original": "text/rfc822-headers",
        "header": HEADER,
        "signature": Subscriptions.of(settings).sign_bounce("Ada@example.org"),
    }
    return POSTFIX.format(**(defaults | values)).encode()


def put_bounce(settings: MailSettings, data: bytes, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    return main(["mail", "bounce", "--queue", settings.queue])


@pytest.mark.parametrize("original", ["text/rfc822-headers", "message/rfc822"])
def test_a_mail_that_comes_back_pauses_its_recipient(
    store: Store, settings: MailSettings, monkeypatch: pytest.MonkeyPatch, original: str
) -> None:
    worker = MailWorker(store, settings, clock=lambda: NOW)
    data = returned(settings, original=original)
    # A burst of mails that were under way is one refusal.
    for _ in range(3):
        assert put_bounce(settings, data, monkeypatch) == 0
    worker.once()
    (pause,) = list_pauses(store.database, NOW)
    assert (pause.recipient, pause.cause) == ("ada@example.org", "refused")
    assert "User unknown" in pause.reason
    assert pause.until == NOW + HOUR
    assert worker.queue.bounces() == []
    assert [(e.kind, e.outcome, e.mails) for e in read_mail_log(store.database, 0)] == [
        ("bounce", "refused", 3)
    ]
    worker.queue.put(began("ada"))
    assert worker.once() == (0, 0, 0)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"signature": "forged"}, "not signed"),
        ({"signature": ""}, "not signed"),
        ({"action": "delayed", "status": "4.4.1"}, "no report"),
        ({"original": "text/plain"}, "no report"),
        ({"status": "5.7.1"}, "policy"),
    ],
)
def test_other_messages_are_only_counted(
    store: Store,
    settings: MailSettings,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, str],
    reason: str,
) -> None:
    worker = MailWorker(store, settings, clock=lambda: NOW)
    assert put_bounce(settings, returned(settings, **values), monkeypatch) == 0
    worker.once()
    assert list_pauses(store.database, NOW) == []
    (logged,) = read_mail_log(store.database, 0)
    assert (logged.kind, logged.outcome, logged.mails) == ("bounce", "skipped", 1)
    assert reason in logged.reason


def test_the_signature_of_one_recipient_is_not_that_of_another(
    store: Store, settings: MailSettings
) -> None:
    worker = MailWorker(store, settings, clock=lambda: NOW)
    signature = Subscriptions.of(settings).sign_bounce("ada@example.org")
    worker.queue.put_bounce(Bounce(recipient="bob@example.org", signature=signature), NOW)
    worker.once()
    assert list_pauses(store.database, NOW) == []


def test_a_queue_that_cannot_be_written_is_tried_again_by_the_mail_server(
    settings: MailSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings.queue += "/missing"
    assert put_bounce(settings, b"x", monkeypatch) == os.EX_TEMPFAIL
    assert "cannot be written" in capsys.readouterr().err
    monkeypatch.setattr("jobsight.mail.queue.MAX_BOUNCES", 1)
    settings.queue = settings.queue.removesuffix("/missing")
    assert put_bounce(settings, b"x", monkeypatch) == 0
    assert put_bounce(settings, b"x", monkeypatch) == os.EX_TEMPFAIL
    assert "holds 1 bounces" in capsys.readouterr().err


def test_a_large_message_is_read_to_its_end(
    settings: MailSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = returned(settings, original="message/rfc822") + b"x" * 5_000_000
    assert put_bounce(settings, data, monkeypatch) == 0
    assert sys.stdin.buffer.read() == b""
    ((_, bounce),) = MailQueue(Path(settings.queue)).bounces()
    assert bounce.recipient == "ada@example.org"


_LINES = st.sampled_from(
    [
        b"Content-Type: multipart/report; boundary=B",
        b"Content-Type: message/delivery-status",
        b"Content-Type: message/rfc822",
        b"Content-Type: text/rfc822-headers",
        b"Content-Transfer-Encoding: base64",
        b"Action: failed",
        b"Status: 5.1.1",
        b"To: =?utf-8?b?/////w==?= <a@b>",
        b"To: \xff\xfe",
        b"--B",
        b"--B--",
        b"",
        b" folded",
    ]
)


@given(st.lists(st.one_of(_LINES, st.binary(max_size=30)), max_size=40).map(b"\n".join))
def test_no_message_breaks_it(data: bytes) -> None:
    bounce = read_bounce(data)
    assert len(bounce.text) <= 400
    assert bounce.recipient.isprintable()


@pytest.mark.server
def test_a_real_mail_server_returns_a_mail(store: Store, tmp_path: Path) -> None:
    """It accepts the recipient, finds out later that there is none, and says so by mail."""
    (tmp_path / "exim").mkdir()
    (tmp_path / "queue").mkdir(mode=0o777)
    (tmp_path / "queue").chmod(0o777)
    with exim.running(tmp_path / "exim") as server:
        program = tmp_path / "exim" / "bounce"
        program.write_text(
            f"#!/bin/sh\nexec {sys.executable} -m jobsight.cli.main mail bounce "
            f"--queue {tmp_path / 'queue'}\n"
        )
        program.chmod(0o755)
        check = [sys.executable, "-c", "import jobsight.cli.mail"]
        if subprocess.run(check, user="Debian-exim", cwd="/", env={}, check=False).returncode:
            pytest.skip("the user of exim may not read this directory")
        password = tmp_path / "password"
        password.write_text("secret\n")
        settings = MailSettings(
            queue=str(tmp_path / "queue"), port=server.port, tls="starttls", user="jobs",
            password_file=str(password), certificates=server.papers.authority,
            sender="jobs@example.org", bounces="bounces@example.org", domain="example.org",
        )  # fmt: skip
        worker = MailWorker(store, settings, clock=lambda: NOW)
        worker.queue.put(began("gone"))
        assert worker.once().sent == 1
        wait_until(lambda: len(worker.queue.bounces()) == 1, 60)
        worker.queue.put(began("gone"))
        assert worker.once().sent == 0
        (pause,) = list_pauses(store.database, NOW)
        assert pause.recipient == "gone@example.org"
        assert pause.reason == "returned: status 5.0.0"
