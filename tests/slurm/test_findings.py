"""Findings about real jobs: each misbehaves in one way, next to jobs that behave.

The jobs are short, so that the rules of a site of its own lower what a rule requests. What is
planted is planted so strongly that a busy machine comes to the same verdict.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from jobsight.findings.engine import RuleSet
from jobsight.findings.reported import ReportedFinding
from jobsight.store.findings.due import count_unjudged
from jobsight.store.store import Store
from jobsight.util.outer import from_outer
from tests.slurm.jobs import ALICE, BOB, burn, eat, storm
from tests.slurm.site import REPOSITORY, Site, wait_for

pytestmark = pytest.mark.long

#: What short jobs can reach. Rules that are not named here keep their floors of core hours.
RULES = """
adjust:
  - {rules: [cpu-not-used], parameters: {nothing: 2 %, floor: 8 core s}}
  - {rules: [nodes-not-used], parameters: {floor: 4 core s}}
  - {rules: [cpu-one-core], parameters: {floor: 30 core s}}
  - {rules: [held-after-work], parameters: {least: 8 s, floor: 8 core s}}
  - {rules: [sleeping], parameters: {part: 10 %, floor: 4 core s}}
  - {rules: [memory-request-unused], parameters: {floor: 0.005 GB h}}
  - {rules: [memory-grows], parameters: {floor: 8 core s}}
  - {rules: [failed-inside], parameters: {floor: 0.1 core s}}
  - {rules: [failed-again], parameters: {floor: 0.1 core s}}
  - {rules: [fork-storm], parameters: {rate: 5 /s, part: 5 %, floor: 0.1 core s}}
  - {rules: [steps-in-sequence], parameters: {used: 80 %, gain: 90 %, floor: 2 core s}}
  - {rules: [io-small-calls], parameters: {rate: 50000 /s, floor: 0.2 core s}}
  - {rules: [time-limit-reached], parameters: {floor: 1 core s}}
  - {rules: [array-split], parameters: {floor: 0.0001 GB h}}
"""
#: Why a verdict may be missing on a busy machine: the agent has come too late.
TOO_LATE = re.compile(
    r"figures stand for|was not sampled|too few samples|no time series|no program"
)
MAX_TRIES = 3


def spin(seconds: float) -> str:
    """Busy for so long by the clock, whatever part of a CPU it gets."""
    return f"python3 -c 'import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass'"


def grow(megabytes: int, seconds: float) -> str:
    """Memory that grows by the clock up to so many megabytes."""
    return (
        "python3 -c 'import time\nkept = []\nstart = time.time()\n"
        f"while (past := time.time() - start) < {seconds}:\n"
        f'  while len(kept) < past * {megabytes / seconds}: kept.append(b"x" * (1 << 20))\n'
        "  hash(past)'"
    )


def keep(megabytes: int, seconds: float) -> str:
    """The same memory from the beginning."""
    return (
        f'python3 -c \'import time\nkept = b"x" * ({megabytes} << 20)\n'
        f"end = time.time() + {seconds}\nwhile time.time() < end: pass'"
    )


def simulate(*arguments: str) -> str:
    """A program of its own name that is started with each of some files."""
    starts = "; ".join(f'"$folder"/simulate {argument}' for argument in arguments)
    return f'folder=$(mktemp -d); cp /bin/cat "$folder"/simulate; {starts}; rm -r "$folder"'


STEP = shlex.quote(f"{burn(0.5)}; python3 -c 'import time; time.sleep(1)'")


class Case(NamedTuple):
    """A job and exactly the kinds of findings that it must have."""

    script: str
    options: tuple[str, ...] = ()
    expected: frozenset[str] = frozenset()
    user: str = ALICE
    #: Submitted so often, one after the other; the last one is judged, the others have no finding.
    times: int = 1


def job(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines, ""])


def kinds(*names: str) -> frozenset[str]:
    return frozenset(names)


SMALL = ("--mem=60",)
BOTH = ("--mem=60", "--nodes=1", "--ntasks=1", "--cpus-per-task=2")

CASES: dict[str, Case] = {
    # The longest one begins first.
    "cpu-one-core": Case(job(spin(34)), BOTH, kinds("cpu-one-core")),
    "held-after-work": Case(job(burn(2), "sleep 14"), SMALL, kinds("held-after-work")),
    "works-to-its-end": Case(
        # What a script says of sleep is no sleep.
        job("# sleep 100", "sleep=100", "cat > /dev/null <<end", "sleep $sleep", "end", burn(5)),
        SMALL,
        user=BOB,
    ),
    "cpu-not-used": Case(job("sleep 12"), BOTH, kinds("cpu-not-used")),
    "two-cores": Case(job(f"{spin(3)} &", f"{spin(3)} &", "wait"), BOTH, user=BOB),
    "sleeping": Case(job(burn(1), "sleep 9", burn(1)), SMALL, kinds("sleeping")),
    "out-of-memory": Case(job(eat(300)), ("--mem=80",), kinds("out-of-memory")),
    "failed-inside": Case(
        job(burn(1), simulate(*["/no/such/input"] * 6), "true"), SMALL, kinds("failed-inside")
    ),
    "failed-once": Case(
        job(burn(1), simulate("/no/such/input", *["/dev/null"] * 5), "true"), SMALL, user=BOB
    ),
    "fork-storm": Case(job(storm(1500)), SMALL, kinds("fork-storm")),
    "few-programs": Case(job(storm(10), burn(3)), SMALL, user=BOB),
    "steps-in-sequence": Case(
        job(*[f"srun --ntasks=1 bash -c {STEP}"] * 5),
        ("--mem=60", "--nodes=1", "--ntasks=2"),
        kinds("steps-in-sequence"),
    ),
    "steps-side-by-side": Case(
        job(*[f"srun --exact --ntasks=1 --mem=20 bash -c {STEP} &"] * 2, "wait"),
        ("--mem=60", "--nodes=1", "--ntasks=2"),
        user=BOB,
    ),
    "nodes-not-used": Case(
        job(burn(4)), ("--mem=60", "--nodes=2", "--ntasks-per-node=1"), kinds("nodes-not-used")
    ),
    "both-nodes": Case(
        job(f"srun --ntasks=2 --ntasks-per-node=1 {spin(3)}"),
        ("--mem=60", "--nodes=2", "--ntasks-per-node=1"),
        user=BOB,
    ),
    "memory-request-unused": Case(
        job(spin(10)), ("--mem=2400",), kinds("memory-request-unused")
    ),
    "memory-grows": Case(job(grow(240, 20)), ("--mem=400",), kinds("memory-grows")),
    "memory-of-one-allocation": Case(job(keep(240, 12)), ("--mem=400",), user=BOB),
    "io-small-calls": Case(
        job("dd if=/dev/zero of=/dev/null bs=1 count=4000000"), SMALL, kinds("io-small-calls")
    ),
    "io-large-calls": Case(
        job("dd if=/dev/zero of=/dev/null bs=1M count=20000"), SMALL, user=BOB
    ),
    "failed-again": Case(
        job(burn(0.5), "sleep 1", "exit 3"), SMALL, kinds("failed-again"), times=3
    ),
    "failed-before": Case(
        job(burn(0.5), "sleep 1", "echo >> runs", "test $(wc -l < runs) -eq 3"), SMALL, user=BOB,
        times=3,
    ),
}  # fmt: skip


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
def judging(site: Site) -> Iterator[Site]:
    """The site with rules for short jobs, and rounds every second."""
    rules = site.folder / "rules.yaml"
    rules.write_text(RULES)
    before = site.server_more
    site.stop_server()
    site.server_more = (
        f'{before}[findings]\nrules = ["{rules}"]\nminimum_elapsed = 0\ninterval = 1.0\n'
    )
    site.start_server()
    yield site
    site.stop_server()
    site.server_more = before
    site.start_server()


def submit(site: Site, name: str, case: Case) -> list[int]:
    options = (f"--job-name={name}", *case.options)
    if case.times > 1:
        options = (*options, "--dependency=singleton")
    return [site.cluster.submit(case.user, case.script, *options) for _ in range(case.times)]


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
def judged(judging: Site) -> dict[str, list[Judged]]:
    """All jobs, submitted together; the last one of each case is what it is about."""
    site, done = judging, {}
    jobs = {name: submit(site, name, case) for name, case in CASES.items()}
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
    done = subprocess.run(
        [sys.executable, "-m", "jobsight.cli.main", *arguments, "--config",
         str(site.folder / "server.toml")],
        cwd=REPOSITORY, env={**os.environ, "COLUMNS": "160"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout


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
        if not case.expected:
            continue
        last = judged[name][-1]
        reported = json.loads(command(judging, "report", str(last.job_id), "--json"))
        assert reported["findings"] == last.report["findings"]
        texts = {
            "terminal": words(command(judging, "report", str(last.job_id), "--all")),
            "page": words(page(judging, last.job_id)),
        }
        for finding in last.findings:
            assert finding.text
            for place, text in texts.items():
                for said in (finding.title, finding.text, finding.change, finding.cost_text):
                    assert words(said) in text, (name, place, said, text)


def test_a_job_that_behaves_has_no_findings_anywhere(
    judged: dict[str, list[Judged]], judging: Site
) -> None:
    last = judged["works-to-its-end"][-1]
    titles = [rule.title for rule in RuleSet.load().rules.values()]
    for text in (command(judging, "report", str(last.job_id)), page(judging, last.job_id)):
        assert not [title for title in titles if title in words(text)]


def test_the_list_has_every_finding(judged: dict[str, list[Judged]], judging: Site) -> None:
    listed = json.loads(command(judging, "findings", "list", "--json", "--limit", "500"))
    found = {(each["run"], each["finding"]["kind"]): each["finding"] for each in listed}
    for name, case in CASES.items():
        last = judged[name][-1]
        for finding in last.report["findings"]:
            assert found[last.report["run"], finding["kind"]] == finding
        if not case.expected:
            assert not [run for run, _ in found if run == last.report["run"]]


@pytest.mark.timeout(400)
def test_a_time_limit(judging: Site) -> None:
    """Minutes, because a limit has no seconds."""
    options = ("--mem=40", "--time=1")
    works = Case(job(spin(600)), options, kinds("time-limit-reached"))
    # More time would not help it.
    held = Case(job(burn(4), "sleep 600"), options, kinds("held-after-work"), BOB)
    (first,) = submit(judging, "time-limit-reached", works)
    (second,) = submit(judging, "held-until-the-limit", held)
    last = read(judging, first)
    assert last.kinds == works.expected, last.explanation["verdicts"][:12]
    (finding,) = last.findings
    assert finding.change.startswith("#SBATCH --time=00:")
    last = read(judging, second)
    assert last.kinds == held.expected, last.explanation["verdicts"][:12]


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
