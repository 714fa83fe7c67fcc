"""Texts of the kernel and of commands: what is right is read, what is wrong is refused as wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.agent.samplers.cpu import parse_cores, parse_stat
from jobsight.agent.samplers.disk import parse_diskstats
from jobsight.agent.samplers.energy import parse_busy
from jobsight.agent.samplers.filesystems import parse_zfs
from jobsight.agent.samplers.gpu.devices import parse_gpu_list
from jobsight.agent.samplers.gpu.nvidia_smi import parse_gpus, parse_number, parse_processes
from jobsight.agent.samplers.pressure import parse_pressure
from jobsight.util.mounts import below, parse_mountinfo, type_of

DATA = Path(__file__).parents[2] / "data" / "samplers"


@given(st.sets(st.integers(0, 5000)))
def test_lists_of_cores(cores: set[int]) -> None:
    text = ",".join(map(str, sorted(cores))).encode()
    assert parse_cores(text + b"\n") == tuple(sorted(cores))


def test_ranges_of_cores() -> None:
    assert parse_cores(b"0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cores(b"0-127\n") == tuple(range(128))
    assert parse_cores(b"\n") == ()
    for wrong in (b"3-1", b"a", b"0-99999999999", b"-1"):
        with pytest.raises(ValueError):  # noqa: PT011
            parse_cores(wrong)


@pytest.mark.parametrize(
    "parse",
    [parse_cores, parse_pressure, parse_diskstats, parse_busy, parse_mountinfo, parse_stat],
)
@given(data=st.one_of(st.binary(), st.text("0123456789 -,=:/avgtotalcpu.)(\n").map(str.encode)))
def test_nothing_but_a_clear_refusal(parse: Callable[[bytes], object], data: bytes) -> None:
    try:
        parse(data)
    except (ValueError, IndexError):
        pass


@given(st.text())
def test_output_of_commands_is_never_trusted(text: str) -> None:
    parse_zfs(text)
    parse_gpus(text, ("utilization", "power"))
    parse_processes(text, {})
    parse_gpu_list(text)
    parse_number(text)


def test_pressure() -> None:
    found = parse_pressure(
        b"some avg10=5.55 avg60=2.59 avg300=0.62 total=1973606\n"
        b"full avg10=0.00 avg60=0.00 avg300=0.00 total=18446744073709551615\n"
    )
    assert found["some"] == (5.55, 2.59, 0.62, 1973606)
    assert found["full"].total == 2**64 - 1
    assert parse_pressure(b"") == {}
    with pytest.raises(ValueError, match="lacks"):
        parse_pressure(b"some avg10=1.00\n")


@pytest.mark.parametrize("kernel", ["3.10", "4.18", "5.14", "6.18"])
def test_diskstats_of_several_kernels(kernel: str) -> None:
    found = parse_diskstats((DATA / "diskstats" / kernel).read_bytes())
    assert found["dm-3"].sectors_read == 2000
    assert found["dm-3"].busy_ticks == 900
    assert found["sda"].writes == 500
    # A partition of an old kernel has four numbers, which mean something else.
    assert "sda9" not in found


def test_zfs() -> None:
    text = "tank/a\t1024\t2048\ntank/b\t-\t-\nrubbish\n"
    assert parse_zfs(text) == {"tank/a": {"used": 1024, "free": 2048, "size": 3072}}


def test_nvidia_smi() -> None:
    text = (
        "0, GPU-aa, NVIDIA H200, 17, 70.52\n"
        "1, GPU-bb, NVIDIA H200, [N/A], [Not Supported]\n"
        "Field is not valid\n"
    )
    found = parse_gpus(text, ("utilization", "power"))
    assert (found["0"][1].utilization, found["0"][1].power) == (17, 70520)
    assert (found["1"][1].utilization, found["1"][1].power) == (None, None)
    assert parse_processes("123, GPU-bb\n77, GPU-zz\nx, GPU-aa\n", found) == {123: {"1"}}
    for word in ("[N/A]", "[Unknown Error]", "", "nan", "inf"):
        assert parse_number(word) is None


def test_lists_of_gpus_are_cut_at_commas_not_at_characters() -> None:
    assert parse_gpu_list("0,10") == ("0", "10")
    assert parse_gpu_list("0-3,7") == ("0", "1", "2", "3", "7")
    assert parse_gpu_list("GPU-0-1, MIG-x,") == ("GPU-0-1", "MIG-x")


def test_busy_time_leaves_waiting_and_idle_out() -> None:
    line = b"cpu  100 10 20 5000 300 3 4 9 50 0\ncpu0 1 2 3\n"
    assert parse_busy(line) == (100 + 10 + 20 + 3 + 4) * 10_000_000
    assert parse_busy(b"cpu 1 2 3 4\n") == 60_000_000
    with pytest.raises(ValueError, match="/proc/stat"):
        parse_busy(b"")


def test_a_stat_line_with_a_hostile_name() -> None:
    fields = " ".join(["0"] * 10 + ["7", "5"] + ["0"] * 23 + ["113", "0"])
    assert parse_stat(f"1 (a) b (c) ) R {fields}\n".encode()) == (12, 113)


def test_mounts() -> None:
    text = (
        b"22 1 0:21 / / rw - ext4 /dev/sda rw\n"
        b"23 22 0:22 / /scratch rw,relatime shared:1 - lustre srv:/x rw\n"
        b"24 22 0:23 / /with\\040blank rw - tmpfs t rw\n"
    )
    mounts = parse_mountinfo(text)
    assert mounts[2] == (b"/with blank", "tmpfs")
    assert type_of(b"/scratch/u/f", mounts) == "lustre"
    assert type_of(b"/scratch2/f", mounts) == "ext4"
    assert type_of(b"/with blank/f", mounts) == "tmpfs"
    assert not below(b"/scratch2", b"/scratch")
    assert below(b"/scratch", b"/scratch/")
    assert below(b"/anything", b"/")
