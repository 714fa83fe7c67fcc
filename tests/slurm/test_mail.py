"""slurmctld calls `jobsight mail` as its MailProg while the mail server is unreachable, slow or
refusing.

JOBSIGHT_TEST_MAILS=500 is the number of jobs that end together in each of these ways."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from typing import Any, NamedTuple

import pytest
from aiosmtpd.controller import Controller

from jobsight.reports.report import JobReport
from jobsight.reports.terminal import report_text
from jobsight.util.batching import batched
from jobsight.util.outer import from_outer
from tests.mail.mailbox import Mailbox
from tests.slurm.jobs import ALICE, BOB, burn, eat
from tests.slurm.mail_site import MailSite, mail_site, plain_of, subject_of
from tests.waiting import wait_until

ALL = "--mail-type=END,FAIL"
#: Seconds that the server waits for an answer to a command.
TIMEOUT = 5.0


@pytest.fixture(scope="module")
def site(slurm_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailSite]:
    with mail_site(tmp_path_factory.mktemp("mail"), "m", f"timeout = {TIMEOUT}\n") as made:
        yield made


def receive(site: MailSite, mails: int) -> list[EmailMessage]:
    """Bring the mail server back and wait until it has so many mails and the queue is empty."""
    # Another test may have left mails that were refused for good.
    failures = site.queue.failures()
    mailbox = Mailbox()
    controller = Controller(mailbox, hostname="127.0.0.1", port=site.smtp_port)
    controller.start()
    try:
        wait_until(lambda: len(mailbox.received) >= mails and not site.queue.requests(), 240)
    finally:
        controller.stop()
    assert site.queue.failures() == failures
    return mailbox.received


def check_report(site: MailSite, message: EmailMessage) -> None:
    """The mail has the figures of the report that the server gives now."""
    job = message["X-Jobsight-Job"]
    report = from_outer(site.ended(job), JobReport)
    text = plain_of(message)
    assert subject_of(message) in text
    lines = [" ".join(line.split()) for line in report_text(report, width=78).splitlines()]
    figures = [line for line in lines if re.match(r"(CPU|Memory|Read|Written) ", line)]
    assert len(figures) >= 4
    for line in figures:
        assert line in text, (line, text)


@pytest.mark.long
def test_mails_of_jobs_that_end_while_the_mail_server_is_unreachable(site: MailSite) -> None:
    cluster = site.cluster
    options = ("--mem=40", "--output=/dev/null")
    expected: Counter[tuple[str, str]] = Counter()
    for number in range(18):
        user = (ALICE, BOB)[number % 2]
        job = cluster.submit(user, f"{burn(0.1)}; exit {number % 3}", ALL, *options)
        expected[f"{user}@example.org", str(job)] += 1
    both = cluster.submit(ALICE, burn(0.2), "--mail-type=BEGIN,END", *options)
    expected[f"{ALICE}@example.org", str(both)] += 2
    quiet = cluster.submit(ALICE, "exit 0", "--mail-type=FAIL", *options)
    users = "--mail-user=one@example.org,two@example.net"
    shared = cluster.submit(BOB, "exit 1", "--mail-type=FAIL", users, *options)
    expected["one@example.org", str(shared)] += 1
    expected["two@example.net", str(shared)] += 1
    tasks = cluster.submit(
        ALICE,
        f"{burn(0.1)}; exit $((SLURM_ARRAY_TASK_ID == 2))",
        "--mail-type=END,FAIL,ARRAY_TASKS", "--array=0-4", *options,
    )  # fmt: skip
    summary = cluster.submit(BOB, burn(0.1), "--mail-type=BEGIN,END", "--array=1-3", *options)
    expected[f"{ALICE}@example.org", str(tasks)] += 1
    expected[f"{BOB}@example.org", str(summary)] += 2

    # All jobs end, and the controller answers, without a mail server.
    wait_until(site.drained, 300)
    cluster.scontrol("ping")
    requests = sum(expected.values()) - 1 + 5
    wait_until(lambda: len(site.queue.requests()) == requests, 120)
    assert site.errors() == ""
    assert "mail server" in site.mail_reason()

    received = receive(site, sum(expected.values()))
    found = Counter((message["To"], message["X-Jobsight-Job"]) for message in received)
    assert found == expected
    assert len({message["Message-ID"] for message in received}) == len(received)
    assert str(quiet) not in {message["X-Jobsight-Job"] for message in received}

    by_job = {message["X-Jobsight-Job"]: message for message in received}
    of_tasks, of_summary = by_job[str(tasks)], by_job[str(summary)]
    assert subject_of(of_tasks) == f"Slurm Array Job_id={tasks}: 4 Ended, 1 Failed"
    text = plain_of(of_tasks)
    assert f"Array {tasks}" in text
    assert "4 completed, 1 failed" in text
    assert len(re.findall(rf"Slurm Array Task Job_id={tasks}_\d ", text)) == 5
    assert re.search(r"Elapsed 5 ", text)
    assert "Slurm Array Summary" in subject_of(of_summary)
    assert "3 completed" in plain_of(of_summary)
    for message in received:
        subject = subject_of(message)
        if " Began" in subject:
            assert plain_of(message) == subject
        elif "Array" not in subject:
            check_report(site, message)


#: Jobs that end while the mail server does not work, for each way in which it does not.
MANY = int(os.environ.get("JOBSIGHT_TEST_MAILS", "24"))
#: One job in so many has an address that the mail server does not know.
WRONG = 4
NOBODY = "nobody@example.org"


class Refusing(Mailbox):
    """A mail server that refuses all for now, one session in three altogether, and one address for
    good."""

    def __init__(self) -> None:
        super().__init__()
        self.reply = "450 4.2.1 try again later"
        self.sessions = 0

    async def handle_RCPT(  # noqa: N802
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        if address == NOBODY:
            self.named.append(address)
            return "550 5.1.1 no such user"
        return await super().handle_RCPT(server, session, envelope, address, options)

    async def handle_EHLO(  # noqa: N802
        self, server: Any, session: Any, envelope: Any, name: str, replies: list[str]
    ) -> list[str]:
        self.sessions += 1
        session.host_name = name
        if self.reply and self.sessions % 3 == 0:
            return ["421 too many sessions"]
        return replies


class Burst(NamedTuple):
    """Jobs that ended together."""

    jobs: list[int]
    #: Seconds from the first end to the last, by the accounting.
    seconds: int
    #: Seconds of each answer of the controller meanwhile.
    answers: list[float]

    def __str__(self) -> str:
        answers = sorted(self.answers)
        return (
            f"{len(self.jobs)} jobs ended within {self.seconds} s; sdiag answered "
            f"{len(answers)} times, median {answers[len(answers) // 2] * 1000:.0f} ms, longest "
            f"{answers[-1] * 1000:.0f} ms"
        )


def end_together(site: MailSite, options: Callable[[int], list[str]]) -> Burst:
    """Submit held jobs, release them together, and ask the controller until all have ended."""
    cluster, answers = site.cluster, []
    more = ("--mem=20", "--output=/dev/null", "--job-name=many", "--hold")
    jobs = [
        cluster.submit((ALICE, BOB)[number % 2], "true", *options(number), *more)
        for number in range(MANY)
    ]
    for some in batched(jobs, 50):
        cluster.scontrol("release", ",".join(map(str, some)))

    def drained() -> bool:
        start = time.monotonic()
        # An answer that takes longer than Slurm's MessageTimeout is an error.
        cluster.run(["sdiag"])
        answers.append(time.monotonic() - start)
        return site.drained()

    wait_until(drained, 900)
    ends = []
    for some in batched(jobs, 200):
        wanted = ",".join(map(str, some))
        wait_until(lambda: len(ended_rows(site, wanted)) == wanted.count(",") + 1, 120)  # noqa: B023
        ends += [int(row["End"]) for row in ended_rows(site, wanted)]
    return Burst(jobs, max(ends) - min(ends), answers)


def ended_rows(site: MailSite, jobs: str) -> list[dict[str, str]]:
    rows = site.cluster.sacct(jobs, ["JobID", "State", "End"], "--allocations")
    return [row for row in rows if row["State"] == "COMPLETED" and row["End"] != "Unknown"]


class MailServer:
    """A mail server that does not work in one of three ways until it is mended."""

    def __init__(self, way: str, port: int) -> None:
        self.mailbox = Refusing() if way == "refusing" else Mailbox()
        self._port = port
        self._controller: Controller | None = None
        if way == "slow":
            # Within the time for an answer to a command, and beyond it for the content.
            self.mailbox.slow_command = TIMEOUT - 2.0
            self.mailbox.slow_content = TIMEOUT + 2.0
        if way != "unreachable":
            self._start()

    def _start(self) -> None:
        self._controller = Controller(self.mailbox, hostname="127.0.0.1", port=self._port)
        self._controller.start()

    def mend(self) -> None:
        self.mailbox.reply = ""
        self.mailbox.slow_command = self.mailbox.slow_content = 0.0
        if self._controller is None:
            self._start()

    def stop(self) -> None:
        if self._controller is not None:
            self._controller.stop()


@pytest.fixture
def mail_server(site: MailSite, way: str) -> Iterator[MailServer]:
    server = MailServer(way, site.smtp_port)
    yield server
    server.stop()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ["unreachable", "slow", "refusing"])
def test_many_jobs_end_and_every_mail_is_sent_once(
    site: MailSite, mail_server: MailServer, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mailbox, refusing = mail_server.mailbox, way == "refusing"
    figures = []
    if way == "unreachable":
        # What the figures of the jobs with mails are compared with.
        figures.append(f"without mails: {end_together(site, lambda _: ['--mail-type=NONE'])}")
    failed_before = len(site.queue.failures())
    site.forget_calls()

    def options(number: int) -> list[str]:
        wrong = refusing and number % WRONG == 0
        return [ALL, f"--mail-user={NOBODY}"] if wrong else [ALL]

    burst = end_together(site, options)
    # slurmctld has called the command for each, and no call said anything.
    wait_until(lambda: len(site.calls()) == MANY, 300)
    assert site.errors() == ""
    assert not re.search(
        r"error:.*mail", site.cluster.settings.path("log", "slurmctld.log").read_text(), re.I
    )
    cpu = sum(site.calls())
    figures += [
        f"{way}: {burst}",
        f"{way}: {MANY} calls of jobsight mail took {cpu:.1f} s of CPU time, "
        f"{cpu / MANY * 1000:.0f} ms each",
    ]
    expected = Counter(
        {
            (f"{(ALICE, BOB)[number % 2]}@example.org", str(job)): 1
            for number, job in enumerate(burst.jobs)
            if not (refusing and number % WRONG == 0)
        }
    )
    if way == "unreachable":
        assert len(site.queue.requests()) == MANY
    elif way == "slow":
        wait_until(lambda: len(mailbox.received) >= 2, 120)
    else:
        wait_until(lambda: "450" in site.mail_reason(), 120)
        wait_until(lambda: NOBODY not in {each.request.to for each in site.queue.requests()}, 120)
    mail_server.mend()
    wait_until(lambda: not site.queue.requests(), 600)
    found = Counter((mail["To"], mail["X-Jobsight-Job"]) for mail in mailbox.received)
    assert found == expected
    assert len({mail["Message-ID"] for mail in mailbox.received}) == len(mailbox.received)
    if refusing:
        # An address that is refused for good is tried once, and the others are not kept back.
        assert mailbox.named.count(NOBODY) == 1
        assert len(site.queue.failures()) == failed_before + 1
    with capsys.disabled():
        print(*figures, sep="\n")


@pytest.mark.long
def test_a_time_limit_is_two_mails(site: MailSite) -> None:
    limited = site.cluster.submit(
        ALICE, "sleep 600", "--mail-type=TIME_LIMIT_80,FAIL", "--time=1", "--output=/dev/null"
    )
    wait_until(site.drained, 300)
    received = receive(site, 2)
    assert {message["X-Jobsight-Job"] for message in received} == {str(limited)}
    first, second = sorted(map(subject_of, received), key=lambda each: "TIMEOUT" in each)
    assert "Reached 80% of time limit" in first
    assert "TIMEOUT" in second


@pytest.mark.long
def test_mails_of_jobs_that_end_otherwise(site: MailSite) -> None:
    """Requeued, out of memory, cancelled, and heterogeneous: Slurm's words and the right report."""
    cluster = site.cluster
    options = ("--mem=40", "--output=/dev/null", "--mail-type=ALL")
    requeued = cluster.submit(BOB, "sleep 300", *options, "--requeue")
    cancelled = cluster.submit(ALICE, "sleep 300", *options)
    memory = cluster.submit(ALICE, eat(300), *options)
    het = cluster.submit(ALICE, "true", *options, ":", "--mem=40")
    cluster.wait(requeued, "RUNNING", timeout=120)
    cluster.requeue(requeued)
    cluster.wait(cancelled, "RUNNING", timeout=120)
    cluster.cancel(cancelled, user=ALICE)
    wait_until(lambda: "Requeued" in _queued_subjects(site, requeued), 120)
    cluster.cancel(requeued, user=BOB)
    wait_until(site.drained, 300)
    received = receive(site, 8)
    by_job: dict[str, list[EmailMessage]] = {}
    for message in received:
        by_job.setdefault(message["X-Jobsight-Job"], []).append(message)

    def ending(job: int) -> str:
        """The text of the mail about the end."""
        ends = [m for m in by_job[str(job)] if re.search(r" (Ended|Failed)", subject_of(m))]
        (message,) = ends
        return plain_of(message)

    assert "ended: out of memory" in ending(memory)
    assert "cancelled" in ending(cancelled).lower()
    said = [subject_of(message) for message in by_job[str(requeued)]]
    assert any(" Requeued" in each for each in said)
    assert "cancelled" in ending(requeued).lower()
    assert f"Heterogeneous job {het}" in ending(het)
    assert "2 completed" in ending(het)
    assert all(f"{het}+{offset}" in ending(het) for offset in range(2))
    assert len(by_job[str(het)]) == 2
    assert len({message["Message-ID"] for message in received}) == len(received)


def _queued_subjects(site: MailSite, job: int) -> str:
    subjects = [mail.request.subject for mail in site.queue.requests()]
    return "\n".join(each for each in subjects if f"Job_id={job} " in each)
