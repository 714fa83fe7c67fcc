"""Mails: requests of slurmctld through the queue to a real mail server."""

from __future__ import annotations

import email
import email.policy
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from hypothesis import example, given
from hypothesis import strategies as st

from jobsight.cli.main import main
from jobsight.config.settings import MailSettings, PriceSettings
from jobsight.errors import JobsightError
from jobsight.findings.finding import Finding
from jobsight.findings.stored import to_row
from jobsight.mail.message import About, build_message
from jobsight.mail.queue import MAX_SIZE, MailQueue
from jobsight.mail.request import (
    KEPT_VARIABLES,
    MailRequest,
    is_address,
    slurm_request,
    split_recipients,
)
from jobsight.mail.worker import MailWorker
from jobsight.model import SECOND, JobInfo, RunReference
from jobsight.store.findings.due import unjudged_runs
from jobsight.store.findings.write import Judged, store_judged
from jobsight.store.store import Store
from tests.findings.judge import found
from tests.mail.mailbox import Mailbox
from tests.ports import free_port
from tests.reports.everywhere import words_of_page
from tests.server.certificates import Papers
from tests.store.findings.sample import add_findings
from tests.web import sample

REPOSITORY = Path(__file__).resolve().parents[2]
NOW = sample.NOW
ENDED = "Slurm Job_id=1 Name=pi Ended, Run time 00:00:01, COMPLETED, ExitCode 0"


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def smtp(mailbox: Mailbox) -> Iterator[Controller]:
    controller = Controller(mailbox, hostname="127.0.0.1", port=free_port())
    controller.start()
    yield controller
    controller.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.db")
    sample.fill(opened)
    yield opened
    opened.close()


@pytest.fixture
def settings(tmp_path: Path, smtp: Controller) -> MailSettings:
    queue = tmp_path / "queue"
    queue.mkdir()
    return MailSettings(
        queue=str(queue),
        port=port_of(smtp),
        sender="jobs@example.org",
        domain="example.org",
        url="https://jobs.example.org/",
    )


def port_of(controller: Controller) -> int:
    assert controller.server is not None
    port: int = controller.server.sockets[0].getsockname()[1]
    return port


def request(subject: str = ENDED, to: str = "ada", **values: Any) -> MailRequest:
    environment = {"SLURM_CLUSTER_NAME": "local", "SLURM_JOB_ID": "1"} | values
    return slurm_request(to, subject, environment, NOW)


def later(seconds: float) -> Any:
    return lambda: NOW + int(seconds * SECOND)


def test_slurm_s_words_and_the_report_arrive(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    worker = MailWorker(store, settings, clock=later(1))
    worker.queue.put(request())
    assert worker.once().sent == 1
    (message,) = mailbox.received
    assert message["Subject"].strip() == ENDED
    assert message["To"] == "ada@example.org"
    plain = message.get_body(("plain",))
    page = message.get_body(("html",))
    assert plain is not None
    assert page is not None
    assert ENDED in plain.get_content()
    assert "pi-parallel" in plain.get_content()
    assert "https://jobs.example.org/jobs/local" in page.get_content()
    assert worker.queue.requests() == []
    assert worker.once().sent == 0


def test_findings_of_a_mail_link_to_their_pages(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    run = store.find(RunReference.parse("local:1"))
    add_findings(store, run, to_row(found("gpu-not-used")))
    worker = MailWorker(store, settings, clock=later(1))
    worker.queue.put(request())
    assert worker.once().sent == 1
    (message,) = mailbox.received
    plain, page = message.get_body(("plain",)), message.get_body(("html",))
    assert plain is not None
    assert page is not None
    address = "https://jobs.example.org/findings/gpu-not-used"
    assert f"Help: {address}\n" in plain.get_content().replace("\r\n", "\n")
    assert f'href="{address}"' in page.get_content()


def test_a_mail_server_that_is_away_loses_nothing(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    away = MailSettings(queue=settings.queue, port=1, timeout=1)
    worker = MailWorker(store, away, clock=later(1))
    for _ in range(3):
        worker.queue.put(request())
    with pytest.raises(JobsightError, match="mail server"):
        worker.once()
    assert len(worker.queue.requests()) == 3
    assert MailWorker(store, settings, clock=later(2)).once().sent == 3
    assert len({message["Message-ID"] for message in mailbox.received}) == 3


def test_a_refusal_for_now_is_tried_again(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    settings.interval = 10
    time = [0.0]
    worker = MailWorker(store, settings, clock=later(1), monotonic=lambda: time[0])
    for _ in range(3):
        worker.queue.put(request())
    mailbox.reply = "451 busy"
    with pytest.raises(JobsightError, match="451"):
        worker.once()
    # One attempt is enough to know, for a while.
    assert worker.once().sent == 0
    assert len(mailbox.named) == 1
    time[0] = 40
    with pytest.raises(JobsightError, match="451"):
        worker.once()
    mailbox.reply = ""
    time[0] = 80
    assert worker.once().sent == 0
    time[0] = 120
    assert worker.once().sent == 3
    assert len(mailbox.received) == 3


def test_recipients_that_are_refused_for_now_do_not_fill_the_rounds(
    store: Store, settings: MailSettings, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsight.mail.worker.MAX_MESSAGES", 3)
    worker = MailWorker(store, settings, clock=later(1))
    # Requests of the same time have no order without a token.
    for number in range(5):
        worker.queue.put(request(to=f"full{number}"), token=f"{number}")
    worker.queue.put(request(), token="5")
    with pytest.raises(JobsightError, match="mailbox full"):
        worker.once()
    assert worker.once().sent == 1


def test_a_round_ends_in_time(store: Store, settings: MailSettings, mailbox: Mailbox) -> None:
    time = iter(range(0, 100_000, 120))
    worker = MailWorker(store, settings, clock=later(1), monotonic=lambda: float(next(time)))
    for _ in range(10):
        worker.queue.put(request())
    assert worker.once().sent == 2
    assert len(worker.queue.requests()) == 8


def test_a_slow_answer_to_the_content_is_waited_for(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    """A client that gives up before it sends a mail again that was accepted."""
    settings.timeout = 0.5
    mailbox.slow_content = 1.5
    worker = MailWorker(store, settings, clock=later(1))
    worker.queue.put(request())
    assert worker.once().sent == 1
    assert worker.once().sent == 0
    assert len(mailbox.received) == 1
    # For commands the setting holds.
    mailbox.slow_command = 1.5
    worker.queue.put(request())
    with pytest.raises(JobsightError, match="timed out"):
        worker.once()
    mailbox.slow_command = mailbox.slow_content = 0
    assert worker.once().sent == 1
    assert len(mailbox.received) == 2


def test_a_rejected_mail_does_not_keep_back_the_others(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    worker = MailWorker(store, settings, clock=later(1))
    worker.queue.put(request(to="nobody"))
    worker.queue.put(request())
    done = worker.once()
    assert (done.sent, done.rejected) == (1, 1)
    ((_, reason),) = worker.queue.failures()
    assert "no such user" in reason


def task_request(task: int, count: int, word: str = "Ended", to: str = "ada") -> MailRequest:
    return request(
        f"Slurm Array Task Job_id=62_{task} ({100 + task}) Name=x {word}, COMPLETED",
        to,
        SLURM_ARRAY_JOB_ID="62",
        SLURM_ARRAY_TASK_ID=str(task),
        SLURM_ARRAY_TASK_COUNT=str(count),
        SLURM_JOB_ID=str(100 + task),
        SLURM_JOB_MAIL_TYPE=word,
    )


def fill_array(store: Store, tasks: int, state: str = "COMPLETED") -> None:
    infos = [
        JobInfo(
            cluster="local",
            source="slurm",
            job_id=100 + task,
            array_job_id=62,
            array_task_id=task,
            user="ada",
            name="x",
            start=NOW - 100 * SECOND,
            end=None if state == "RUNNING" else NOW,
            state=state,
            cpus=2,
        )
        for task in range(tasks)
    ]
    store.record_jobs(infos)


def test_tasks_of_an_array_are_one_mail(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    fill_array(store, 40)
    # Nothing was measured: the nodes are waited for.
    worker = MailWorker(store, settings, clock=later(130))
    for task in range(40):
        worker.queue.put(task_request(task, 40, "Failed" if task > 36 else "Ended"))
        worker.queue.put(task_request(task, 40, to="bob"))
    assert worker.once() == (2, 0, 0)
    first, second = sorted(mailbox.received, key=lambda message: str(message["To"]))
    assert (first["To"], second["To"]) == ("ada@example.org", "bob@example.org")
    assert first["Subject"].strip() == "Slurm Array Job_id=62: 37 Ended, 3 Failed"
    plain = first.get_body(("plain",))
    assert plain is not None
    assert "Array 62" in plain.get_content()
    assert "40 completed" in plain.get_content()
    assert plain.get_content().startswith("Slurm Array Task Job_id=62_37 (137) Name=x Failed")
    assert "Job_id=62_16 (116)" in plain.get_content()
    assert "Job_id=62_17 (117)" not in plain.get_content()
    assert worker.queue.requests() == []


def test_a_mail_about_tasks_waits_for_the_array(store: Store, settings: MailSettings) -> None:
    fill_array(store, 3, "RUNNING")
    worker = MailWorker(store, settings, clock=later(1000))
    for task in range(3):
        worker.queue.put(task_request(task, 4))
    assert worker.once() == (0, 3, 0)
    assert MailWorker(store, settings, clock=later(4000)).once().sent == 1


def test_tasks_that_send_no_mail_are_not_waited_for(store: Store, settings: MailSettings) -> None:
    fill_array(store, 4)
    MailQueue(Path(settings.queue)).put(task_request(1, 4, "Failed"))
    assert MailWorker(store, settings, clock=later(5)).once() == (0, 1, 0)
    assert MailWorker(store, settings, clock=later(130)).once().sent == 1


def test_a_mail_about_a_begin_is_sent_at_once(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    worker = MailWorker(store, settings, clock=later(0))
    began = "Slurm Job_id=99 Name=x Began, Queued time 00:00:01"
    worker.queue.put(request(began, SLURM_JOB_ID="99", SLURM_JOB_MAIL_TYPE="Began"))
    assert worker.once().sent == 1
    text = mailbox.received[0].get_content().replace("\r\n", "\n")
    said, _, footer = text.partition("\n-- \n")
    assert said.strip() == began
    assert footer.startswith("Unsubscribe: https://jobs.example.org/unsubscribe?")


def fill_het_job(store: Store, ended: int, source: str = "slurm") -> None:
    """A heterogeneous job of three components, of which some have ended."""
    store.record_jobs(
        [
            JobInfo(
                cluster="local", source=source, job_id=70 + part, het_job_id=70, het_offset=part,
                user="ada", name="coupled", start=NOW - 100 * SECOND, cpus=2,
                end=NOW if part < ended else None,
                state="COMPLETED" if part < ended else "RUNNING",
            )
            for part in range(3)
        ]
    )  # fmt: skip


HET = "Slurm Job_id=70 Name=coupled Ended, Run time 00:01:40, COMPLETED, ExitCode 0"


def test_a_mail_of_a_heterogeneous_job_is_of_all_its_components(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    def send(seconds: float) -> int:
        return MailWorker(store, settings, clock=later(seconds)).once().sent

    queue = MailQueue(Path(settings.queue))
    queue.put(request(HET, SLURM_JOB_ID="70"))
    # All components are waited for, and then their nodes.
    fill_het_job(store, 2)
    assert send(100) == 0
    fill_het_job(store, 3)
    assert send(100) == 0
    assert send(130) == 1
    (message,) = mailbox.received
    assert message["Subject"].strip() == HET
    for part in ("plain", "html"):
        body = message.get_body((part,))
        assert body is not None
        text = body.get_content()
        assert "Heterogeneous job 70" in text
        assert "3 completed" in text
        assert all(f"70+{offset} coupled" in text for offset in range(3))


@pytest.mark.parametrize(("source", "sent"), [("slurm", 1), ("prolog", 0)])
def test_a_heterogeneous_job_is_complete_when_the_scheduler_says_so(
    store: Store, settings: MailSettings, source: str, sent: int
) -> None:
    """A node does not know how many components there are."""
    make = sample.Maker()
    make.job_id, make.sequence = 69, 1000
    for part in range(3):
        component = {"source": source, "het_job_id": 70, "het_offset": part}
        for batch in make.job(lambda _: (1.0, 2e7, 0.0), length=9, ago=10, **component):
            store.write(batch, received=batch.written)
    worker = MailWorker(store, settings, clock=later(1))
    worker.queue.put(request(HET, SLURM_JOB_ID="70"))
    assert worker.once() == (sent, 1 - sent, 0)


def test_mails_have_the_prices_of_the_other_reports(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    fill_array(store, 4)
    prices = {"EUR": PriceSettings(core_hour=36.0, gpu_hour=1.0)}
    worker = MailWorker(store, settings, clock=later(130), prices=prices)
    for task in range(4):
        worker.queue.put(task_request(task, 4))
    assert worker.once().sent == 1
    body = mailbox.received[0].get_body(("plain",))
    assert body is not None
    # Four tasks with two CPUs for 100 s.
    assert re.search(r"Price of what was held +8(\.0+)? EUR", body.get_content())


def test_a_mail_of_an_unmeasured_job_says_so(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    """Of one job nothing is known, of the other what Slurm says, which no node has reported."""
    store.record_jobs(
        [
            JobInfo(
                cluster="local", source="slurm", job_id=78, user="ada", name="quick", cpus=2,
                start=NOW - 60 * SECOND, end=NOW, state="COMPLETED", exit_code=0,
            )
        ]
    )  # fmt: skip
    worker = MailWorker(store, settings, clock=later(500))
    worker.queue.put(request(ENDED.replace("=1 ", "=77 "), SLURM_JOB_ID="77"), token="0")
    worker.queue.put(request(ENDED.replace("=1 ", "=78 "), SLURM_JOB_ID="78"), token="1")
    assert worker.once().sent == 2
    unknown, unmeasured = mailbox.received
    plain = unknown.get_content().replace("\r\n", "\n")
    assert ENDED.replace("=1 ", "=77 ") in plain
    assert "\njobsight has measured nothing of this job.\n" in plain
    for part in ("plain", "html"):
        body = unmeasured.get_body((part,))
        assert body is not None
        text = " ".join(body.get_content().split())
        assert "jobsight has measured nothing" not in text
        assert "Job 78" in text
        assert "00:01:00" in text
        assert "CPU time: not measured, nothing was reported." in text


def test_a_mail_of_a_job_of_ten_years_ago_has_its_times(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    start = NOW - 10 * 365 * 86_400 * SECOND
    make = sample.Maker()
    make.job_id, make.sequence = 79, 2000
    for batch in make.job(lambda _: (1.0, 2e7, 0.0), length=60, ago=(NOW - start) / SECOND):
        assert store.write(batch, received=batch.written)
    worker = MailWorker(store, settings, clock=later(1))
    worker.queue.put(request(ENDED.replace("=1 ", "=80 "), SLURM_JOB_ID="80"))
    assert worker.once().sent == 1
    (message,) = mailbox.received
    for part in ("plain", "html"):
        body = message.get_body((part,))
        assert body is not None
        text = words_of_page(body.get_content()) if part == "html" else body.get_content()
        text = " ".join(text.split())
        assert "Job 80" in text
        assert re.search(r"Started 2016-\d\d-\d\d \d\d:\d\d:\d\d", text)
        assert re.search(r"Ended 2016-", text)
        assert "CPU time: exact" in text


def judge(store: Store, reference: str) -> None:
    """Judge a run, with one finding."""
    found = Finding(kind="cpus-unused", severity="warning", title="CPUs were held", text="Idle.")
    run_id = store.find(RunReference.parse(reference)).id
    (run,) = [each for each in unjudged_runs(store.database, 1000) if each.id == run_id]
    made = Judged(run.id, run.changes, run.owner, None, (to_row(found),))
    store_judged(store.database, [made], NOW)


@pytest.mark.parametrize("kind", ["run", "array", "het"])
def test_a_mail_waits_for_the_findings(
    store: Store, settings: MailSettings, mailbox: Mailbox, kind: str
) -> None:
    make = sample.Maker()
    make.job_id, make.sequence = 69, 3000
    more: dict[str, Any] = {"source": "slurm"}
    made = request(HET, SLURM_JOB_ID="70")
    if kind == "array":
        more |= {"array_job_id": 70, "array_task_id": 0}
        made = task_request(0, 1)
        made.array_job_id = 70
    elif kind == "het":
        more |= {"het_job_id": 70, "het_offset": 0}
    for batch in make.job(lambda _: (1.0, 2e7, 0.0), length=9, ago=10, **more):
        assert store.write(batch, received=batch.written)
    worker = MailWorker(store, settings, clock=later(1), judging=True)
    worker.queue.put(made)
    assert worker.once() == (0, 1, 0)
    judge(store, "local:70")
    assert worker.once().sent == 1
    # What is judged late, or never, is not waited for for ever.
    for batch in make.job(lambda _: (1.0, 2e7, 0.0), length=9, ago=10, source="slurm"):
        assert store.write(batch, received=batch.written)
    worker.queue.put(request(HET.replace("=70 ", "=71 "), SLURM_JOB_ID="71"))
    assert worker.once() == (0, 1, 0)
    assert MailWorker(store, settings, clock=later(130), judging=True).once().sent == 1
    # A server that judges nothing does not wait.
    worker.queue.put(request(HET.replace("=70 ", "=71 "), SLURM_JOB_ID="71"))
    assert MailWorker(store, settings, clock=later(1)).once().sent == 1
    for part in ("plain", "html"):
        body = mailbox.received[0].get_body((part,))
        assert body is not None
        assert "CPUs were held" in body.get_content()


def test_one_refused_recipient_does_not_keep_back_the_others(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    worker = MailWorker(store, settings, clock=later(1))
    worker.queue.put(request(to="full"))
    worker.queue.put(request())
    assert worker.once() == (1, 0, 0)
    (left,) = worker.queue.requests()
    assert left.request.to == "full"
    old = MailWorker(store, settings, clock=later(6 * 86_400))
    assert old.once() == (0, 0, 1)
    assert "mailbox full" in old.queue.failures()[0][1]


def test_a_refused_sender_loses_nothing(
    store: Store, settings: MailSettings, mailbox: Mailbox
) -> None:
    settings.sender = "stranger@example.org"
    worker = MailWorker(store, settings, clock=later(1))
    worker.queue.put(request())
    with pytest.raises(JobsightError, match="not you"):
        worker.once()
    assert len(worker.queue.requests()) == 1


def test_the_end_of_a_run_is_waited_for(store: Store, settings: MailSettings) -> None:
    worker = MailWorker(store, settings, clock=later(5))
    # Job 9 still runs by what the store knows.
    worker.queue.put(request(ENDED.replace("=1 ", "=9 "), SLURM_JOB_ID="9"))
    # Of job 77 nothing is known yet.
    worker.queue.put(request(ENDED.replace("=1 ", "=77 "), SLURM_JOB_ID="77"))
    assert worker.once() == (0, 2, 0)
    assert MailWorker(store, settings, clock=later(500)).once().sent == 2


def test_a_session_is_encrypted_and_authenticated(
    store: Store, settings: MailSettings, mailbox: Mailbox, tmp_path: Path
) -> None:
    (tmp_path / "papers").mkdir()
    papers = Papers(tmp_path / "papers")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*papers.pair("server"))

    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        return AuthResult(success=data.password == b"secret", handled=False, auth_data=data)

    controller = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=free_port(),
        tls_context=context,
        require_starttls=True,
        auth_required=True,
        authenticator=check,
    )
    controller.start()
    try:
        password = tmp_path / "password"
        password.write_text("secret\n")
        settings.port, settings.tls, settings.user = port_of(controller), "starttls", "jobs"
        settings.certificates = papers.authority
        settings.password_file = str(password)
        worker = MailWorker(store, settings, clock=later(1))
        worker.queue.put(request())
        assert worker.once().sent == 1
        assert mailbox.users == ["jobs"]
        worker.queue.put(request())
        password.write_text("wrong")
        with pytest.raises(JobsightError, match="password"):
            worker.once()
        settings.certificates = None
        with pytest.raises(JobsightError, match="mail server"):
            worker.once()
        assert len(worker.queue.requests()) == 1
    finally:
        controller.stop()


def test_the_command_only_writes_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert main(["mail", "-s", ENDED, "ada", "--queue", str(tmp_path)]) == 0
    (mail,) = MailQueue(tmp_path).requests()
    assert mail.request.job_id == 12
    assert main(["mail", "--list", "--queue", str(tmp_path)]) == 0
    assert "ada" in capsys.readouterr().out
    assert main(["mail", "-s", "x", "a b\nBcc: c", "--queue", str(tmp_path)]) != 0
    assert main(["mail", "--queue", str(tmp_path)]) == 2
    assert main(["mail", "-s", "x", "ada", "--queue", str(tmp_path / "missing")]) != 0


@pytest.mark.parametrize(
    "url", ["https://u:p@jobs.example.org", "jobs.example.org", "ftp://x", "http://[", "http://h:x"]
)
def test_a_wrong_address_of_the_pages_is_said(store: Store, url: str) -> None:
    with pytest.raises(JobsightError, match=r"mail\.url"):
        MailWorker(store, MailSettings(url=url))


def test_the_queue_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobsight.mail.queue.MAX_REQUESTS", 3)
    queue = MailQueue(tmp_path)
    for _ in range(3):
        queue.put(request())
    with pytest.raises(JobsightError, match="holds 3"):
        queue.put(request())


@pytest.mark.parametrize("content", [b"", b"{", b'{"to": 1}', b"x" * 20_000])
def test_a_damaged_request_is_set_aside(tmp_path: Path, content: bytes) -> None:
    queue = MailQueue(tmp_path)
    (tmp_path / "00000000000000000001-aa.json").write_bytes(content)
    queue.put(request())
    assert len(queue.requests()) == 1
    assert len(queue.failures()) == 1


@pytest.mark.parametrize(
    ("subject", "job", "array", "task", "summary"),
    [
        ("Slurm Job_id=12 Name=Job_id=99 Began", 12, None, None, False),
        ("Slurm Array Task Job_id=62_3 (65) Name=x Failed", 65, 62, 3, False),
        ("Slurm Array Summary Job_id=62_* (62) Name=x Ended, Mixed", 62, 62, None, True),
        ("Hello Job_id=12", None, None, None, False),
    ],
)
def test_the_job_is_read_from_what_slurm_writes(
    subject: str, job: int | None, array: int | None, task: int | None, summary: bool
) -> None:
    made = slurm_request("ada", subject, {}, NOW)
    assert (made.job_id, made.array_job_id, made.array_task_id) == (job, array, task)
    assert made.array_summary is summary


#: What slurmctld 22.05 passed to MailProg, recorded on the test bed.
CALLS = msgspec.json.decode((Path(__file__).parent / "slurm-22.05-calls.json").read_bytes())


@pytest.mark.parametrize(
    ("call", "word", "event", "job", "array", "task", "summary", "count"),
    [
        (0, "Began", "begin", 1, None, None, False, None),
        (1, "Failed", "end", 2, None, None, False, None),
        (2, "Ended", "end", 7, 3, 0, False, 4),
        (3, "Began", "begin", 4, 4, None, True, None),
        (4, "Ended", "end", 9, 3, 2, False, 4),
        (5, "Began", "begin", 6, None, None, False, None),
        # slurmctld sets the variables of the last task here, too.
        (6, "Failed", "end", 4, 4, None, True, 4),
        (7, "Reached 80% of time limit", "time limit", 5, None, None, False, None),
        (8, "Reached time limit", "time limit", 5, None, None, False, None),
        (9, "Failed", "end", 5, None, None, False, None),
    ],
)
def test_a_recorded_call_of_slurmctld_is_understood(
    call: int, word: str, event: str, job: int, array: Any, task: Any, summary: bool, count: Any
) -> None:
    option, subject, to = CALLS[call]["arguments"]
    assert option == "-s"
    recipients, refused = split_recipients(to)
    assert refused == []
    assert len(recipients) == (2 if call == 1 else 1)
    environment = CALLS[call]["environment"]
    made = slurm_request(recipients[0], subject, environment, NOW)
    assert (made.word, made.event, made.job_id, made.cluster) == (word, event, job, "jsm1")
    assert (made.array_job_id, made.array_task_id) == (array, task)
    assert (made.array_summary, made.array_task_count) == (summary, count)
    assert "\n" not in made.subject
    # The same from the subject alone, but for the number of tasks.
    bare = slurm_request(recipients[0], subject, {}, NOW)
    assert (bare.job_id, bare.event, bare.array_job_id, bare.array_task_id) == (
        job, event, array, task,
    )  # fmt: skip


def test_recipients_are_split_and_bounded(tmp_path: Path) -> None:
    many = ",".join(f"u{number}" for number in range(30))
    accepted, refused = split_recipients(many)
    assert (len(accepted), len(refused)) == (20, 10)
    assert split_recipients("ada, bob@example.org,,ada,c d,j\u00f6") == (
        ["ada", "bob@example.org"],
        ["c d", "j\u00f6"],
    )
    assert main(["mail", "-s", ENDED, "ada,b@example.org,c d", "--queue", str(tmp_path)]) != 0
    assert [mail.request.to for mail in MailQueue(tmp_path).requests()] == ["ada", "b@example.org"]


def test_bytes_that_are_no_text_are_queued_and_shown_as_they_are(tmp_path: Path) -> None:
    subject = b"Slurm Job_id=1 Name=a\xffb\x1b\xe2\x80\xae\\ Ended, COMPLETED"
    environment = {
        **os.environb,
        b"SLURM_CLUSTER_NAME": b"al\xffpha",
        b"SLURM_JOB_ID": b"1",
        b"SLURM_JOB_STATE": b"COMP\xfe\n",
    }
    command = [sys.executable, "-m", "jobsight.cli.main", "mail", "-s", subject, "ada"]
    command += ["--queue", str(tmp_path)]
    subprocess.run(command, env=environment, check=True, cwd=REPOSITORY)
    ((_, made),) = MailQueue(tmp_path).requests()
    assert made.subject == (r"Slurm Job_id=1 Name=a\xffb\x1b\xe2\x80\xae\\ Ended, COMPLETED")
    assert made.cluster == r"al\xffpha"
    assert made.variables["SLURM_JOB_STATE"] == r"COMP\xfe\x0a"
    assert (made.job_id, made.word) == (1, "Ended")


#: Also halves of pairs, as which Python writes bytes that are no text.
ANY_TEXT = st.text(st.one_of(st.characters(), st.characters(categories=["Cs"])), max_size=600)
NAMES = st.one_of(st.sampled_from(KEPT_VARIABLES), ANY_TEXT)


@example("a\udcffb \ud800", "ada", dict.fromkeys(KEPT_VARIABLES, "\udcff" * 300))
@given(ANY_TEXT, st.text(max_size=40), st.dictionaries(NAMES, ANY_TEXT))
def test_no_text_breaks_a_message(subject: str, to: str, environment: dict[str, str]) -> None:
    made = slurm_request(to if is_address(to) else "ada", subject, environment, NOW)
    encoded = msgspec.json.encode(made)
    assert len(encoded) <= MAX_SIZE
    assert msgspec.json.decode(encoded, type=MailRequest) == made
    message = build_message(MailSettings(), "name", [made], About())
    parsed = email.message_from_bytes(message.as_bytes(), policy=email.policy.default)
    assert parsed["Bcc"] is None
    assert len(parsed.get_all("To") or ()) == 1
