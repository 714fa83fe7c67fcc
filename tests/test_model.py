from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from jobsight.model import (
    SECOND,
    JobInfo,
    Run,
    RunReference,
    format_start,
    merge_job_info,
    parse_start,
)

START = 1_794_717_192 * SECOND


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", RunReference(12)),
        (" 12\n", RunReference(12)),
        ("62_3", RunReference(62, array_task_id=3)),
        ("62_0", RunReference(62, array_task_id=0)),
        ("88+1", RunReference(88, het_offset=1)),
        ("88+0", RunReference(88, het_offset=0)),
        ("alpha:12", RunReference(12, cluster="alpha")),
        ("alpha:62_3", RunReference(62, cluster="alpha", array_task_id=3)),
        (f"alpha:12:{format_start(START)}", RunReference(12, cluster="alpha", start=START)),
        (f"12:{format_start(START)}", RunReference(12, start=START)),
    ],
)
def test_what_people_type(text: str, expected: RunReference) -> None:
    assert RunReference.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "twelve",
        "-1",
        "12.0",
        "62_",
        "62_3_4",
        "62_3+1",
        "alpha:",
        ":12",
        "alpha:12:",
        "alpha:12:yesterday",
        "alpha:12:20261345T000000Z",
        "alpha:12:20261115T043312",
        "1" * 30,
        "12\n13",
        "12; drop table runs",
        # Threat S-27: times that no store can hold.
        "alpha:1:00010101T000000Z",
        "alpha:1:19691231T235959Z",
        "alpha:1:22620411T234716Z",
        "alpha:1:99991231T235959Z",
        "a" * 256 + ":12",
        "al\x00pha:12",
    ],
)
def test_what_names_no_run(text: str) -> None:
    with pytest.raises(ValueError, match="does not name a run; expected"):
        RunReference.parse(text)


def test_an_error_about_a_long_text_is_short() -> None:
    with pytest.raises(ValueError, match="does not name a run") as error:
        RunReference.parse("x" * 100_000)
    assert len(str(error.value)) < 300


def test_the_last_second_that_names_a_run() -> None:
    start = RunReference.parse("alpha:1:22620411T234715Z").start
    assert start is not None
    assert start + SECOND - 1 < 2**63


@pytest.mark.parametrize("digits", ["\u0661\u0662", "\uff11\uff12", "\u00b2"])
def test_only_the_digits_of_ascii_are_numbers(digits: str) -> None:
    with pytest.raises(ValueError, match="does not name a run"):
        RunReference.parse(digits)


@given(some.text(max_size=30))
def test_any_text_is_a_reference_or_an_error(text: str) -> None:
    with suppress(ValueError):
        assert RunReference.parse(text).job_id >= 0


@given(
    some.integers(0, 2**53),
    some.integers(0, 4_000_000_000),
    some.from_regex(r"[a-z][a-z0-9_.-]{0,20}", fullmatch=True),
)
def test_the_text_form_leads_back(job_id: int, seconds: int, cluster: str) -> None:
    run = Run(cluster, job_id, seconds * SECOND)
    found = RunReference.parse(str(run))
    assert Run(found.cluster or "", found.job_id, found.start or 0) == run


def test_the_text_form_is_to_the_second() -> None:
    run = Run("alpha", 12, START + 999_999_999)
    assert str(run) == "alpha:12:20261115T043312Z"
    assert parse_start("20261115T043312Z") == START


_INFOS = some.builds(
    JobInfo,
    cluster=some.sampled_from(["alpha", "beta"]),
    job_id=some.integers(1, 3),
    source=some.sampled_from(["prolog", "slurm", "cgroup"]),
    name=some.none() | some.sampled_from(["", "first", "second"]),
    uid=some.none() | some.integers(0, 2),
    cpus=some.none() | some.integers(0, 2),
    nodes=some.none() | some.sampled_from([(), ("n1",), ("n1", "n2")]),
    tres=some.none() | some.just({"cpu": 1}) | some.just({}),
    start=some.none() | some.integers(0, 2),
    end=some.none() | some.integers(0, 2),
    exit_code=some.none() | some.integers(0, 1),
)


@given(_INFOS, _INFOS)
def test_merge_keeps_every_known_value(known: JobInfo, other: JobInfo) -> None:
    before = msgspec.structs.astuple(known), msgspec.structs.astuple(other)
    filled = merge_job_info(known, other, "fill")
    overwritten = merge_job_info(known, other, "overwrite")
    for name in JobInfo.__struct_fields__:
        values = [getattr(known, name), getattr(other, name)]
        preferred = [value for value in values if value is not None]
        assert getattr(filled, name) == (preferred[0] if preferred else None)
        assert getattr(overwritten, name) == (preferred[-1] if preferred else None)
    assert (msgspec.structs.astuple(known), msgspec.structs.astuple(other)) == before


@given(_INFOS, _INFOS, _INFOS)
def test_the_two_merge_policies_mirror_each_other(a: JobInfo, b: JobInfo, c: JobInfo) -> None:
    assert merge_job_info(a, b, "fill") == merge_job_info(b, a, "overwrite")
    assert merge_job_info(a, a, "fill") == a
    left = merge_job_info(merge_job_info(a, b, "overwrite"), c, "overwrite")
    right = merge_job_info(a, merge_job_info(b, c, "overwrite"), "overwrite")
    assert left == right


def test_a_merge_does_not_take_zero_or_empty_for_unknown() -> None:
    known = JobInfo(cluster="alpha", job_id=1, source="slurm", uid=0, name="", exit_code=0)
    other = JobInfo(cluster="alpha", job_id=1, source="prolog", uid=7, name="x", exit_code=1)
    merged = merge_job_info(known, other, "fill")
    assert (merged.uid, merged.name, merged.exit_code, merged.source) == (0, "", 0, "slurm")
