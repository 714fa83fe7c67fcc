"""Through a real mail server with TLS and authentication, and a mail server that hangs, refuses and
comes back: each mail is delivered once, and hostile names arrive as text."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller

from jobsight.config.settings import MailSettings
from jobsight.errors import JobsightError
from jobsight.mail.queue import MailQueue
from jobsight.mail.request import MailRequest, slurm_request
from jobsight.mail.worker import MailWorker
from jobsight.model import SECOND, JobInfo
from jobsight.store.mail import read_mail_log
from jobsight.store.store import Store
from tests.mail import exim
from tests.mail.mailbox import Mailbox
from tests.ports import free_port
from tests.waiting import wait_until
from tests.web import sample

pytestmark = pytest.mark.server

NOW = sample.NOW
#: Markup of HTML, typst and Jinja, a header, an escape of terminals, a reversed order, much text.
HOSTILE = (
    "#eval(1) <script>alert(1)</script> {{7*7}} \x1b[31m\r\nBcc: eve@example.org\r\n\r\n.\r\n\u202e"
    + "x" * 4096
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        opened.record_jobs(
            [
                JobInfo(
                    cluster="c", source="slurm", job_id=number, user="ada", account="lab",
                    name=HOSTILE if number == 1 else f"job{number}", start=NOW - 600 * SECOND,
                    end=NOW, state="COMPLETED", exit_code=0, cpus=2,
                )
                for number in range(1, 6)
            ]
        )  # fmt: skip
        yield opened


@pytest.fixture
def settings(tmp_path: Path) -> MailSettings:
    (tmp_path / "queue").mkdir()
    return MailSettings(
        queue=str(tmp_path / "queue"), domain="example.org", sender="jobs@example.org",
        url="https://jobs.example.org", timeout=5, wait=0,
    )  # fmt: skip


def ended(number: int, name: str) -> MailRequest:
    environment = {"SLURM_JOB_ID": str(number), "SLURM_CLUSTER_NAME": "c"}
    subject = f"Slurm Job_id={number} Name={name} Ended, Run time 00:10:00, COMPLETED"
    return slurm_request("ada", subject, environment, NOW)


def test_mails_arrive_through_a_real_mail_server(
    store: Store, settings: MailSettings, tmp_path: Path
) -> None:
    (tmp_path / "exim").mkdir()
    with exim.running(tmp_path / "exim") as server:
        password = tmp_path / "password"
        password.write_text("secret\n")
        settings.port, settings.tls = server.port, "starttls"
        settings.user, settings.password_file = "jobs", str(password)
        settings.certificates = server.papers.authority
        settings.bounces = "bounces@example.org"
        queue = MailQueue(Path(settings.queue))
        queue.put(ended(1, HOSTILE))
        queue.put(ended(2, "job2"))
        queue.put(MailRequest(to="nobody", subject="x Began", created=NOW))
        worker = MailWorker(store, settings, clock=lambda: NOW + 10 * SECOND)
        done = worker.once()
        assert (done.sent, done.rejected) == (2, 1)
        wait_until(lambda: len(server.delivered()) == 2)
        first, second = sorted(server.delivered(), key=lambda each: str(each["Subject"]))
        assert first["To"] == "ada@example.org"
        assert first["Bcc"] is None
        assert first["Envelope-to"] == "ada@example.org"
        assert "bounces@example.org" in first["Return-path"]
        assert first["List-Unsubscribe"].startswith("<https://jobs.example.org/unsubscribe?")
        assert second["Subject"].startswith("Slurm Job_id=2 Name=job2 Ended")
        for part in ("plain", "html"):
            body = first.get_body((part,))
            assert body is not None
            text = body.get_content()
            assert "\x1b" not in text
            assert "\u202e" not in text
            assert "\nBcc:" not in text
        page = first.get_body(("html",))
        assert page is not None
        assert "<script>alert" not in page.get_content()
        assert "{{7*7}}" in page.get_content()
        ((_, reason),) = queue.failures()
        assert "no such user" in reason
        # A wrong password loses nothing.
        password.write_text("wrong\n")
        queue.put(ended(3, "job3"))
        with pytest.raises(JobsightError, match="password"):
            worker.once()
        password.write_text("secret\n")
        assert worker.once().sent == 1
        wait_until(lambda: len(server.delivered()) == 3)


class Silent:
    """A port that accepts connections and never says a word."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                self._kept.append(self._socket.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for connection in self._kept:
            connection.close()


def test_each_mail_is_sent_once_when_the_server_is_back(
    store: Store, settings: MailSettings
) -> None:
    settings.port, settings.timeout = free_port(), 0.2
    queue = MailQueue(Path(settings.queue))
    for number in range(1, 6):
        queue.put(ended(number, f"job{number}"))
    time = [0.0]
    worker = MailWorker(store, settings, clock=lambda: NOW + 10 * SECOND, monotonic=lambda: time[0])
    # Away.
    with pytest.raises(JobsightError, match="mail server"):
        worker.once()
    # Slow: it accepts the connection and says nothing.
    silent = Silent(settings.port)
    with pytest.raises(JobsightError, match="mail server"):
        worker.once()
    silent.close()
    settings.timeout = 30
    mailbox = Mailbox()
    controller = Controller(mailbox, hostname="127.0.0.1", port=settings.port)
    controller.start()
    try:
        # Refusing.
        mailbox.reply = "451 try again later"
        with pytest.raises(JobsightError, match="451"):
            worker.once()
        assert len(queue.requests()) == 5
        mailbox.reply, time[0] = "", 60.0
        assert worker.once().sent == 5
        assert worker.once().sent == 0
    finally:
        controller.stop()
    ids = [message["Message-ID"] for message in mailbox.received]
    assert len(ids) == len(set(ids)) == 5
    (logged,) = [each for each in read_mail_log(store.database, 0) if each.outcome == "sent"]
    assert logged.mails == 5
