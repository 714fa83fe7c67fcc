"""The extractor, killed with -9 at any moment, loses and doubles nothing."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobsight.software.worker import update
from jobsight.store.store import Store
from tests.export.documents import read_all
from tests.software.rule_sets import PLAIN
from tests.store.sample import START, batch, info, part, sighting, use

RUNS = 60
#: The command, which kills itself at a change to a file: the first argument counts them.
DYING = """
import os, sys
from jobsight.cli.compat.software_extractor import main
left = int(sys.argv[1])
def counted(function):
    def call(*arguments, **named):
        count()
        result = function(*arguments, **named)
        count()
        return result
    return call
def count():
    global left
    left -= 1
    if left == 0: os.kill(os.getpid(), 9)
for name in ("rename", "replace", "link", "fsync"):
    setattr(os, name, counted(getattr(os, name)))
sys.exit(main(["--config", sys.argv[2]]))
"""


@pytest.mark.long
def test_kills_at_any_step(store: Store, location: str, tmp_path: Path) -> None:
    for job in range(1, RUNS + 1):
        seen = part(sighting(job), executables=[use(b"/opt/alpha/1/a", 10**9)])
        store.write(batch(info(job, end=START + 10**9), seen))
    update(store, PLAIN)
    config = tmp_path / "sams.yaml"
    config.write_text(
        f"sams.software-extractor: {{store: '{location}', timezone: UTC}}\n"
        f"sams.xmlwriter.File: {{output_path: {tmp_path}/xml, jobs_per_file: 1}}\n"
    )
    source = random.Random(9)
    killed = 0
    while True:
        steps = source.randint(1, 120)
        ended = subprocess.run([sys.executable, "-c", DYING, str(steps), str(config)], check=False)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL
        killed += 1
    ids = [int(name.split(":")[1]) for name, _ in read_all(tmp_path / "xml")]
    assert sorted(ids) == list(range(1, RUNS + 1))
    assert killed >= 3
    assert not list((tmp_path / "xml").glob(".*.new"))
