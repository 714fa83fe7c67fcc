"""Each record comes out exactly once, and again when what it says has changed."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from jobsight.config.settings import ExportSettings
from jobsight.errors import JobsightError, StoreError
from jobsight.export import extract
from jobsight.export.extract import Extracted, Extractor
from jobsight.export.usage_records import RecordBuilder
from jobsight.model import SECOND, JobInfo
from jobsight.software.rules import RuleSet, SoftwareName
from jobsight.software.worker import update
from jobsight.store.store import Store
from jobsight.store.write.exports import ExportedRun, ExportState, report_again
from tests.export.documents import NAMESPACE, read_all, read_file
from tests.software.rule_sets import BETTER, NONE, PLAIN
from tests.store.sample import START, batch, info, part, sighting, totals, use

HOUR = 3600 * SECOND
ALPHA, BETA, TOOL = b"/opt/alpha/1.0/a", b"/opt/beta/2.1/b", b"/opt/tool/3/t"
#: START in UTC.
DIGITS = "20260921141320"


def run(store: Store, job: int, *paths: bytes, end: int | None = START + HOUR, **more: int) -> None:
    """A run that gave each path an hour."""
    uses = [use(path, HOUR) for path in paths]
    record = info(job, user="alice", account="astro", cpus=4, end=end)
    counted = totals(3600, more.get("cpu_time", HOUR * len(paths)))
    store.write(batch(record, part(sighting(job), executables=uses, totals=counted)))


def settings(folder: Path, **more: object) -> ExportSettings:
    return ExportSettings(output_path=str(folder), timezone="UTC", **more)  # type: ignore[arg-type]


def export(store: Store, folder: Path, rules: RuleSet | None = PLAIN, **more: object) -> Extracted:
    if rules is not None:
        update(store, rules)
    return Extractor(store, settings(folder, **more)).run()


def ids(folder: Path) -> list[int]:
    return [int(record.split(":")[1]) for record, _ in read_all(folder)]


def test_a_record_says_shares_of_named_software(store: Store, tmp_path: Path) -> None:
    run(store, 7, ALPHA, BETA, b"/nobody/knows", cpu_time=4 * HOUR)
    done = export(store, tmp_path)
    assert [file.name for file in done.files] == ["all-00000001.xml"]
    # As SAMS has it: what nobody knows is in no percentage.
    assert read_all(tmp_path) == [
        (
            f"c1:7:{DIGITS}",
            [("alpha", "1.0", "", "false", "50.00"), ("beta", "2.1", "", "false", "50.00")],
        )
    ]


def test_undetermined_use_is_reported_where_a_site_wants_it(store: Store, tmp_path: Path) -> None:
    run(store, 7, ALPHA, BETA, b"/nobody/knows", cpu_time=4 * HOUR)
    export(store, tmp_path, undetermined=True)
    ((_, software),) = read_all(tmp_path)
    assert [(one[0], one[-1]) for one in software] == [
        ("alpha", "33.33"),
        ("beta", "33.33"),
        ("undetermined", "33.33"),
    ]


def test_nothing_comes_twice_and_nothing_is_left_out(store: Store, tmp_path: Path) -> None:
    for job in range(1, 6):
        run(store, job, ALPHA)
    done = export(store, tmp_path, jobs_per_file=2)
    assert [len(read_file(file)) for file in done.files] == [2, 2, 1]
    assert done.records == 5
    assert export(store, tmp_path, jobs_per_file=2).files == []
    # In the same second, which is where SAMS loses them.
    run(store, 6, BETA)
    assert [file.name for file in export(store, tmp_path).files] == ["all-00000004.xml"]
    assert ids(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_run_waits_for_its_end(store: Store, tmp_path: Path) -> None:
    run(store, 1, ALPHA, end=None)
    run(store, 2, ALPHA)
    export(store, tmp_path)
    assert ids(tmp_path) == [2]
    export(store, tmp_path)
    assert ids(tmp_path) == [2]
    # Its share does not change by its end: nothing but the export itself remembers it.
    store.record_jobs([info(1, end=START)])
    export(store, tmp_path)
    assert ids(tmp_path) == [2, 1]


def test_only_what_has_changed_comes_again(store: Store, tmp_path: Path) -> None:
    for job in (1, 2):
        run(store, job, ALPHA)
    export(store, tmp_path)
    # Another partition is another share of the sums, and the same record.
    store.record_jobs([info(1, partition="big"), info(2, partition="big")])
    assert export(store, tmp_path).records == 0
    run(store, 2, ALPHA, BETA)
    export(store, tmp_path)
    assert ids(tmp_path) == [1, 2, 2]


def test_a_changed_rule_changes_exactly_the_right_records(store: Store, tmp_path: Path) -> None:
    used = {1: [ALPHA], 2: [BETA], 3: [TOOL, BETA], 4: [TOOL], 5: [b"/x"]}
    for job, paths in used.items():
        run(store, job, *paths)
    export(store, tmp_path)
    before = dict(read_all(tmp_path))
    done = export(store, tmp_path, BETTER)
    after = dict(read_file(done.files[0]))
    # alpha has another name, and tool is not counted any more: job 4 has nothing left to say.
    assert {int(name.split(":")[1]) for name in after} == {1, 3}
    assert done.emptied == 1
    assert [one[0] for one in before[f"c1:3:{DIGITS}"]] == ["beta", "tool"]
    assert after == {
        f"c1:1:{DIGITS}": [("Alpha", "1.0", "", "false", "100.00")],
        f"c1:3:{DIGITS}": [("beta", "2.1", "", "false", "100.00")],
    }
    # And back again.
    done = export(store, tmp_path, PLAIN)
    assert dict(read_file(done.files[0])) == {
        name: software for name, software in before.items() if name.split(":")[1] in "134"
    }


def test_runs_of_a_path_can_be_said_again(store: Store, tmp_path: Path) -> None:
    run(store, 1, ALPHA)
    run(store, 2, BETA)
    export(store, tmp_path)
    with store.database.write() as transaction:
        found = transaction.execute("SELECT id FROM paths WHERE path = :path", {"path": BETA})
        (path_id,) = found.fetchone()
    report_again(store.database, [path_id])
    export(store, tmp_path)
    assert ids(tmp_path) == [1, 2, 2]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("where", ["before the file", "before the note", "before the name"])
def test_whoever_is_killed_loses_and_doubles_nothing(
    store: Store, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in range(1, 6):
        run(store, job, ALPHA)
    update(store, PLAIN)
    targets = {
        "before the file": (extract, "prepare_file"),
        "before the note": (ExportState, "advance"),
        "before the name": (extract, "publish_file"),
    }
    owner, name = targets[where]
    original = getattr(owner, name)
    calls = iter(range(100))

    def dies(*arguments: object) -> None:
        if next(calls) == 1:
            raise Killed
        original(*arguments)

    monkeypatch.setattr(owner, name, dies)
    with pytest.raises(Killed):
        export(store, tmp_path, None, jobs_per_file=2)
    assert len(ids(tmp_path)) == 2
    monkeypatch.setattr(owner, name, original)
    export(store, tmp_path, None, jobs_per_file=2)
    assert ids(tmp_path) == [1, 2, 3, 4, 5]
    assert sorted(file.name for file in tmp_path.iterdir() if "store" not in file.name) == [
        "all-00000001.xml",
        "all-00000002.xml",
        "all-00000003.xml",
    ]
    assert export(store, tmp_path, None).files == []


def test_a_file_that_was_sent_meanwhile_is_not_written_again(store: Store, tmp_path: Path) -> None:
    run(store, 1, ALPHA)
    (file,) = export(store, tmp_path).files
    file.unlink()
    run(store, 2, ALPHA)
    assert ids(tmp_path) == []
    export(store, tmp_path)
    assert ids(tmp_path) == [2]


def test_another_process_that_exports_is_noticed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(store, 1, ALPHA)
    update(store, PLAIN)
    original = extract.prepare_file

    def prepare(file: Path, data: bytes) -> None:
        monkeypatch.setattr(extract, "prepare_file", original)
        export(store, tmp_path / "other", None)
        original(file, data)

    monkeypatch.setattr(extract, "prepare_file", prepare)
    with pytest.raises(StoreError, match="another process has written"):
        export(store, tmp_path, None)
    assert ids(tmp_path) == []
    assert ids(tmp_path / "other") == [1]


def test_a_foreign_file_is_never_overwritten(store: Store, tmp_path: Path) -> None:
    run(store, 1, ALPHA)
    (tmp_path / "all-00000001.xml").write_text("precious")
    with pytest.raises(JobsightError, match="does not belong to this store"):
        export(store, tmp_path)
    assert (tmp_path / "all-00000001.xml").read_text() == "precious"


def test_a_disk_without_room_leaves_all_for_the_next_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(store, 1, ALPHA)
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(JobsightError, match="cannot be written: full"):
        export(store, tmp_path)
    monkeypatch.undo()
    export(store, tmp_path)
    assert ids(tmp_path) == [1]


def test_each_cluster_has_an_export_of_its_own(store: Store, tmp_path: Path) -> None:
    run(store, 1, ALPHA)
    other = JobInfo(cluster="c2", job_id=2, source="slurm", start=START, end=START + HOUR)
    seen = part(sighting(2), executables=[use(ALPHA, HOUR)])
    seen.sighting = type(seen.sighting)("c2", 2, "n1", "b", START)
    store.write(batch(other, seen, cluster="c2"))
    export(store, tmp_path, cluster="c2", record_name="two.example.org")
    assert read_all(tmp_path)[0][0] == f"two.example.org:2:{DIGITS}"
    export(store, tmp_path, cluster="c1")
    assert sorted(ids(tmp_path)) == [1, 2]
    assert (tmp_path / "c2-00000001.xml").exists()


HOSTILE = [b"/opt/100%/1/x", b"/opt/%(user)s/1/x", b"/opt/<&>\"'/1/x", b"/opt/a\nb\x01/1/x",
           b"/opt/\xff\xfe/1/x", b"/opt/]]>/1/x", "/opt/\u202e\U0001f600/1/x".encode()]  # fmt: skip


def test_a_path_of_any_bytes_goes_through(store: Store, tmp_path: Path) -> None:
    run(store, 1, *HOSTILE)
    export(store, tmp_path)
    ((_, software),) = read_all(tmp_path)
    assert {name for name, *_ in software} == {
        "100%",
        "\\x25(user)s",
        "<&>\"'",
        "a\\x0ab\\x01",
        "\\xff\\xfe",
        "]]>",
        "\\xe2\\x80\\xae\U0001f600",
    }


def shares(used: dict[int, int], **more: float) -> list[tuple[str, str]]:
    texts = {number: SoftwareName(f"s{number}", "", "%(user)s of %(project)s") for number in used}
    reporting = RecordBuilder(names=texts, **more)  # type: ignore[arg-type]
    record = reporting.build(ExportedRun("c", 1, None, "al<ice", None, used))
    assert record.id == "c:1"
    assert {one.local_version for one in record.software} <= {"al<ice of "}
    return [(one.name, one.usage) for one in record.software]


def test_software_below_the_threshold_is_left_out_of_the_whole() -> None:
    used = {1: 600, 2: 394, 3: 6}
    assert shares(used) == [("s1", "60.36"), ("s2", "39.64")]
    assert shares(used, remove_less_then=0.6) == [("s1", "60.00"), ("s2", "39.40"), ("s3", "0.60")]
    assert shares(used, remove_less_then=0) == shares(used, remove_less_then=0.6)
    assert shares({1: 0}) == []
    # Nothing reaches it: then all stay.
    assert len(shares(dict.fromkeys(range(1, 202), 1))) == 201


def test_the_document_says_when_it_was_made(store: Store, tmp_path: Path) -> None:
    run(store, 1, ALPHA)
    update(store, PLAIN)
    Extractor(store, settings(tmp_path)).run(clock=lambda: 0.5)
    root = ElementTree.parse(tmp_path / "all-00000001.xml").getroot()
    assert root[0][0].get(f"{NAMESPACE}createTime") == "1970-01-01T00:00:00Z"


def test_without_rules_there_is_nothing_to_report(store: Store, tmp_path: Path) -> None:
    run(store, 1, ALPHA)
    assert export(store, tmp_path, NONE).files == []
    assert export(store, tmp_path, PLAIN).records == 1
