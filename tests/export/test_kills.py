"""The extractor, killed with -9 at any moment, loses and doubles nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobsight.software.worker import update
from jobsight.store.store import Store
from tests.export.documents import read_all
from tests.software.rule_sets import PLAIN
from tests.store.sample import START, batch, info, part, sighting, use

RUNS = 120


@pytest.mark.long
@pytest.mark.timeout(300)
def test_kills_at_any_moment(store: Store, location: str, tmp_path: Path) -> None:
    for job in range(1, RUNS + 1):
        seen = part(sighting(job), executables=[use(b"/opt/alpha/1/a", 10**9)])
        store.write(batch(info(job, end=START + 10**9), seen))
    update(store, PLAIN)
    config = tmp_path / "sams.yaml"
    config.write_text(
        f"sams.software-extractor: {{store: '{location}', timezone: UTC}}\n"
        f"sams.xmlwriter.File: {{output_path: {tmp_path}/xml, jobs_per_file: 1}}\n"
    )
    command = [
        sys.executable,
        "-m",
        "jobsight.cli.compat.software_extractor",
        "--config",
        str(config),
    ]
    source = random.Random(9)
    killed = 0
    while True:
        process = subprocess.Popen(command)
        # The first files appear once it has begun; then it is killed soon.
        before = len(list((tmp_path / "xml").glob("*.xml")))
        while process.poll() is None and len(list((tmp_path / "xml").glob("*.xml"))) == before:
            time.sleep(0.001)
        time.sleep(source.uniform(0, 0.02))
        process.kill()
        if process.wait() == 0:
            break
        killed += 1
    ids = [int(name.split(":")[1]) for name, _ in read_all(tmp_path / "xml")]
    assert sorted(ids) == list(range(1, RUNS + 1))
    assert killed >= 1
    assert not list((tmp_path / "xml").glob(".*.new"))
