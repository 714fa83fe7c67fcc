"""`jobsight software`: reports, names, suggestions and updates as people type them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet
import pytest

from jobsight.cli.main import main
from jobsight.model import SECOND
from jobsight.store.store import Store
from tests.store.sample import START, batch, info, part, sighting, totals, use

HOUR = 3600 * SECOND
RULES = "rules:\n- {match: '^/opt/(?P<s>[^/]+)/(?P<v>[^/]+)/', software: '%(s)s'"
PLAIN = f"{RULES}, version: '%(v)s', versionstr: ''}}\n"
IGNORED = f"{RULES}, version: '%(v)s', versionstr: '', ignore: true}}\n"
SINCE = ("--since", "2026-09-01")


class Site:
    """A store with two jobs of an hour on four cores, and settings that name one file of rules."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.rules = folder / "rules.yaml"
        self.rules.write_text(PLAIN)
        self.config = folder / "jobsight.toml"
        store = folder / "store.db"
        self.config.write_text(
            f'[store]\nlocation = "{store}"\n[software]\nrules = ["{self.rules}"]\n'
            "ready_rules = false\n"
        )
        self._capsys = capsys
        self.store = store
        with Store.open(store) as opened:
            for job, user in ((1, "anna"), (2, "[bert]")):
                record = info(job, user=user, account="astro", cpus=4, end=START + HOUR)
                uses = [use(b"/opt/a/1/x", HOUR), use(b"/data/apps/star/2/x", HOUR)]
                seen = part(sighting(job), executables=uses, totals=totals(3600, 2 * HOUR))
                opened.write(batch(record, seen))

    def __call__(self, *arguments: str, code: int = 0) -> str:
        given = ["software", *arguments, "--config", str(self.config)]
        ended = main(given)
        output = self._capsys.readouterr()
        assert ended == code, output.err
        return output.out if code == 0 else output.err


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, capsys)


def test_a_report_says_what_waits_and_what_was_used(site: Site) -> None:
    assert "2 runs wait" in site("report", *SINCE)
    assert "2 runs were summed up" in site("update")
    text = site("report", "--by", "software,version,user", *SINCE)
    lines = [line.split() for line in text.splitlines()]
    assert ["a", "1", "[bert]", "2", "1", "25", "%"] in [line[:7] for line in lines]
    assert "undetermined" in text
    assert "wait" not in text


def test_csv_json_and_parquet_hold_the_same(site: Site, tmp_path: Path) -> None:
    site("update")
    wanted = ("report", "--by", "user,software", *SINCE)
    rows = json.loads(site(*wanted, "--json"))
    assert sum(row["core_hours"] for row in rows) == 8
    table = list(csv.DictReader(io.StringIO(site(*wanted, "--csv"))))
    file = tmp_path / "use.parquet"
    site(*wanted, "--parquet", str(file))
    for row, line, columns in zip(
        rows, table, pyarrow.parquet.read_table(file).to_pylist(), strict=True
    ):
        assert float(line["core_hours"]) == row["core_hours"] == columns["core_hours"]
        assert line["software"] == (columns["software"] or "") == row.get("software", "")
    error = site(*wanted, "--parquet", "/nowhere/x", code=1)
    assert error == "jobsight: /nowhere/x cannot be written: No such file or directory\n"


def test_a_dry_run_foresees_what_an_update_does(site: Site) -> None:
    site("update")
    site.rules.write_text(IGNORED)
    assert json.loads(site("update", "--dry-run", "--json"))[0]["core_hours"] == 4
    assert "Nothing was changed" in site("update", "--dry-run")
    changes = json.loads(site("update", "--json"))["changes"]
    assert [(row["software"], row["before"], row["after"]) for row in changes] == [
        ("a", 4, 0), ("a", 0, 4),
    ]  # fmt: skip
    text = site("report", *SINCE)
    assert "Left out: 4 core hours of software that the rules ignore" in text
    assert "Left out" not in site("report", "--ignored", *SINCE)
    assert site("update", "--dry-run") == "no path would get another name\n"


def test_a_suggested_rule_can_be_pasted(site: Site) -> None:
    site("update")
    suggested = site("undetermined", "-n", "1")
    assert suggested.startswith("# 4 core hours, 2 CPU hours in 2 jobs: 1 path\n")
    site.rules.write_text(PLAIN + suggested)
    assert "star" in site("update", "--dry-run")
    site("update")
    assert site("undetermined") == "every path of the store has a name\n"
    assert json.loads(site("undetermined", "--json")) == []


def test_a_command_without_a_path_gets_no_rule(site: Site) -> None:
    with Store.open(site.store) as opened:
        unknown = use(b"replaced at once", HOUR, path_known=False)
        opened.write(batch(part(sighting(1), epoch="life 2", executables=[unknown])))
    site("update")
    text = site("undetermined")
    assert "in 1 jobs: path not known\n#   replaced at once\n" in text
    assert r"replaced\ at" not in text
    found = json.loads(site("undetermined", "--json"))
    assert {(one["examples"][0], one["path_known"], one["rule"] is None) for one in found} == {
        ("/data/apps/star/2/x", True, False), ("replaced at once", False, True),
    }  # fmt: skip
    # What is printed is a file of rules as it stands.
    site.rules.write_text(PLAIN + text)
    site("update")
    assert "star" not in site("undetermined")
    assert site("undetermined", "--csv").splitlines()[1].startswith("False,,,,False,1,1,1,")


def test_without_an_allocation_there_are_no_shares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store.db"
    with Store.open(store) as opened:
        seen = part(executables=[use(b"/opt/a/1/x", HOUR)], totals=totals(3600, 2 * HOUR))
        opened.write(batch(info(user="anna", end=START + HOUR), seen))
    assert main(["software", "update", "--store", str(store)]) == 0
    capsys.readouterr()
    assert main(["software", "report", *SINCE, "--store", str(store)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [line[-6:-2] for line in lines] == [["0", "1", "-", "1"]] * 2


def test_show_a_software_and_a_path(site: Site) -> None:
    site("update")
    text = site("show", "a", "--version", "1")
    assert "/opt/a/1/x" in text
    assert "[bert]" in text
    about = json.loads(site("show", "/opt/a/1/x", "--json"))
    assert (about["name"]["software"], about["rule"][1]) == ("a", 1)
    assert "called    a 1" in site("show", "/opt/a/1/x")
    assert "never seen" in site("show", "/opt/b/2/x")
    assert "did you mean a?" in site("show", "A", code=1)


def test_list_names_what_has_no_name(site: Site) -> None:
    site("update")
    listed = json.loads(site("list", "--json"))
    assert [(row["kind"], row["software"], row["core_hours"]) for row in listed] == [
        ("software", "a", 4), ("undetermined", None, 4), ("not attributed", None, 0),
    ]  # fmt: skip
    assert site("list").splitlines()[1].split()[:4] == ["a", "1", "1", "2"]
    assert site("list", "--csv").startswith("id,kind,software,version")


def test_what_moved(site: Site) -> None:
    site("update")
    text = site("report", "--movers", "--since", "2026-09-20", "--until", "2026-09-30")
    assert text.splitlines()[1].split()[:4] == ["a", "0", "4", "+4"]
    assert "needs a first day" in site("report", "--movers", "--since", "all", code=2)


def test_tests_of_rules(site: Site) -> None:
    site.rules.write_text(PLAIN + "tests:\n  - {path: /opt/a/1/x, software: a, version: '2'}\n")
    assert main(["software", "test", "--config", str(site.config)]) == 1
    assert "version: expected '2', got '1'" in site._capsys.readouterr().out
    site.rules.write_text(PLAIN + "tests:\n  - {path: /opt/a/1/x, software: a}\n")
    assert site("test", str(site.rules)) == "1 tests, 0 of them fail\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("report", "--by", "usr"), "there is no grouping by 'usr'"),
        (("report", "--since", "soon"), "--since 'soon': expected 7d"),
        (("report", "--until", "2026-02-31"), "--until '2026-02-31': there is no such day"),
        (("update", "--rules", "x.yaml"), "--rules is for --dry-run"),
        (("reprot",), "unknown command 'reprot'"),
    ],
)
def test_mistakes_are_one_line(site: Site, arguments: tuple[str, ...], words: str) -> None:
    error = site(*arguments, code=2)
    assert words in error
    assert error.count("\n") == 1
