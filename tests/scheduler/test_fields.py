"""The small readers: hosts, times, resources, states, exits."""

import re
from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.model import SECOND
from jobsight.scheduler import fields, hostlist
from jobsight.scheduler.fields import Exit, is_plausible, parse_exit, read_exit
from jobsight.scheduler.hostlist import expand_hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cn1", ["cn1"]),
        ("a[1-3,07-10]b,c", ["a1b", "a2b", "a3b", "a07b", "a08b", "a09b", "a10b", "c"]),
        ("a[08-11]", ["a08", "a09", "a10", "a11"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("r[1-2]n[3,5-6]x,login", ["r1n3x", "r1n5x", "r1n6x", "r2n3x", "r2n5x", "r2n6x", "login"]),
        ("a[1,b[2-3]]", ["a1", "ab2", "ab3"]),
        ("a[9-11]", ["a9", "a10", "a11"]),
        ("gpu[a,b]", ["gpua", "gpub"]),
        ("None assigned", []),
        ("(null)", []),
        ("", []),
    ],
)
def test_hosts(text: str, names: list[str]) -> None:
    assert list(expand_hosts(text)) == names


@pytest.mark.parametrize(
    "text", ["a[1", "a]1", "a[3-1]", "a,,b", "a b", "a[1-99999999]", "a[]", "x\ny"]
)
def test_what_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        expand_hosts(text)


@given(st.text(max_size=40))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    try:
        names = expand_hosts(text, 1000)
    except ValueError:
        return
    assert all(name and not re.search(r"[\[\],\s]", name) for name in names)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20, unique=True), st.integers(1, 4))
def test_numbers_come_back(numbers: list[int], width: int) -> None:
    inside = ",".join(f"{number:0{width}d}" for number in numbers)
    expected = [f"n{number:0{width}d}" for number in numbers]
    assert list(expand_hosts(f"n[{inside}]")) == expected
    assert len(hostlist.expand_hosts(f"n[{min(numbers):0{width}d}-{max(numbers):0{width}d}]")) == (
        max(numbers) - min(numbers) + 1
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 10), ("10:00", 600), ("1:02:03", 3723), ("1-00:00:00", 86400), ("2-3", 183600),
        ("1-02:03", 93780), ("00:00.250", 0.25), ("01:02.001", 62.001),
        ("UNLIMITED", None), ("Partition_Limit", None), ("", None),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float | None) -> None:
    expected = None if seconds is None else round(seconds * SECOND)
    assert fields.parse_duration(text) == expected


def test_times() -> None:
    assert fields.parse_time("1794720981") == 1794720981 * SECOND
    summer = timezone(timedelta(hours=2))
    assert fields.parse_time("2026-11-15T05:36:21", summer) == 1794713781 * SECOND
    assert fields.parse_time("Unknown") is None
    assert fields.parse_time("None") is None
    assert fields.parse_time("0") is None
    assert fields.from_epoch(2**32 - 2) is None
    for wrong in ("yesterday", "12:99", "x"):
        with pytest.raises(ValueError, match="not a"):
            fields.parse_time(wrong)
        with pytest.raises(ValueError, match="not a"):
            fields.parse_duration(wrong + "y")


def test_resources() -> None:
    text = "cpu=4,mem=1.50G,node=1,billing=4,gres/gpu=3,gres/gpu:a100=2,gres/gpu:1g.5gb=1"
    found = fields.parse_tres(text)
    assert (found["cpu"], found["mem"], found["gres/gpu:1g.5gb"]) == (4, 3 * 2**29, 1)
    assert fields.gpus_of(found) == {"a100": 2, "1g.5gb": 1}
    assert fields.gpus_of({"gres/gpu": 2}) == {"gpu": 2}
    assert fields.parse_tres("") == {}
    entries = [
        {"type": "mem", "name": None, "id": 2, "count": 512},
        {"type": "gres", "name": "gpu:h100", "id": 1002, "count": 4},
        {"type": "energy", "name": "", "id": 3, "count": -2},
    ]
    assert fields.read_tres(entries) == {"mem": 512 * 2**20, "gres/gpu:h100": 4}
    for wrong in ("cpu", "=3", "mem=many"):
        with pytest.raises(ValueError, match="is not a"):
            fields.parse_tres(wrong)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:a100:4(S:0-1),gpu:1g.5gb:7,shard:8", {"gpu:a100": 4, "gpu:1g.5gb": 7, "shard": 8}),
        ("gpu:fake:2", {"gpu:fake": 2}),
        ("gpu:1", {"gpu": 1}),
        ("gpu:fake:0(IDX:N/A)", {"gpu:fake": 0}),
        ("gpu:h100:4(IDX:0-1,3-4),tpu:0", {"gpu:h100": 4, "tpu": 0}),
        ("gpu", {"gpu": 1}),
        ("(null)", {}),
    ],
)
def test_generic_resources(text: str, found: dict[str, int]) -> None:
    assert fields.parse_gres(text) == found


def test_states() -> None:
    assert fields.parse_job_state("CANCELLED by 1000").state == "CANCELLED"
    assert fields.parse_job_state("failed").ended
    assert fields.job_state(["COMPLETED"]) == ("COMPLETED", ())
    assert fields.job_state(["CONFIGURING", "RUNNING"]) == ("RUNNING", ("CONFIGURING",))
    # Its end is not recorded yet.
    assert fields.job_state(["CANCELLED", "COMPLETING"]).ended is False
    assert fields.node_state("mixed*+drain") == ("MIXED", ("NOT_RESPONDING", "DRAIN"))
    assert fields.node_state(["IDLE", "DRAIN"]) == ("IDLE", ("DRAIN",))
    for wrong in ("", "x y", "A=B"):
        with pytest.raises(ValueError, match="not a job state"):
            fields.parse_job_state(wrong)


def test_exits() -> None:
    assert parse_exit("42:0") == Exit(42, None)
    assert parse_exit("0:9") == Exit(None, 9)
    assert read_exit(10752) == Exit(42, None)
    assert read_exit(9) == Exit(None, 9)
    assert read_exit({"set": True, "infinite": False, "number": 256}) == Exit(1, None)
    assert read_exit({"status": "SUCCESS", "return_code": 0}) == Exit(0, None)
    old = {"status": "SIGNALED", "return_code": None, "signal": {"signal_id": 125, "name": "?"}}
    # 125 is no signal, and the code is the one that sacct shows.
    assert read_exit(old) == Exit(0, 125)
    new = {
        "status": ["SIGNALED"],
        "return_code": {"set": False, "infinite": False, "number": 0},
        "signal": {"id": {"set": True, "infinite": False, "number": 15}, "name": "Terminated"},
    }
    assert read_exit(new) == Exit(None, 15)
    assert not is_plausible(Exit(0, None), "FAILED")
    assert is_plausible(Exit(0, None), "COMPLETED")


def test_numbers() -> None:
    assert fields.integer({"set": True, "infinite": False, "number": 7}) == 7
    assert fields.integer({"set": False, "infinite": False, "number": 0}) is None
    assert fields.integer({"set": False, "infinite": True, "number": 0}) is None
    assert fields.amount(2**32 - 2) is None
    # A user id and a job id like any other.
    assert fields.amount(65534) == 65534
    assert fields.positive(0) is None
    for wrong in ({"count": 1}, [1], "many", 1.5):
        with pytest.raises(ValueError, match=r"number|many|float|integer"):
            fields.integer(wrong)


@given(st.text(max_size=30))
def test_readers_of_text_never_fail_otherwise(text: str) -> None:
    for read in (
        fields.parse_time,
        fields.parse_duration,
        fields.parse_tres,
        fields.parse_gres,
        fields.parse_size,
        fields.parse_job_state,
        parse_exit,
        fields.number,
    ):
        try:
            read(text)
        except ValueError:
            pass
