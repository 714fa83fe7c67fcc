"""The same collector files through SAMS 1.10 and through ours, up to the XML: it is the same."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobsight.cli.compat import aggregator, software_extractor, software_updater
from jobsight.cli.main import main as jobsight
from jobsight.software import rules as rules_module
from jobsight.software.rules import RuleSet
from tests.export.documents import Software, read_all
from tests.sams.documents import INFO, START, Site, document

#: One file for all programs, as a site has it; the last keys of the extractor are ours.
CONFIG = r"""
common: {{loglevel: ERROR}}
sams.aggregator:
  loaders: [sams.loader.File]
  aggregators: [sams.aggregator.SoftwareAccounting]
  store: {folder}/store.db
sams.loader.File:
  in_path: {folder}/in
  archive_path: {folder}/archive
  error_path: {folder}/error
  file_pattern: '^.*\.json$'
sams.aggregator.SoftwareAccounting: {{db_path: {folder}/db, cluster: c.example.org}}
sams.software-updater:
  backend: sams.backend.SoftwareAccounting
  updater: sams.software.Regexp
  store: {folder}/store.db
sams.software-extractor:
  backend: sams.backend.SoftwareAccounting
  xmlwriter: sams.xmlwriter.File
  store: {folder}/store.db
  timezone: UTC
sams.backend.SoftwareAccounting: {{db_path: {folder}/db, file_pattern: 'sa-\d+.db'}}
sams.xmlwriter.File: {{output_path: {folder}/xml, jobs_per_file: 7, remove_less_then: 2.0}}
sams.software.Regexp:
  rules:
    - {{match: '^/bin/', software: system, version: '', versionstr: '', ignore: true}}
    - match: '^/sw/Core/(?P<software>[^/]+)/(?P<version>[^/]+)/'
      software: "%(software)s"
      version: "%(version)s"
      versionstr: "Core/%(software)s/%(version)s"
    - match: '^/home/(?P<owner>[^/]+)/'
      software: unclassified
      version: ''
      versionstr: '%(owner)s'
      user_provided: true
    - match: '^/tmp/'
      software: unclassified
      version: ''
      versionstr: '%%(user)s/%%(project)s'
      user_provided: true
  rewrite:
    - match: {{version: '^(?P<newver>\d+\.\d+)[^\d]'}}
      update: {{version: '%(newver)s'}}
"""
PATHS = [
    "/bin/bash",
    "/sw/Core/GROMACS/2023.1.4/bin/gmx",
    "/sw/Core/GROMACS/2023.1.4/bin/mdrun",
    "/sw/Core/VASP/6.4.1/vasp_std",
    "/sw/Core/R&D <1>/2/x",
    "/home/alice/a.out",
    "/home/bob/a.out",
    "/tmp/job/a.out",
    "/data/nobody/knows",
]
RENAMED = ("software: unclassified", "software: own programs")


class Chain:
    """Aggregator, updater and extractor of one make, with directories of their own."""

    def __init__(self, folder: Path, command: Callable[[str, list[str]], str]) -> None:
        self.folder = folder
        self._command = command
        for name in ("in", "archive", "error", "db", "xml"):
            (folder / name).mkdir(parents=True)
        self.config = folder / "sams.yaml"
        self.config.write_text(CONFIG.format(folder=folder))

    def run(self, program: str, *arguments: str) -> str:
        return self._command(program, ["--config", str(self.config), *arguments])

    def records(self) -> dict[str, Software]:
        """What is new in the XML, in an order that both share."""
        found = read_all(self.folder / "xml")
        shutil.rmtree(self.folder / "xml")
        (self.folder / "xml").mkdir()
        assert len(found) == len({name for name, _ in found})
        return {name: sorted(software) for name, software in found}


OURS = {
    "sams-aggregator": aggregator.main,
    "sams-software-updater": software_updater.main,
    "sams-software-extractor": software_extractor.main,
}


@pytest.fixture
def chains(sams: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[Chain]:
    def theirs(program: str, arguments: list[str]) -> str:
        done = subprocess.run(
            [sams / f"{program}.py", *arguments],
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def ours(program: str, arguments: list[str]) -> str:
        assert OURS[program](arguments) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return [Chain(tmp_path / "sams", theirs), Chain(tmp_path / "ours", ours)]


def put(chains: list[Chain], made: dict[str, Any]) -> None:
    for chain in chains:
        Site.put(chain, made)  # type: ignore[arg-type]


def random_job(random: random.Random, job_id: int) -> list[dict[str, Any]]:
    info = INFO | {"username": random.choice(["u1", "u2"]), "account": random.choice(["p1", "p2"])}
    info["starttime"] = f"2024-01-01T{10 + job_id % 5}:00:00"
    info["starttimestamp"] = float(START + job_id % 5 * 3600)
    return [
        document(
            job_id,
            f"n{node}",
            start=START + job_id % 5 * 3600,
            info=info,
            execs={
                path: {
                    "user": round(random.expovariate(0.001), random.randint(0, 9)),
                    "system": random.choice([0.0, 0.01, 17.5]),
                }
                for path in random.sample(PATHS, random.randint(1, 6))
            },
        )
        for node in range(random.randint(1, 3))
    ]


def test_the_same_files_become_the_same_xml(chains: list[Chain]) -> None:
    source = random.Random(6)
    for job_id in range(1, 41):
        for made in random_job(source, job_id):
            put(chains, made)
    for chain in chains:
        chain.run("sams-aggregator")
        chain.run("sams-software-updater")
        chain.run("sams-software-extractor")
    theirs, ours = (chain.records() for chain in chains)
    assert len(theirs) > 30
    assert ours == theirs

    # A rule that changes: what SAMS is told to reset, ours finds by itself. SAMS counts in whole
    # seconds and loses what comes within the one of its last export.
    time.sleep(1.1)
    for chain in chains:
        chain.config.write_text(chain.config.read_text().replace(*RENAMED))
    chains[0].run("sams-software-updater", "--reset-software", "unclassified")
    chains[1].run("sams-software-updater")
    for chain in chains:
        chain.run("sams-software-extractor")
    theirs, ours = (chain.records() for chain in chains)
    assert ours == {
        name: software
        for name, software in theirs.items()
        if any(one[0] == "own programs" for one in software)
    }
    assert ours


def test_what_the_updater_says_is_the_same(chains: list[Chain]) -> None:
    put(chains, document(1, execs={path: {"user": 90.0, "system": 10.0} for path in PATHS}))
    for chain in chains:
        chain.run("sams-aggregator")
        chain.run("sams-software-updater")
    for arguments in (
        ["--test-path", "/sw/Core/GROMACS/2023.1.4/bin/gmx"],
        ["--test-path", "/home/alice/x", "--show-paths"],
        ["--test-path", "/data/x"],
        ["--show-undetermined"],
        ["--show-path", "/sw/*gmx"],
        ["--show-software", "V?SP"],
        ["--show-path", "/home/b*", "--show-software", "[a-u]nclass*"],
    ):
        theirs, ours = (chain.run("sams-software-updater", *arguments) for chain in chains)
        assert ours == theirs
        assert theirs


# Fault 14: --skip dropped what SAMS had not yet reported.
def test_what_sams_has_not_reported_is_reported_here(chains: list[Chain]) -> None:
    sams, ours = chains
    numbers = random.Random(7)
    for job_id in range(1, 11):
        for made in random_job(numbers, job_id):
            Site.put(sams, made)  # type: ignore[arg-type]
    for program in ("aggregator", "software-updater", "software-extractor"):
        sams.run(f"sams-{program}")
    assert sams.records()
    # SAMS counts in whole seconds.
    time.sleep(1.1)
    for job_id in range(11, 16):
        for made in random_job(numbers, job_id):
            Site.put(sams, made)  # type: ignore[arg-type]
    for program in ("aggregator", "software-updater"):
        sams.run(f"sams-{program}")
    database, store = str(sams.folder / "db"), str(ours.folder / "store.db")
    options = ["--cluster", "c.example.org", "--zone", "UTC"]
    assert jobsight(["import", "sams", database, "--store", store, *options]) == 0
    ours.run("sams-software-updater")
    ours.run("sams-software-extractor", "--skip", "--database", database)
    assert ours.records() == {}
    # Again, it changes nothing.
    ours.run("sams-software-extractor", "--skip", "--database", database)
    for chain in chains:
        chain.run("sams-software-extractor")
    theirs, found = (chain.records() for chain in chains)
    assert found == theirs
    assert {name.split(":")[1] for name in found} <= {str(job_id) for job_id in range(11, 16)}
    assert found
    ours.run("sams-software-extractor")
    assert ours.records() == {}


#: Names by SAMS's own module; paths come on standard input, one a line.
ASK = """
import json, sys
import sams.core
from sams.software.Regexp import Software
software = Software("sams.software.Regexp", sams.core.Config(sys.argv[1], {}))
print(json.dumps([software.get(line.rstrip("\\n")) for line in sys.stdin]))
"""
READY = RuleSet.ready().files


@pytest.mark.parametrize("file", [file.name for file in READY])
def test_sams_gives_the_same_names_by_the_same_rules(sams: Path, tmp_path: Path, file: str) -> None:
    """Each of the ready files is a file of SAMS as well; all paths of all files are requested."""
    source = Path(rules_module.__file__).parent / "ready" / file
    config = tmp_path / "sams.yaml"
    lines = source.read_text().splitlines(keepends=True)
    config.write_text("sams.software.Regexp:\n" + "".join(f"  {line}" for line in lines))
    rules = RuleSet.load([config])
    # SAMS writes bytes that are no text otherwise.
    paths = [
        test.path for one in READY for test in one.expectations if "\\" not in test.path
    ] + PATHS
    done = subprocess.run(
        [sams / "python", "-c", ASK, str(config)],
        input="\n".join(paths), capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert len(paths) > 200
    for path, theirs in zip(paths, json.loads(done.stdout), strict=True):
        name = rules.name(path.encode())
        ours = name and {
            "software": name.software,
            "version": name.version,
            "versionstr": name.local_version,
            "user_provided": name.user_provided,
            "ignore": name.ignored,
        }
        if ours and "%(user)s" in path:
            continue
        assert ours == theirs, path
