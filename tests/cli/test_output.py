"""Tables on terminals of some widths, and CSV."""

from __future__ import annotations

import csv
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import msgspec
import pytest

from jobsight.cli.output import Table, column_widths, write_csv
from jobsight.model import SECOND, JobInfo
from jobsight.store.store import Store
from jobsight.util.units import format_hours

START = 1_794_717_192 * SECOND


@pytest.fixture
def location(tmp_path: Path) -> str:
    file = tmp_path / "store.db"
    with Store.open(file) as store:
        for number in range(3):
            info = JobInfo(
                cluster="alpha",
                job_id=4_294_901_748 + number,
                source="json",
                array_job_id=4_294_901_748,
                array_task_id=1_048_570 + number,
                name="a-name-that-is-longer-than-the-space-for-it",
                user="a-user-with-a-long-name",
                account="an-account-with-a-long-name",
                nodes=tuple(f"n{node}" for node in range(1_024)),
                cpus=131_072,
                memory=2**45,
                start=START,
                end=START + 123_456 * SECOND,
                state="OUT_OF_MEMORY",
            )
            store.record_jobs([info])
    return str(file)


def _on_a_terminal(width: int, *arguments: str) -> str:
    """The output of a command on a terminal of this many columns."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "TZ": "UTC"}
    environment.pop("COLUMNS", None)
    program = "import sys; from jobsight.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=inner, stderr=subprocess.STDOUT, env=environment) as job:
        os.close(inner)
        shown = b""
        while True:
            try:
                data = os.read(outer, 65536)
            except OSError:
                break
            if not data:
                break
            shown += data
    os.close(outer)
    assert job.returncode == 0, shown
    return re.sub(r"\x1b\[[\d;]*m", "", shown.decode().replace("\r\n", "\n"))


# Fault 5: a terminal of 80 or 100 columns showed 64 CPUs as 6 and job 5748 as 5.
@pytest.mark.parametrize("width", [40, 80, 100, 132, 250])
def test_ids_and_numbers_are_never_truncated(location: str, width: int) -> None:
    shown = _on_a_terminal(width, "jobs", "--store", location).splitlines()
    titles, rows = shown[0].split(), shown[1:4]
    assert all(len(line) <= width for line in shown[:4])
    for number, row in enumerate(reversed(rows)):
        assert row.split()[0] == f"4294901748_{1_048_570 + number}"
        assert width < 80 or "OUT_OF_MEMORY" in row
        # Whole, or its column is left out.
        for title, text in {"elapsed": "1 d 10:17:36", "CPUs": "131,072", "nodes": "1,024"}.items():
            assert (text in row) == (title in titles), (title, row)
    assert any("Not shown at this width" in line for line in shown) == (width < 200)


def test_columns_that_are_named_are_left_out_from_the_right(location: str) -> None:
    names = "display_id,requested_cpus,node_count,elapsed_seconds,name,start,end"
    shown = _on_a_terminal(60, "jobs", "--columns", names, "--store", location)
    assert shown.split()[:4] == ["job", "CPUs", "nodes", "elapsed"]
    assert "131,072  1,024  1 d 10:17:36" in shown
    assert "start, end" in shown.splitlines()[-1]


def test_the_space_that_is_left_goes_to_text() -> None:
    table = Table("id", "name", "size", right=["size"], cut=["name"])
    table.add("123456", "x" * 40, "7,777,777")
    assert column_widths(table, 80) == {0: 6, 1: 40, 2: 9}
    assert column_widths(table, 40) == {0: 6, 1: 21, 2: 9}
    assert column_widths(table, 20) == {0: 6, 1: 12}
    assert column_widths(table, 3) == {0: 6}


# Fault 5: 3.47e-05 core hours.
def test_hours_have_no_exponent() -> None:
    assert [format_hours(value) for value in (3.47e-05, -3.47e-05, 0, 0.0123, 1234.5)] == [
        "< 0.001",
        "> -0.001",
        "0",
        "0.0123",
        "1,234",
    ]


class _Row(msgspec.Struct):
    name: str | None
    count: int


# Fault 23: a spreadsheet takes such cells for formulas.
def test_no_cell_of_csv_is_a_formula(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["=1+1", "+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "plain", "a=1", None]
    write_csv([_Row(text, -5) for text in texts], ["name", "count"])
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:]
    assert [name for name, _ in rows] == [
        "'=1+1",
        "'+1",
        "'-2+3",
        "'@SUM(A1)",
        "\\x09=1",
        "\\x0d=1",
        "' =1",
        "plain",
        "a=1",
        "",
    ]
    assert {count for _, count in rows} == {"-5"}
