"""Software accounting with real jobs: trees as sites have them, two users, short programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsight.store.store import Store
from tests.slurm.jobs import ALICE, BOB, script
from tests.slurm.site import REPOSITORY, Site, wait_for

#: Where the programs lie below the root, and what they are to be called.
PROGRAMS = {
    "gmx": ("easybuild/software/GROMACS/2023.1-foss-2022a/bin/gmx", "GROMACS", "2023.1"),
    "foam": ("easybuild/software/OpenFOAM/10-foss-2022b/bin/simpleFoam", "OpenFOAM", "10"),
    "lmp": (
        "spack/opt/spack/linux-debian12-zen3/gcc-12.2.0/"
        "lammps-20230802.1-yq3ijg6xb5n7hbrz3qyxgtnt2cjmurvh/bin/lmp",
        "lammps",
        "20230802.1",
    ),
}
#: Whose job runs what: CPU seconds of one execution, and how many.
JOBS = {
    ALICE: {"gmx": (2.0, 1), "foam": (0.075, 30)},
    BOB: {"lmp": (0.05, 40), "gmx": (1.0, 2)},
}
SECOND = 1_000_000_000


class Use:
    """What the cgroups of the jobs say, and what the command reports."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.folder = folder
        self.store = site.store
        self.cluster = site.cluster
        self.cgroup: dict[str, int] = {}
        self.truth: dict[tuple[str, str, str], int] = {}
        for path, _, _ in PROGRAMS.values():
            file = folder / path
            file.parent.mkdir(parents=True)
            shutil.copy(os.path.realpath("/usr/bin/python3"), file)
        jobs = {
            user: site.cluster.submit(user, self._script(uses), "--mem=100")
            for user, uses in JOBS.items()
        }
        for user, job in jobs.items():
            site.cluster.wait(job, timeout=120)
            self.cgroup[user] = site.ended(job)["cpu"]["cpu_seconds"] * SECOND
            told = re.findall(
                r"^truth \S+ (\d+) \d+$", site.cluster.output(user, job), re.MULTILINE
            )
            for name, before, after in zip(JOBS[user], told, told[1:], strict=False):
                self.truth[user, *PROGRAMS[name][1:]] = int(after) - int(before)

    def _script(self, uses: dict[str, tuple[float, int]]) -> str:
        """Runs the programs one after the other; the counter is read before and after each."""
        lines = ["truth"]
        for name, (seconds, times) in uses.items():
            code = f"import time\nwhile time.process_time() < {seconds}: pass"
            lines.append(
                f"for i in $(seq {times}); do {self.folder / PROGRAMS[name][0]} -c '{code}'; done"
            )
            lines.append("truth")
        return script(*lines)

    def ask(self, *arguments: str) -> Any:
        answer = subprocess.run(
            [sys.executable, "-m", "jobsight.cli.main", "software", *arguments, "--json",
             "--config", str(self.config)],
            cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return json.loads(answer.stdout)

    def running(self) -> str:
        """The jobs that Slurm shows as such, and those that are about to end."""
        return subprocess.run(
            ["squeue", "--noheader", "--states=RUNNING,COMPLETING"],
            env=self.cluster.environment(), capture_output=True, text=True, check=True, timeout=60,
        ).stdout.strip()  # fmt: skip

    def unfinished(self) -> list[str]:
        """Runs of which an agent has not yet said its last word; other tests have some as well."""
        with Store.open(self.store) as store:
            return [
                f"{run.info.job_id} on {node.node}"
                for run in store.runs(limit=10_000)
                for node in store.nodes(run.id)
                if not node.final
            ]

    def cpu_times(self, user: str) -> list[int]:
        """The counters of all runs of a user; other tests have jobs of theirs in this store."""
        with Store.open(self.store) as store:
            return [run.cpu_time or 0 for run in store.runs(user=user, limit=10_000)]

    @property
    def config(self) -> Path:
        """Settings with a file of rules of the site's own, empty at first."""
        file = self.folder / "jobsight.toml"
        if not file.exists():
            rules = self.folder / "rules.yaml"
            rules.write_text("rules: []\n")
            file.write_text(
                f'[store]\nlocation = "{self.store}"\n[software]\nrules = ["{rules}"]\n'
            )
        return file

    def by_software(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        rows = self.ask("report", "--by", "software,version,user", "--since", "2d", "--ignored")
        return {
            (row["user"], row.get("software", row["kind"]), row.get("version", "")): row
            for row in rows
            if row["user"] in JOBS
        }


@pytest.fixture(scope="module")
def use(site: Site) -> Iterator[Use]:
    # Not below pytest's directory, which every session of it closes to other users.
    with tempfile.TemporaryDirectory(prefix="jobsight-trees-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield Use(site, folder)


def test_hours_by_software_version_and_user_are_the_cgroup_s(use: Use) -> None:
    # What still runs, or is still on its way, would be more at the second question.
    wait_for(lambda: use.running() == "", 60, use.running)
    wait_for(lambda: not use.unfinished(), 60, lambda: str(use.unfinished()))
    use.ask("update")
    found = use.by_software()
    assert len(use.truth) == 4
    for key, truth in use.truth.items():
        user = key[0]
        reported = found[key]["cpu_hours"] * 3600 * SECOND
        name = next(name for name, known in PROGRAMS.items() if known[1:] == key[1:])
        seconds, times = JOBS[user][name]
        spun = seconds * times * SECOND
        # What a program has spun is in its row, or in the rest: the shells and what is not
        # attributed. How much is in its row, bench_attribution measures.
        rest = sum(
            row["cpu_hours"] * 3600 * SECOND
            for other, row in found.items()
            if other[0] == user and other not in use.truth
        )
        assert 0 < reported <= use.cgroup[user]
        assert spun <= reported + rest, (key, reported)
        assert truth >= seconds * times * SECOND
        assert found[key]["executions"] == JOBS[user][name][1]
    for user in use.cgroup:
        # All rows together are the counters of all the user's runs, to a microsecond each.
        hours = sum(row["cpu_hours"] for key, row in found.items() if key[0] == user)
        times = use.cpu_times(user)
        assert abs(hours * 3600 * SECOND - sum(times)) < 2000 * len(times)


def test_a_rule_changed_after_the_fact_moves_exactly_its_hours(use: Use) -> None:
    use.ask("update")
    before = use.by_software()
    (use.folder / "rules.yaml").write_text(
        "rules: [{match: '^.*/lammps-[^/]+/bin/lmp$', software: LAMMPS, version: '2023', "
        "versionstr: ''}]\n"
    )
    (move,) = [
        move for move in use.ask("update", "--dry-run") if move["after"]["software"] == "LAMMPS"
    ]
    assert use.by_software() == before
    use.ask("update")
    after = use.by_software()
    old = before.pop((BOB, "lammps", "20230802.1"))
    new = after.pop((BOB, "LAMMPS", "2023"))
    for figure in ("cpu_hours", "core_hours", "gpu_hours"):
        assert move[figure] == old[figure] == new[figure]
    assert after == before
