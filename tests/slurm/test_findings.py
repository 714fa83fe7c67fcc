"""Findings about real jobs: each misbehaves in one way, next to jobs that behave."""

from __future__ import annotations

import html
import io
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any, NamedTuple

import pytest

from jobsight.cli.main import main
from jobsight.findings.engine import RuleSet
from jobsight.findings.reported import ReportedFinding
from jobsight.store.findings.due import count_unjudged
from jobsight.store.store import Store
from jobsight.util.outer import from_outer
from tests.slurm.cases import (
    CASES,
    LIMITED,
    LONG_RUN,
    PARTITIONS,
    RULES,
    RUNNING,
    SMALL,
    UNTIL_TOLD,
    Case,
    Running,
    job,
    keep,
    kinds,
    pulse,
)
from tests.slurm.conftest import complete_site
from tests.slurm.jobs import ALICE, BOB
from tests.slurm.kernel import cpus_first
from tests.slurm.site import Site, wait_for

pytestmark = pytest.mark.long

SAMPLERS = (
    *("pressure", "cores"),
    *("tests.slurm.samplers:EveryFile", "tests.slurm.samplers:EveryState"),
)
#: Why a verdict may be missing on a busy machine: the agent has come too late.
TOO_LATE = re.compile(
    r"figures stand for|was not sampled|too few samples|no time series|no program"
)
MAX_TRIES = 3
AHEAD, BEYOND = "time-limit-ahead", "runs-beyond-limit"
TITLES = [rule.title for rule in RuleSet.load().rules.values()]


class Judged(NamedTuple):
    """A job with the findings that the server has stored, and what every rule says."""

    job_id: int | str
    report: dict[str, Any]
    explanation: dict[str, Any]

    @property
    def findings(self) -> list[ReportedFinding]:
        return [from_outer(each, ReportedFinding) for each in self.report["findings"]]

    @property
    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.findings}

    def verdict(self, kind: str) -> dict[str, Any]:
        (found,) = [each for each in self.explanation["verdicts"] if each["kind"] == kind]
        return dict(found)


@pytest.fixture(scope="module")
def judging(slurm_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with rules for short jobs, and rounds every second, over running jobs every two."""
    folder = tmp_path_factory.mktemp("findings")
    samplers = ", ".join(f'"{name}"' for name in SAMPLERS)
    choices: dict[str, Any] = {"extra": PARTITIONS, "gpus_per_node": 0}
    more = f"samplers = [{samplers}]\n"
    with cpus_first(), complete_site(folder, agents_more=more, **choices) as site:
        rules = folder / "rules.yaml"
        rules.write_text(RULES)
        site.stop_server()
        site.server_more = (
            f'[findings]\nrules = ["{rules}"]\nminimum_elapsed = 0\ninterval = 1.0\n'
            "running_interval = 2.0\n"
        )
        site.start_server()
        yield site


def submit(site: Site, name: str, case: Case | Running) -> list[int]:
    options = (f"--job-name={name}", *case.options)
    times = case.times if isinstance(case, Case) else 1
    if times > 1:
        options = (*options, "--dependency=singleton")
    return [site.cluster.submit(case.user, case.script, *options) for _ in range(times)]


def tell(site: Site, user: str, job_id: int) -> None:
    """Let a job end that runs until it is told."""
    (site.cluster.work_folder(user) / f"go-{job_id}").touch()


def read(site: Site, job_id: int | str) -> Judged:
    """Wait until a job that has ended is judged by all that is known of it."""
    site.cluster.wait(job_id, timeout=240)
    site.ended(job_id, timeout=240)
    with Store.open(site.store) as store:
        wait_for(lambda: count_unjudged(store.database) == 0, 240, site.log("server"))
    explanation = site.get(f"/api/v1/jobs/{job_id}/explain")
    report = site.report(job_id)
    assert report is not None
    return Judged(job_id, report, explanation)


def came_too_late(judged: Judged, expected: frozenset[str]) -> bool:
    """Whether a finding is missing only because the machine was too busy to measure the job."""
    missing = [judged.verdict(kind) for kind in expected - judged.kinds]
    return bool(missing) and all(
        each["outcome"] == "withheld" and TOO_LATE.search(each["reason"]) for each in missing
    )


@pytest.fixture(scope="module")
def jobs(judging: Site) -> dict[str, list[int]]:
    """All jobs, submitted together; those that last more than a minute begin last, so that nothing
    waits for their end."""
    submitted = {name: submit(judging, name, case) for name, case in (CASES | LIMITED).items()}
    submitted[AHEAD] = [job_id for _ in range(3) for job_id in submit(judging, AHEAD, LONG_RUN)]
    submitted[BEYOND] = submit(judging, BEYOND, RUNNING[BEYOND])
    return submitted


@pytest.fixture(scope="module")
def judged(judging: Site, jobs: dict[str, list[int]]) -> dict[str, list[Judged]]:
    """The jobs that end by themselves; the last one of each case is what it is about."""
    site, done = judging, {}
    for name, case in CASES.items():
        done[name] = [read(site, job_id) for job_id in jobs[name]]
        for _ in range(MAX_TRIES - 1):
            if not came_too_late(done[name][-1], case.expected):
                break
            done[name] = [read(site, job_id) for job_id in submit(site, name, case)]
    return done


@pytest.mark.parametrize("name", CASES)
def test_exactly_the_expected_findings(judged: dict[str, list[Judged]], name: str) -> None:
    *earlier, last = judged[name]
    assert last.kinds == CASES[name].expected, last.explanation["verdicts"][:12]
    assert all(each.kinds == set() for each in earlier)


@pytest.mark.parametrize("name", CASES)
def test_every_rule_is_explained(judged: dict[str, list[Judged]], name: str) -> None:
    last = judged[name][-1]
    explained = [verdict["kind"] for verdict in last.explanation["verdicts"]]
    assert sorted(explained) == sorted(RuleSet.load().rules)
    fired = {each["kind"] for each in last.explanation["verdicts"] if each["outcome"] == "fired"}
    assert fired == last.kinds


def command(site: Site, *arguments: str) -> str:
    """What a command prints, in this process: there are hundreds."""
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "160")
        assert main([*arguments, "--config", str(site.folder / "server.toml")]) == 0
    return printed.getvalue()


def page(site: Site, job_id: int | str) -> str:
    request = urllib.request.Request(
        f"{site.url}/jobs/{job_id}",
        headers={"Authorization": f"Bearer {site.token_file.read_text().strip()}"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(reply.read().decode())


def words(text: str) -> str:
    """Text without its markup, its marks and its line breaks."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def test_terminal_api_and_page_say_the_same(judged: dict[str, list[Judged]], judging: Site) -> None:
    for name, case in CASES.items():
        last = judged[name][-1]
        assert_same_words(judging, last)
        if not case.expected:
            assert last.findings == []


def assert_same_words(site: Site, judged: Judged) -> None:
    """Findings and what the rules say of a job: the same in terminal, JSON, API and page."""
    job_id = str(judged.job_id)
    reported = json.loads(command(site, "report", job_id, "--json"))
    assert reported["findings"] == judged.report["findings"]
    verdicts = explain(site, job_id)["verdicts"]
    assert json.loads(command(site, "explain", job_id, "--json"))["verdicts"] == verdicts
    texts = {
        "terminal": words(command(site, "report", job_id, "--all")),
        "page": words(page(site, job_id)),
    }
    for place, text in texts.items():
        said = {title for title in TITLES if title in text}
        assert said == {finding.title for finding in judged.findings}, (job_id, place, text)
        for finding in judged.findings:
            assert finding.text
            for part in (finding.text, finding.change, finding.cost_text):
                assert words(part) in text, (job_id, place, part, text)
    shown = " ".join(command(site, "explain", job_id, "--all").split())
    for verdict in verdicts:
        assert verdict["kind"] in shown
        assert " ".join(verdict["reason"].split()) in shown


def test_the_list_has_every_finding(judged: dict[str, list[Judged]], judging: Site) -> None:
    listed = json.loads(command(judging, "findings", "list", "--json", "--limit", "500"))
    found = {(each["run"], each["finding"]["kind"]): each["finding"] for each in listed}
    for name, case in CASES.items():
        last = judged[name][-1]
        for finding in last.report["findings"]:
            assert found[last.report["run"], finding["kind"]] == finding
        if not case.expected:
            assert not [run for run, _ in found if run == last.report["run"]]


@pytest.fixture(scope="module")
def running(judging: Site, judged: object, jobs: dict[str, list[int]]) -> dict[str, Judged]:
    """The jobs that run until they are told, while they run; they are told by their tests."""
    begun = {
        name: jobs[name] if name in jobs else submit(judging, name, case)
        for name, case in RUNNING.items()
    }
    return {
        name: read_running(judging, begun[name][0], case.before) for name, case in RUNNING.items()
    }


def read_running(site: Site, job_id: int, expected: frozenset[str]) -> Judged:
    """Wait for the findings of a running job."""

    def found() -> set[str] | None:
        """None before it has been judged several times."""
        report = site.report(job_id)
        if report is None or report["state"] != "RUNNING":
            return None
        if (report["time"]["elapsed_seconds"] or 0) < 8:
            return None
        return {each["kind"] for each in report["findings"]}

    wait_for(lambda: found() == expected, 150, lambda: f"{found()}\n{site.report(job_id)}")
    report = site.report(job_id)
    assert report is not None
    assert report["end"] is None
    return Judged(job_id, report, explain(site, job_id))


def explain(site: Site, job_id: int | str) -> dict[str, Any]:
    explanation: dict[str, Any] = site.get(f"/api/v1/jobs/{job_id}/explain")
    return explanation


@pytest.mark.parametrize("name", RUNNING)
def test_a_running_job_has_findings_before_it_ends(
    running: dict[str, Judged], judging: Site, name: str
) -> None:
    case, before = RUNNING[name], running[name]
    assert before.report["state"] == "RUNNING"
    assert before.kinds == case.before
    fired = {each["kind"] for each in before.explanation["verdicts"] if each["outcome"] == "fired"}
    assert fired == case.before
    # The figures of a running job change between two readings, the words of the rules do not.
    said = words(command(judging, "report", str(before.job_id), "--all"))
    shown = words(page(judging, before.job_id))
    for finding in before.findings:
        for text in (said, shown):
            assert finding.title in text
            assert words(finding.change) in text
    tell(judging, case.user, int(before.job_id))
    after = read(judging, before.job_id)
    assert after.kinds == case.after, after.explanation["verdicts"][:12]


def wait_elapsed(site: Site, job_id: int, seconds: float) -> None:
    """Wait until a running job has lasted so long."""

    def elapsed() -> float:
        report = site.report(job_id)
        return 0.0 if report is None else report["time"]["elapsed_seconds"] or 0.0

    wait_for(lambda: elapsed() >= seconds, 240)


def test_a_limit_that_the_job_will_exceed(judging: Site, jobs: dict[str, list[int]]) -> None:
    """Earlier runs took longer than the limit; more time makes the finding disappear."""
    assert [read(judging, job_id).kinds for job_id in jobs[AHEAD]] == [set()] * 3
    options = (f"--job-name={AHEAD}", *LONG_RUN.options, "--time=1")
    job_id = judging.cluster.submit(LONG_RUN.user, LONG_RUN.script, *options)
    before = read_running(judging, job_id, LONG_RUN.expected)
    (finding,) = before.findings
    assert "3 earlier runs" in finding.text
    judging.cluster.scontrol("update", f"JobId={job_id}", "TimeLimit=10")
    read_running(judging, job_id, kinds())
    tell(judging, LONG_RUN.user, job_id)
    after = read(judging, job_id)
    assert after.kinds == set(), after.explanation["verdicts"][:12]


def test_work_that_takes_longer_than_before(judging: Site) -> None:
    """The same script reads more input from one run on."""
    amount = judging.cluster.work_folder(BOB) / "amount"
    script = job(
        'python3 -c \'import time\ntime.sleep(1)\namount = float(open("amount").read())\n'
        "while time.process_time() < amount: sum(range(10000))'"
    )

    def runs(count: int, seconds: float) -> Judged:
        """Some at the same time, and the one that is judged after them."""
        amount.write_text(str(seconds))
        amount.chmod(0o644)
        options = ("--job-name=slower-than-before", "--mem=40")
        jobs = [judging.cluster.submit(BOB, script, *options) for _ in range(count)]
        for job_id in jobs:
            read(judging, job_id)
        return read(judging, judging.cluster.submit(BOB, script, *options))

    assert runs(11, 0.3).kinds == set()
    last = runs(7, 1.5)
    assert last.kinds == {"slower-than-before"}, last.explanation["verdicts"][:12]


@pytest.mark.parametrize("name", LIMITED)
def test_a_time_limit(judging: Site, jobs: dict[str, list[int]], name: str) -> None:
    """A minute, because a limit has no seconds."""
    (job_id,) = jobs[name]
    last = read(judging, job_id)
    assert last.kinds == LIMITED[name].expected, last.explanation["verdicts"][:12]
    if name == "time-limit-reached":
        (finding,) = last.findings
        assert finding.change.startswith("#SBATCH --time=00:")


def test_an_array_with_one_large_task(judging: Site) -> None:
    """The last one to end sees the whole array."""
    sizes = f"case $SLURM_ARRAY_TASK_ID in 7) {keep(300, 3)};; *) {keep(20, 3)};; esac"
    last = f"if [ $SLURM_ARRAY_TASK_ID -eq 11 ]; then {keep(20, 15)}; fi"
    options = ("--job-name=array-split", "--mem=400", "--array=0-11")
    job_id = judging.cluster.submit(ALICE, job(sizes, last), *options)
    judging.cluster.wait(job_id, timeout=240)
    found = {task: read(judging, f"{job_id}_{task}").kinds for task in range(12)}
    assert found[7] == set()
    assert found[11] == {"array-split"}
    assert all(each <= {"array-split"} for each in found.values())
    alike = judging.cluster.submit(BOB, job(keep(300, 3)), "--mem=400", "--array=0-11")
    judging.cluster.wait(alike, timeout=240)
    for task in range(12):
        judging.ended(f"{alike}_{task}", timeout=240)
    assert read(judging, f"{alike}_11").kinds == set()


def test_a_node_that_fails(judging: Site) -> None:
    job_id = judging.cluster.submit(
        ALICE, job(pulse(UNTIL_TOLD)), "--job-name=node-failed", "--no-requeue", *SMALL
    )
    wait_elapsed(judging, job_id, 3)
    report = judging.report(job_id)
    assert report is not None
    (node,) = report["nodes"]
    # slurmd still answers, so that the node returns at once.
    judging.cluster.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=test")
    judging.cluster.wait(job_id, "NODE_FAIL", timeout=120)
    last = read(judging, job_id)
    assert last.kinds == {"node-failed"}, last.explanation["verdicts"][:12]
