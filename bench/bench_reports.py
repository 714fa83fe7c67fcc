"""Reports: of a run of 64 nodes and 24 hours as text, PDF and mail, and of a user's year of 50,000
runs."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from bench.bench_page import NODES, one_job
from bench.bodies import CLUSTER, native
from bench.figures import Figures
from bench.peer_venv import scratch_directory
from bench.workload import FIRST_JOB
from jobsight.config.settings import MailSettings
from jobsight.findings.finding import Cost, Evidence, Finding
from jobsight.findings.packed import encode_figures
from jobsight.findings.stored import to_row
from jobsight.findings.vocabulary import FIGURES, FigureSet
from jobsight.mail.message import About, build_message
from jobsight.mail.request import MailRequest
from jobsight.model import SECOND, JobInfo, RunReference
from jobsight.reports.build import build_report
from jobsight.reports.report import JobReport
from jobsight.reports.subject import period_report
from jobsight.reports.subject_document import document_text, subject_document
from jobsight.reports.terminal import report_text
from jobsight.reports.with_plots import pdf_of, read_series
from jobsight.server.receiver import Receiver
from jobsight.software.rules import RuleSet
from jobsight.software.worker import update
from jobsight.store.findings.rows import owner_of
from jobsight.store.findings.shown import Shown, record_shown
from jobsight.store.findings.works import WorkKey, find_or_add_work
from jobsight.store.findings.write import Judged, store_judged
from jobsight.store.history import MAX_EARLIER
from jobsight.store.store import Store
from jobsight.util.batching import batched

#: Seconds.
REPORT, PDF, MAIL, YEAR = 1.0, 3.0, 1.0, 2.0
RUNS, WORKS, DAYS = 50_000, 40, 365
ROUNDS = 3
_PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
_DAY = 86400 * SECOND
_START = 20_000 * _DAY

_Result = TypeVar("_Result")


class Timed(NamedTuple):
    """The shortest of some times, and the least CPU time of this process and its children."""

    seconds: float
    cpu: float
    #: How often the fastest call was interrupted for another process: on a busy machine the time is
    #: that of waiting for a CPU.
    interrupted: int

    def __str__(self) -> str:
        return (
            f"{self.seconds:.2f} s ({self.cpu:.2f} s of CPU with children, "
            f"interrupted {self.interrupted} times)"
        )


class _Reading(NamedTuple):
    time: float
    cpu: float
    interrupted: int


def _read() -> _Reading:
    own, children = (resource.getrusage(who) for who in _PROCESSES)
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return _Reading(time.monotonic(), cpu, own.ru_nivcsw + children.ru_nivcsw)


def best(call: Callable[[], _Result]) -> tuple[Timed, _Result]:
    """The best of some calls, and the result."""
    calls = []
    for _ in range(ROUNDS):
        before = _read()
        result = call()
        after = _read()
        calls.append(Timed(*(end - start for start, end in zip(before, after, strict=True))))
    fastest = min(calls)
    return fastest._replace(cpu=min(each.cpu for each in calls)), result


def large_run(store: Store) -> JobReport:
    """A run of 64 nodes that has findings about CPUs, memory and storage, and 200 earlier runs of
    its work, of which a finding was shown."""
    work_id, data = add_earlier(store), every_figure()
    receiver = Receiver(store)
    for job in one_job():
        for body in native([job], 240):
            receiver.accept(body)
    reference = RunReference(job_id=FIRST_JOB, cluster=CLUSTER)
    info, end = store.find(reference).info, store.find(reference).last_seen
    store.record_jobs([msgspec.structs.replace(info, end=end, state="COMPLETED")])
    run = store.find(reference)
    evidence = [("cpu.time",), ("memory.used",), ("io.read_bytes",)]
    found = tuple(
        to_row(
            Finding(
                kind=f"bench-{number}", severity="warning", title="A title of some words",
                text="Sentences with figures. " * 5, change="#SBATCH --mem=14G",
                cost=Cost(core_hours=100.0 + number), evidence=Evidence(series=series),
            )
        )
        for number, series in enumerate(evidence)
    )  # fmt: skip
    owner = owner_of(run.info.cluster, run.info.user, run.info.account, None, run.start)
    judged = Judged(run.id, -1, owner, work_id, found, figures=data)
    store_judged(store.database, [judged], run.start)
    report = build_report(store, run)
    assert report.fitted
    assert report.improvements
    return report


def add_earlier(store: Store) -> int:
    """The id of a work with as many earlier runs as a report reads."""
    work = WorkKey(CLUSTER, "ada", "", "name", b"large", "large")
    work_id = find_or_add_work(store.database, work)
    store.record_jobs([
        JobInfo(
            cluster=CLUSTER, source="slurm", job_id=10**7 + number, user="ada", name="large",
            start=_START + number * 3600 * SECOND, end=_START + (number + 1) * 3600 * SECOND,
            state="COMPLETED", cpus=64, memory=2**38, time_limit=_DAY,
        )
        for number in range(MAX_EARLIER)
    ])  # fmt: skip
    runs = sorted(store.runs(limit=MAX_EARLIER), key=lambda run: run.start)
    finding = to_row(
        Finding(kind="gone", severity="warning", title="T", text="X", cost=Cost(core_hours=9.0))
    )
    judged = [
        Judged(
            run.id,
            -1,
            owner_of(CLUSTER, "ada", None, None, run.start),
            work_id,
            (finding,) if place < 9 else (),
            figures=every_figure(),
        )
        for place, run in enumerate(runs)
    ]
    store_judged(store.database, judged, _START)
    shown = Shown(runs[0].id, "gone", "ada", "report")
    record_shown(store.database, {shown: 1}, runs[9].start - 1)
    return work_id


def every_figure() -> bytes:
    """Stored figures of the size that those of a run have."""
    figures = FigureSet()
    for number, name in enumerate(FIGURES):
        figures.values[name] = number * 1.1
    return encode_figures(figures)


def fill_year(store: Store) -> None:
    """A user's year: 40 scripts, a fifth of the runs with a finding."""
    jobs = [
        JobInfo(
            cluster="c", source="slurm", job_id=number, user="ada", account="lab",
            name=f"work{number % WORKS}", submit=_START + number * _DAY * DAYS // RUNS,
            start=_START + number * _DAY * DAYS // RUNS + 60 * SECOND,
            end=_START + number * _DAY * DAYS // RUNS + (660 + number % 977) * SECOND,
            state="FAILED" if number % 50 == 0 else "COMPLETED", cpus=1 + number % 8,
            memory=8 * 2**30, exit_code=0,
        )
        for number in range(1, RUNS + 1)
    ]  # fmt: skip
    for some in batched(jobs, 5000):
        store.record_jobs(some)
    works = [
        find_or_add_work(
            store.database,
            WorkKey("c", "ada", "", "name", number.to_bytes(16), f"work{number}"),
        )
        for number in range(WORKS)
    ]
    data = every_figure()
    for some_runs in batched(store.runs(limit=RUNS), 2000):
        judged = []
        for run in some_runs:
            number = run.info.job_id
            finding = Finding(
                kind=f"kind-{number % 20}", severity="warning", title="A title of some words",
                text="Sentences with figures. " * 5, change="#SBATCH --mem=14G",
                cost=Cost(core_hours=float(number % 100)),
            )  # fmt: skip
            found = (to_row(finding),) if number % 5 == 0 else ()
            owner = owner_of("c", "ada", "lab", None, run.start)
            work_id = works[number % WORKS]
            judged.append(Judged(run.id, -1, owner, work_id, found, figures=data))
        store_judged(store.database, judged, _START + DAYS * _DAY)
    update(store, RuleSet.load([]))


def main() -> None:
    figures = Figures()

    def row(what: str, timed: Timed, goal: float, more: str = "") -> None:
        reached = timed.seconds <= goal
        figures.row(what, "-", f"{timed}{more}", f"{goal:g} s", reached=reached)

    what = f"{NODES} nodes, 24 h at 30 s"
    with scratch_directory() as name, Store.open(Path(name) / "store.db") as store:
        report = large_run(store)
        run = store.find(RunReference(job_id=FIRST_JOB, cluster=CLUSTER))
        timed, _ = best(lambda: report_text(build_report(store, run)))
        row(f"report of a run, {what}", timed, REPORT)
        timed, pdf = best(lambda: pdf_of(report, read_series(store, report), 0))
        row(f"PDF of a run, {what}, with heat maps", timed, PDF, f", {len(pdf) / 1e6:.1f} MB")
        request = MailRequest(to="ada", subject="Slurm Job_id=1 Name=x Ended", created=1)

        def mail() -> bytes:
            about = About(run=build_report(store, run))
            return build_message(MailSettings(), "x", [request], about).as_bytes()

        timed, _ = best(mail)
        row(f"mail of a run, {what}", timed, MAIL)
    with scratch_directory() as name, Store.open(Path(name) / "store.db") as store:
        fill_year(store)

        def year() -> str:
            built = period_report(store, "user", "ada", since=_START // _DAY)
            assert built.runs == RUNS
            assert built.findings
            return document_text(subject_document(built))

        timed, _ = best(year)
        row(f"report of a user's year, {RUNS:,} runs", timed, YEAR)
    figures.end()


if __name__ == "__main__":
    main()
