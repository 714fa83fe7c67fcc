"""Jobs of a real Slurm: terminal, JSON, mail as a mail server receives it, HTML and PDF have the
same figures and words."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import msgspec
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from jobsight.cli.main import main
from tests.mail import exim
from tests.mail.mailbox import Mailbox
from tests.reports.everywhere import missing, words_of_page
from tests.reports.pdf_text import pdf_text, squeezed
from tests.server.certificates import Papers
from tests.slurm.jobs import ALICE, BOB, Gate, burn, eat
from tests.slurm.mail_site import MailSite, mail_site, plain_of, subject_of
from tests.slurm.site import wait_for
from tests.waiting import wait_until

pytestmark = pytest.mark.long

TASKS = 40
#: Tasks of the array that use ten times the CPU time of the others.
OUTLIERS = {7, 19, 31}
SMALL = ("--partition=many", "--mem=60", "--output=/dev/null")
MAILS = ("--mail-type=END,FAIL,REQUEUE",)
#: A byte that is no text, an escape of terminals, markup of HTML and of typst.
HOSTILE = b"a\xffb \x1b[31m<b>x</b> #sys.version $x^2$"
#: The same as it is shown in Slurm's own words, and in reports: there the byte is escaped when it
#: is read from Slurm, and the backslash of that when it is shown.
SAID = r"a\xffb \x1b[31m<b>x</b> #sys.version $x^2$"
SHOWN = SAID.replace(r"\xff", r"\\xff")


class Site(NamedTuple):
    """A site with its mail server."""

    slurm: MailSite
    mailbox: Mailbox


def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    assert isinstance(data, LoginPassword)
    right = (data.login, data.password) == (b"jobs", b"secret")
    return AuthResult(success=right, handled=False, auth_data=data)


@pytest.fixture(scope="module")
def site(slurm_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("everywhere")
    (folder / "slurm").mkdir()
    (folder / "papers").mkdir()
    papers = Papers(folder / "papers")
    password = folder / "password"
    password.write_text("secret\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*papers.pair("server"))
    login = f'user = "jobs"\npassword_file = "{password}"\ntls = "starttls"\n'
    mailbox = Mailbox()
    # All jobs run at the same time.
    many = "PartitionName=many Nodes=ALL OverSubscribe=FORCE:12 DefMemPerCPU=60 State=UP"
    with mail_site(
        folder / "slurm", "e", f'{login}certificates = "{papers.authority}"\n', (many,)
    ) as slurm:
        controller = Controller(
            mailbox, hostname="127.0.0.1", port=slurm.smtp_port, tls_context=context,
            require_starttls=True, auth_required=True, authenticator=authenticate,
        )  # fmt: skip
        controller.start()
        try:
            yield Site(slurm, mailbox)
        finally:
            controller.stop()


def task_script(gate: Gate, folder: Path) -> str:
    """Planted work of a task: CPU seconds and memory, different for each, so that not every small
    difference is an outlier. Then it waits for the others."""
    program = (
        "import os, time\n"
        "task = int(os.environ['SLURM_ARRAY_TASK_ID'])\n"
        "held = bytearray((10 + task % 10) << 20)\n"
        "held[::4096] = bytes(len(held[::4096]))\n"
        f"seconds = 4.0 if task in {sorted(OUTLIERS)} else 0.3 + 0.02 * (task % 10)\n"
        "while time.process_time() < seconds: pass\n"
        f"open(f'{folder}/{{task}}', 'w').close()\n"
        f"open('{gate.path}').close()\n"
    )
    return f'#!/bin/sh\nexec python3 -c "{program}"\n'


class Renderings(NamedTuple):
    """A report as each command and mail writes it."""

    report: dict[str, Any]
    terminal: str
    page: str
    paper: str
    #: The directory of the files.
    place: Path

    @property
    def plots(self) -> Path:
        return self.place / "plots"


def render(
    slurm: MailSite, options: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> Renderings:
    """What `jobsight report` writes."""
    place.mkdir()
    store = ["--store", str(slurm.store)]
    plots = [] if "--array" in options else ["--plots", str(place / "plots")]

    def run(*more: str) -> str:
        capsys.readouterr()
        assert main(["report", *options, *store, *more]) == 0
        return capsys.readouterr().out

    report = msgspec.json.decode(run("--json"))
    terminal = run("--all")
    (place / "report.json").write_bytes(msgspec.json.encode(report))
    (place / "terminal.txt").write_text(terminal)
    run("--html", str(place / "report.html"), "--pdf", str(place / "report.pdf"), *plots)
    return Renderings(
        report,
        terminal,
        words_of_page((place / "report.html").read_text()),
        # A narrow space of one order is none in the other.
        "\n".join(
            pdf_text((place / "report.pdf").read_bytes(), place, order)
            for order in ("-layout", "-raw")
        ),
        place,
    )


def lacking(found: Renderings, mail: Any | None) -> dict[str, list[str]]:
    """The figures of the object that a rendering has not."""
    report = found.report
    # All renderings have the object of several runs as a document.
    terminal = "document" if "subject" in report else "terminal"
    texts = {
        "terminal": (terminal, found.terminal),
        "page": ("document", found.page),
        "paper": ("document", found.paper),
    }
    if mail is not None:
        page = mail.get_body(("html",))
        assert page is not None, plain_of(mail)
        narrow = "document" if "subject" in report else "narrow terminal"
        texts["mail"] = (narrow, plain_of(mail))
        texts["page of the mail"] = ("document", words_of_page(page.get_content()))
    for name, (_, text) in texts.items():
        (found.place / f"{name}.txt").write_text(text)
    each = {name: missing(report, kind, text) for name, (kind, text) in texts.items()}
    return {name: values for name, values in each.items() if values}


def check_plots(found: Renderings) -> None:
    """Both formats of each plot, with the titles of the metrics that were measured."""
    pictures = {file.name for file in found.plots.iterdir()}
    assert {"cpu.svg", "memory.svg", "storage.svg"} <= pictures
    assert {name.replace(".svg", ".png") for name in pictures if name.endswith(".svg")} == {
        name for name in pictures if name.endswith(".png")
    }
    for file in found.plots.iterdir():
        if file.suffix == ".svg":
            ElementTree.fromstring(file.read_bytes())
        else:
            assert file.read_bytes().startswith(b"\x89PNG")
    assert "CPUs busy" in (found.plots / "cpu.svg").read_text()


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The terminal has the times of the machine, the others those of UTC."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "100")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def ended_mail(site: Site, job: int) -> Any:
    """The mail about the end of a job."""

    def ends() -> list[Any]:
        return [
            each
            for each in site.mailbox.received
            if each["X-Jobsight-Job"] == str(job)
            and re.search(r" (Ended|Failed)", subject_of(each))
        ]

    wait_for(lambda: bool(ends()), 180, lambda: site.slurm.log("server")())
    (mail,) = ends()
    return mail


STATES = {
    "plain": "COMPLETED",
    "requeued": "COMPLETED",
    "memory": "OUT_OF_MEMORY",
    "cancelled": "CANCELLED",
}


@pytest.mark.timeout(900)
def test_all_renderings_of_jobs_of_all_kinds_have_the_same_figures_and_words(
    site: Site, tmp_path: Path, utc: None, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm, cluster = site.slurm, site.slurm.cluster
    folder = cluster.work_folder(ALICE)
    differences: dict[str, dict[str, list[str]]] = {}
    with Gate(cluster.settings.path()) as gate, Gate(cluster.settings.path()) as kept:
        array = cluster.submit(
            ALICE, task_script(gate, folder), f"--array=0-{TASKS - 1}", "--job-name=sweep", *SMALL,
            "--mail-type=END,FAIL,ARRAY_TASKS",
        )  # fmt: skip
        jobs = {
            "plain": cluster.submit(
                BOB, f"#!/bin/sh\n{burn(3)}\nsrun {burn(0.5)}\n", "--job-name=plain", *SMALL, *MAILS
            ),
            # A plot has at least two samples, which are taken every second.
            "memory": cluster.submit(
                ALICE, f"{burn(3)}; {eat(300)}", "--job-name=eater", *SMALL, *MAILS
            ),
            "cancelled": cluster.submit(
                ALICE, f"{burn(0.3)}; sleep 600", "--job-name=long", *SMALL, *MAILS
            ),
            "requeued": cluster.submit(
                BOB, f"{burn(0.3)}; [ -n \"$SLURM_RESTART_COUNT\" ] || sleep 600",
                "--job-name=again", "--requeue", *SMALL, *MAILS,
            ),
        }  # fmt: skip
        het = cluster.submit(
            ALICE,
            f"#!/bin/sh\n{burn(0.5)}\nsrun --het-group=0,1 {burn(0.5)}\n",
            "--job-name=coupled", *SMALL, *MAILS, ":", "--partition=many", "--mem=50",
        )  # fmt: skip
        running = cluster.submit(BOB, f"{burn(0.5)}; {kept.line}", "--job-name=runs", *SMALL)
        cluster.wait(jobs["requeued"], "RUNNING", timeout=120)
        cluster.requeue(jobs["requeued"])
        wait_for(lambda: _used(slurm, jobs["cancelled"]) >= 0.3, 120)
        cluster.cancel(jobs["cancelled"], user=ALICE)
        # All tasks have done their work and were sampled with the memory that they hold.
        wait_until(lambda: all((folder / str(task)).exists() for task in range(TASKS)), 300)
        wait_for(lambda: _sampled(slurm, array), 120, slurm.log("server"))
        gate.open()
        for name, job in jobs.items():
            mail = ended_mail(site, job)
            found = render(slurm, [str(job)], tmp_path / name, capsys)
            assert found.report["state"] == STATES[name], name
            differences[name] = lacking(found, mail)
            check_plots(found)
            if name == "requeued":
                subjects = [subject_of(each) for each in site.mailbox.received]
                assert any(f"Job_id={job} " in each and "Requeued" in each for each in subjects)
        differences["running"] = _check_running(slurm, running, tmp_path, capsys)
        kept.open()
    mail = ended_mail(site, het)
    found = render(slurm, ["--array", str(het)], tmp_path / "het", capsys)
    assert (found.report["kind"], found.report["states"]) == ("het", {"COMPLETED": 2})
    differences["het"] = lacking(found, mail)

    mail = ended_mail(site, array)
    found = render(slurm, ["--array", str(array)], tmp_path / "array", capsys)
    assert found.report["states"] == {"COMPLETED": TASKS}
    named = {f"{array}_{task}" for task in OUTLIERS}
    assert {each["task"] for each in found.report["outliers"]} == named
    differences["array"] = lacking(found, mail)
    lacked = {name: each for name, each in differences.items() if each}
    assert lacked == {}, msgspec.json.format(msgspec.json.encode(lacked)).decode()
    for text in (found.terminal, found.page, found.paper, plain_of(mail)):
        listed = re.search(r"Outliers(.*?)Runs that held most", text, re.DOTALL)
        assert listed is not None
        assert set(re.findall(rf"\b{array}_\d+\b", listed[1])) == named
    assert set(site.mailbox.users) == {"jobs"}


def _used(slurm: MailSite, job: int) -> float:
    report = slurm.report(job)
    return 0.0 if report is None else float(report["cpu"]["cpu_seconds"] or 0.0)


def _sampled(slurm: MailSite, array: int) -> bool:
    """Whether of each task the memory is known that it holds at the end."""
    reports = [slurm.report(f"{array}_{task}") for task in range(TASKS)]
    return all(
        report is not None and (report["memory"]["used_peak_bytes"] or 0) >= (10 + task % 10) << 20
        for task, report in enumerate(reports)
    )


def _check_running(
    slurm: MailSite, job: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, list[str]]:
    """A run that waits uses nothing more; only what counts the time changes meanwhile."""
    wait_for(lambda: _used(slurm, job) >= 0.5, 120)
    # The time limit is of the scheduler's record.
    wait_for(lambda: slurm.report(job)["time"]["share"] is not None, 120)
    for node in list(slurm.agents):
        slurm.stop_agent(node)
    first = render(slurm, [str(job)], tmp_path / "running", capsys)
    assert (first.report["state"], first.report["end"]) == ("RUNNING", None)
    second = render(slurm, [str(job)], tmp_path / "running-later", capsys)
    for group, name in (("time", "elapsed_seconds"), ("time", "share")):
        assert first.report[group][name] <= second.report[group][name]
        first.report[group][name] = second.report[group][name] = None
    for each in (first, second):
        # What is held grows with the time.
        assert each.report["cost"]["core_hours"] > 0
        each.report["cost"], each.report["prices"] = {}, []
    assert first.report == second.report
    check_plots(first)
    for text in (first.terminal, first.page, first.paper):
        assert "still running" in text
    for node in slurm.cluster.nodes:
        slurm.start_agent(node)
    return lacking(first, None)


@contextmanager
def sending_through(site: Site, server: exim.Exim) -> Iterator[None]:
    """The server of the site sends through another mail server."""
    slurm = site.slurm
    before = slurm.server_more
    slurm.stop_server()
    more = re.sub(r"(?m)^port = .*$", f"port = {server.port}", before)
    slurm.server_more = re.sub(
        r"(?m)^certificates = .*$", f'certificates = "{server.papers.authority}"', more
    )
    slurm.start_server()
    try:
        yield
    finally:
        slurm.stop_server()
        slurm.server_more = before
        slurm.start_server()


def test_a_hostile_name_is_text_everywhere_also_through_exim(
    site: Site, tmp_path: Path, utc: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """From sbatch through slurmctld, its mail program and a real mail server."""
    slurm = site.slurm
    (tmp_path / "exim").mkdir()
    with exim.running(tmp_path / "exim") as server, sending_through(site, server):
        # Without an elapsed second there is no share, and no line that says of how much.
        job = slurm.cluster.submit(ALICE, burn(1.5), b"--job-name=" + HOSTILE, *SMALL, *MAILS)

        def of_job() -> list[Any]:
            return [each for each in server.delivered() if each["X-Jobsight-Job"] == str(job)]

        wait_for(lambda: bool(of_job()), 180, slurm.log("server"))
        (mail,) = of_job()
    assert mail["Envelope-to"] == f"{ALICE}@example.org"
    subject = subject_of(mail)
    assert f" Name={SAID} Ended, " in subject
    found = render(slurm, [str(job)], tmp_path / "hostile", capsys)
    assert lacking(found, mail) == {}
    page = mail.get_body(("html",))
    assert page is not None
    texts = {
        "terminal": found.terminal,
        "page": found.page,
        "mail": plain_of(mail),
        "page of the mail": words_of_page(page.get_content()),
    }
    for name, text in texts.items():
        assert SHOWN in " ".join(text.split()), name
        assert "\x1b" not in text
    assert squeezed(SHOWN) in squeezed(found.paper)
    for markup in (page.get_content(), (tmp_path / "hostile" / "report.html").read_text()):
        assert "<b>x</b>" not in markup
        assert "&lt;b&gt;x&lt;/b&gt;" in markup
