from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.errors import JobsightError
from jobsight.util.logging import configure_logging

logger = logging.getLogger("jobsight.tests.logging")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("jobsight")
    before = (list(root.handlers), root.level, own.level)
    yield
    for handler in list(root.handlers):
        if handler not in before[0]:
            handler.close()
    root.handlers[:], root.level, own.level = before
    root.setLevel(before[1])
    own.setLevel(before[2])
    logging.captureWarnings(False)


def test_levels_hold_for_jobsight_and_libraries_are_quiet(tmp_path: Path) -> None:
    file = tmp_path / "log"
    configure_logging("info", file=str(file))
    logger.debug("hidden")
    logger.info("shown")
    logging.getLogger("library").info("hidden")
    logging.getLogger("library").warning("loud")
    lines = file.read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "INFO jobsight.tests.logging: shown",
        "WARNING library: loud",
    ]


def test_control_characters_are_escaped_and_tracebacks_are_not(tmp_path: Path) -> None:
    file = tmp_path / "log"
    configure_logging("debug", "text", file=str(file))
    logger.warning("job %s", "a\nb\x1b[31m")
    try:
        raise KeyError("x")
    except KeyError:
        logger.exception("failed")
    first, second, *trace = file.read_text().splitlines()
    assert first.endswith(r"job a\x0ab\x1b[31m")
    assert second.endswith("failed")
    assert trace[-1] == "KeyError: 'x'"


def test_each_line_is_a_json_object(tmp_path: Path) -> None:
    file = tmp_path / "log"
    configure_logging("info", "json", file=str(file))
    logger.error("a\nb \udcff")
    (line,) = file.read_text().splitlines()
    document = json.loads(line)
    assert document["level"] == "error"
    assert document["logger"] == "jobsight.tests.logging"
    assert document["message"] == "a\nb \\udcff"
    assert document["time"].endswith("Z")


@pytest.mark.parametrize("connected", [True, False])
def test_lines_for_the_journal_carry_priorities(tmp_path: Path, connected: bool) -> None:
    code = (
        "import logging, os, sys, warnings\n"
        "status = os.fstat(2)\n"
        f"device = status.st_dev + {int(not connected)}\n"
        "os.environ['JOURNAL_STREAM'] = f'{device}:{status.st_ino}'\n"
        "from jobsight.util.logging import configure_logging\n"
        "configure_logging('info', brief=True)\n"
        "log = logging.getLogger('jobsight.x')\n"
        "log.info('one'); log.warning('two')\n"
        "warnings.warn('three')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    lines = ended.stderr.splitlines()
    if connected:
        assert lines[:2] == ["<6>jobsight.x: one", "<4>jobsight.x: two"]
        assert lines[2].startswith("<4>py.warnings: ")
    else:
        assert lines[:2] == ["jobsight: one", "jobsight: two"]


def test_a_file_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(JobsightError, match="the log /nosuch/x cannot be written"):
        configure_logging("info", file=os.fspath("/nosuch/x"))
