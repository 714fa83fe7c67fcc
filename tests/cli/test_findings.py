"""`jobsight findings` and `jobsight explain` as people type them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from jobsight.cli.main import main
from jobsight.cli.report import user_name
from jobsight.findings.finding import Cost
from jobsight.findings.stored import to_row
from jobsight.store.store import Store
from tests.findings.judge import KIND, found
from tests.store.findings.sample import add_findings, work
from tests.store.sample import START, batch, find, info, part, sighting, totals

SINCE = ("--since", "2026-01-01")
HOUR = 3600 * 10**9
RULES = """rules:
- name: site-short
  title: The job was short
  when: ended
  severity: info
  minimum: {elapsed: 0 s, coverage: 0 %}
  parameters: {least: 2 h, floor: 0 core h}
  condition: "run.elapsed < least && cpu.held >= floor"
  cost: {core_time: "cpu.held"}
  text: "It took {run.elapsed}."
  change: "#SBATCH --time=1"
  help: Short jobs.
  tests:
  - figures: {run.elapsed: 1 h, cpu.held: 1 core h}
    outcome: fired
  - figures: {run.elapsed: 3 h, cpu.held: 1 core h}
    outcome: not fired
"""


class Site:
    """A store with three jobs; the first two have findings."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.config = folder / "jobsight.toml"
        self.store = folder / "store.db"
        self.rules = folder / "rules.yaml"
        self.rules.write_text(RULES)
        self.config.write_text(
            f'[store]\nlocation = "{self.store}"\n[findings]\nrules = ["{self.rules}"]\n'
            "shipped_rules = false\n[findings.prices.EUR]\ngpu_hour = 2.0\n"
        )
        self._capsys = capsys
        with Store.open(self.store) as opened:
            for job, user in ((1, "anna"), (2, "\x1b[31mben"), (3, "anna")):
                record = info(job, user=user, account="lab", cpus=4, end=START + HOUR)
                seen = part(sighting(job), totals=totals(3600, HOUR), final=True)
                opened.write(batch(record, seen, sequence=job))
            rows = [to_row(found()), to_row(found("gpu-not-used", cost=Cost(gpu_hours=40.0)))]
            add_findings(opened, find(opened, "1"), rows[0], work=work())
            add_findings(opened, find(opened, "2"), *rows, work=work("x", "ben"))

    def __call__(self, *arguments: str, code: int = 0) -> str:
        ended = main([*arguments, "--config", str(self.config)])
        output = self._capsys.readouterr()
        assert ended == code, output.err
        return output.out if code == 0 else output.err


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, capsys)


def test_a_list_has_the_highest_cost_first_with_its_price(site: Site) -> None:
    lines = site("findings", *SINCE).splitlines()
    assert lines[1].startswith("40 GPU h (80 EUR)")
    assert len(lines) == 4
    assert "\x1b" not in "".join(lines)
    assert "#SBATCH --mem=5G" in lines[2]
    assert site("findings", "list", *SINCE) == "\n".join(lines) + "\n"


def test_a_finding_is_explained_by_its_name(site: Site) -> None:
    text = site("findings", "help", "site-short")
    assert text.startswith("# The job was short\n")
    assert "run.elapsed < least && cpu.held >= floor" in text
    assert "#SBATCH --time=1" in text
    message = site("findings", "help", "site-shirt", code=2)
    assert "no rule is called 'site-shirt'; did you mean site-short?" in message


def test_a_report_names_where_its_findings_are_explained(site: Site) -> None:
    assert f"Help: jobsight findings help {KIND}" in site("report", "1", "--store", str(site.store))
    with site.config.open("a") as settings:
        settings.write('[mail]\nurl = "https://jobs.example.org"\n')
    address = f"https://jobs.example.org/findings/{KIND}"
    assert f"Help: {address}" in site("report", "1", "--store", str(site.store))
    document = json.loads(site("report", "1", "--json", "--store", str(site.store)))
    assert document["findings"][0]["help"] == address


def test_filters_and_formats(site: Site) -> None:
    documents = json.loads(site("findings", *SINCE, "--user", "anna", "--json"))
    assert [each["finding"]["kind"] for each in documents] == [KIND]
    rows = list(csv.DictReader(io.StringIO(site("findings", *SINCE, "--csv"))))
    assert [row["kind"] for row in rows] == ["gpu-not-used", KIND, KIND]
    assert float(rows[0]["gpu_hours"]) == pytest.approx(40)
    assert site("findings", *SINCE, "--severity", "critical") == ""
    assert site("findings", *SINCE, "--cluster", "other") == ""


def test_a_summary(site: Site) -> None:
    text = site("findings", "summary", *SINCE)
    assert text.splitlines()[1].split()[:2] == [KIND, "2"]
    rows = json.loads(site("findings", "summary", *SINCE, "--by", "user,kind", "--json"))
    assert {(row["user"], row["kind"]) for row in rows} >= {("anna", KIND)}


def test_replies_carry_the_name_of_the_unix_user(site: Site) -> None:
    assert site("findings", "ack", "1", KIND).endswith(f"{KIND}: acknowledged\n")
    assert "anna" not in site("findings", *SINCE)
    (row,) = json.loads(site("findings", *SINCE, "--user", "anna", "--all", "--json"))
    assert row["finding"]["reply_user"] == user_name()
    site("findings", "not-helpful", "2", "gpu-not-used")
    site("findings", "reopen", "1", KIND)
    assert "anna" in site("findings", *SINCE)


def test_an_update_by_the_rules_and_its_dry_run(site: Site) -> None:
    expected = [KIND, "0", "0", "2"]
    dry = site("findings", "update", "--dry-run")
    assert [line.split() for line in dry.splitlines()][2] == expected
    assert dry.splitlines()[-1] == "Nothing was changed."
    assert KIND in site("findings", *SINCE)
    done = json.loads(site("findings", "update", "--json"))
    assert done["runs"] >= 3
    assert done["failed"] == 0
    assert done["kinds"]["site-short"] == {"new": 3}
    rows = json.loads(site("findings", *SINCE, "--json"))
    assert {row["finding"]["kind"] for row in rows} == {"site-short"}
    assert "no finding changes" in site("findings", "update")


def test_an_explanation_says_what_every_rule_found(site: Site) -> None:
    text = site("explain", "1")
    assert "fired (1)" in text
    assert "run.elapsed = 01:00:00" in text
    document = json.loads(site("explain", "1", "--json"))
    assert [each["kind"] for each in document["verdicts"]] == ["site-short"]
    site.rules.write_text(RULES.replace("least: 2 h", "least: 1 min"))
    assert "not fired (1)" in site("explain", "1")


def test_a_report_shows_findings_and_records_that_it_did(site: Site) -> None:
    text = site("report", "1")
    assert "* Most of the requested memory was not used" in text
    assert "  #SBATCH --mem=5G  4 GiB of 64 GiB was used (6.3 %)." in text
    assert json.loads(site("report", "2", "--json"))["findings"][0]["kind"] == "gpu-not-used"
    effect = json.loads(site("findings", "effect", "--since", "9000d", "--json"))
    assert {each["kind"] for each in effect["kinds"]} == {KIND, "gpu-not-used"}
    assert "It has not run again." in site("findings", "effect", "--since", "9000d")


def test_a_list_of_jobs_by_finding(site: Site) -> None:
    rows = json.loads(site("jobs", "--finding", "gpu-not-used", "-o", "json"))
    assert [row["job_id"] for row in rows] == [2]
    rows = json.loads(site("jobs", "--finding", "any", "-o", "json"))
    assert {row["job_id"]: row["findings"] for row in rows} == {1: 1, 2: 2}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("findings", "ack", "1", "no-such"), "has no finding 'no-such'; it has"),
        (("findings", "ack", "99", KIND), "no run of job 99"),
        (("findings", "ack", "x", KIND), "'x'"),
        (("findings", "summary", "--by", "node"), "expected some of day"),
        (("findings", "--severity", "bad"), "expected one of info, warning, critical"),
        (("findings", "lst"), "did you mean `jobsight findings list`?"),
        (("findings", "update", "--rules", "x.yaml"), "--rules is for --dry-run"),
        (("findings", "update", "--dry-run", "--rules", "/no/x.yaml"), "/no/x.yaml"),
        (("explain",), "RUN: expected a job"),
    ],
)
def test_mistakes_are_one_line(
    site: Site, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    for name in ("JOBSIGHT_JOB", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    ended = main([*arguments, "--config", str(site.config)])
    error = site._capsys.readouterr().err
    assert ended != 0
    assert words in error
    assert len(error.strip().splitlines()) == 1
