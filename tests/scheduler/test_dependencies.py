"""What a job depends on, as Slurm writes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.model import JobInfo
from jobsight.scheduler.dependencies import (
    MAX_AFTER,
    dependencies_of,
    parse_dependency,
    parse_submit_line,
)
from jobsight.scheduler.records import JobDetails


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("afterok:62(unfulfilled)", (62,)),
        ("afterok:62(unfulfilled),afterany:63_*(unfulfilled)", (62, 63)),
        ("afterok:62:63:64", (62, 63, 64)),
        ("after:62+15(unfulfilled)", (62,)),
        ("afterok:62?afternotok:63", (62, 63)),
        ("aftercorr:62_3", (62,)),
        ("afterburstbuffer:62", (62,)),
        ("singleton", ()),
        ("singleton(unfulfilled),afterok:9", (9,)),
        ("afterok:62,afterok:62", (62,)),
        ("(null)", ()),
        ("", ()),
        ("afterok:", ()),
        ("afterok:0", ()),
        ("afterok:" + "9" * 30, ()),
        ("expand:62", ()),
    ],
)
def test_a_dependency_of_the_controller(text: str, ids: tuple[int, ...]) -> None:
    assert parse_dependency(text) == ids


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        ("sbatch --dependency=afterok:62 run.sh", (62,)),
        ("sbatch --dependency afterok:62:63 run.sh", (62, 63)),
        ("sbatch -d afterany:62 run.sh", (62,)),
        ("sbatch -dafterany:62,afterok:63 run.sh", (62, 63)),
        ("sbatch -d singleton run.sh", ()),
        ("sbatch run.sh --name=afterok:62", ()),
        ("sbatch run.sh", ()),
        ("sbatch --kill-on-invalid-dep=yes run.sh", ()),
    ],
)
def test_a_dependency_of_the_command(line: str, ids: tuple[int, ...]) -> None:
    assert parse_submit_line(line) == ids


def test_many_are_read_in_part() -> None:
    text = "afterok" + "".join(f":{number}" for number in range(1, 100_000))
    assert len(parse_dependency(text)) == MAX_AFTER


@given(st.text(alphabet="after:ok0123456789_*+()?, -d=", max_size=300))
def test_any_text_is_read(text: str) -> None:
    for found in (parse_dependency(text), parse_submit_line(text)):
        assert all(number > 0 for number in found)


def test_the_controller_comes_before_the_command() -> None:
    info = JobInfo(cluster="c1", job_id=64, source="slurm", user="anna", array_job_id=63)
    details = JobDetails(
        dependency="afterok:62(unfulfilled)", submit_line="sbatch -d afterok:1 x.sh"
    )
    [found] = dependencies_of([(info, details)])
    assert (found.job_id, found.after, found.user) == (63, (62,), "anna")
    assert not list(dependencies_of([(info, JobDetails()), (info, JobDetails(dependency=""))]))
