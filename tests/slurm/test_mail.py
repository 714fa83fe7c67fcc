"""slurmctld calls `jobsight mail` as its MailProg while the mail server is unreachable."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller

from jobsight.mail.queue import MailQueue
from jobsight.reports.report import JobReport
from jobsight.reports.terminal import report_text
from jobsight.util.outer import from_outer
from tests.bed import Cluster
from tests.mail.mailbox import Mailbox
from tests.ports import free_port
from tests.slurm.conftest import write_hook
from tests.slurm.jobs import ALICE, BOB, burn, eat
from tests.slurm.site import REPOSITORY, Site
from tests.waiting import wait_until

ALL = "--mail-type=END,FAIL"


class MailSite(Site):
    """A site whose slurmctld sends mails by `jobsight mail`."""

    queue: MailQueue
    smtp_port: int

    def drained(self) -> bool:
        """Whether the controller has no job that has not ended."""
        return not self.cluster.run(["squeue", "--noheader"]).stdout.strip()


@pytest.fixture(scope="module")
def site(slurm_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailSite]:
    # slurmctld's user enters it, which it may not with pytest's directories.
    place = Path(tempfile.mkdtemp(prefix="jobsight-mail-"))
    try:
        place.chmod(0o755)
        (place / "queue").mkdir()
        shutil.chown(place / "queue", "slurm", "slurm")
        program = place / "mail"
        program.write_text(
            "#!/bin/sh\n"
            f'exec {sys.executable} -m jobsight.cli.main mail --queue {place}/queue "$@" '
            f"2>>{place}/queue/errors\n"
        )
        program.chmod(0o755)
        check = [sys.executable, "-c", "import jobsight.cli.mail"]
        if subprocess.run(check, user="slurm", cwd="/", env={}, check=False).returncode:
            pytest.skip(f"the user slurm may not read {REPOSITORY}")
        folder = tmp_path_factory.mktemp("mail")
        folder.chmod(0o755)
        hooks = {name: str(write_hook(folder, name)) for name in ("prolog", "epilog")}
        (folder / "site").mkdir()
        with Cluster.unused("m", extra=(f"MailProg={program}",), **hooks) as cluster:
            made = MailSite(cluster, folder / "site")
            made.queue, made.smtp_port = MailQueue(place / "queue"), free_port()
            made.server_more = (
                f'[mail]\nqueue = "{place}/queue"\ninterval = 0.5\nport = {made.smtp_port}\n'
                'domain = "example.org"\nsender = "jobs@example.org"\ntimeout = 5\n'
            )
            with made:
                yield made
    finally:
        shutil.rmtree(place)


def receive(site: MailSite, mails: int) -> list[EmailMessage]:
    """Bring the mail server back and wait until it has so many mails and the queue is empty."""
    mailbox = Mailbox()
    controller = Controller(mailbox, hostname="127.0.0.1", port=site.smtp_port)
    controller.start()
    try:
        wait_until(lambda: len(mailbox.received) >= mails and not site.queue.requests(), 240)
    finally:
        controller.stop()
    assert site.queue.failures() == []
    return mailbox.received


def plain_of(message: EmailMessage) -> str:
    body = message.get_body(("plain",))
    assert body is not None
    return " ".join(body.get_content().split())


def subject_of(message: EmailMessage) -> str:
    return " ".join(message["Subject"].split())


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
    assert os.path.getsize(site.queue.directory / "errors") == 0
    workers = site.get("/api/v1/health")["workers"]
    assert any(each["worker"] == "mail" and "mail server" in each["reason"] for each in workers)

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


#: Jobs that end while the mail server is unreachable; 500 were tried by hand.
MANY = int(os.environ.get("JOBSIGHT_TEST_MAILS", "60"))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_jobs_and_every_mail_once(site: MailSite) -> None:
    cluster = site.cluster
    options = ("--mem=20", "--output=/dev/null", "--job-name=many")
    limited = cluster.submit(
        ALICE, "sleep 600", "--mail-type=TIME_LIMIT_80,FAIL", "--time=1", *options
    )
    jobs = [cluster.submit((ALICE, BOB)[n % 2], "true", ALL, *options) for n in range(MANY)]
    wait_until(site.drained, 1200)
    wait_until(lambda: len(site.queue.requests()) == MANY + 2, 300)
    received = receive(site, MANY + 2)
    found = Counter(message["X-Jobsight-Job"] for message in received)
    assert found == Counter({**dict.fromkeys(map(str, jobs), 1), str(limited): 2})
    said = [subject_of(message) for message in received if "TIMEOUT" in message["Subject"]]
    said += [subject_of(m) for m in received if "80% of time limit" in m["Subject"]]
    assert len(said) == 2


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
    assert f"Job {het}+0" in ending(het)
    assert len({message["Message-ID"] for message in received}) == len(received)


def _queued_subjects(site: MailSite, job: int) -> str:
    subjects = [mail.request.subject for mail in site.queue.requests()]
    return "\n".join(each for each in subjects if f"Job_id={job} " in each)
