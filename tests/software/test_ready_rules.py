"""The ready rules name the layouts that sites have, and the rules that SAMS documents do, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobsight.software.rule_file import fill_run
from jobsight.software.rules import RuleSet, outcome, run_expectations

READY = RuleSet.ready()
TESTS = [(file.name, test) for file in READY.files for test in file.expectations]


def test_real_paths_of_all_layouts_are_named_right() -> None:
    wrong = [str(one) for one in run_expectations([]) if one.differences]
    assert not wrong
    assert not READY.warnings
    assert len({test.path for _, test in TESTS}) >= 200


def test_each_ready_rule_has_a_path_of_its_own() -> None:
    used = {outcome(READY, name, test).rule for name, test in TESTS}
    rules = {(file.name, n + 1) for file in READY.files for n in range(len(file.rules))}
    assert rules - used == set()


def test_all_ready_rules_take_time_in_proportion_to_the_path() -> None:
    """RE2 takes them all; Python's engine would need minutes and more for some of these paths."""
    assert all(rule.pattern.linear for file in READY.files for rule in file.rules)
    for piece in (b"a/", b"/", b"software/", b"opt/1/", b"linux-x-y/", b"home/\xff/", b"envs/"):
        path = b"/" + (piece * 4096)[:4096]
        assert READY.name(path + b"!") == READY.name(path + b"!")


def test_versions_have_two_levels_at_most() -> None:
    """As national reports want them; the whole version stands in the local one."""
    versions = [name.version for _, test in TESTS if (name := READY.name(test.path.encode()))]
    assert [text for text in versions if re.match(r"\d+\.\d+\.\d", text)] == []


#: The rules that SAMS's documents show, and what each makes of a path.
DOCUMENTED = """
sams.software-updater: {loglevel: ERROR, updater: sams.software.Regexp}
sams.software.Regexp:
  rules:
    - match: '^/bin/bash'
      software: bash
      version: "system"
      versionstr: ""
      ignore: true
    - match: '^/pfs/eb/[^/]+/software/Core/(?P<software>[^/]+)/(?P<version>[^/]+)/'
      software: "%(software)s"
      version: "%(version)s"
      versionstr: "Core/%(software)s/%(version)s"
      user_provided: true
      ignore: false
    - match: '^/pfs/eb/[^/]+/software/Compiler/(?P<c>[^/]+/[^/]+)/(?P<s>[^/]+)/(?P<v>[^/]+)/'
      software: "%(s)s"
      version: "%(v)s"
      versionstr: "Compiler/%(c)s/%(s)s/%(v)s"
    - match: '^/pfs/eb/[^/]+/software/MPI/(?P<m>[^/]+/[^/]+/[^/]+/[^/]+)/(?P<s>[^/]+)/(?P<v>[^/]+)/'
      software: "%(s)s"
      version: "%(v)s"
      versionstr: "MPI/%(m)s/%(s)s/%(v)s"
    - match: '^/home/(?P<owner>[^/]+)/'
      software: unclassified
      version: ""
      versionstr: "%(owner)s"
      user_provided: true
    - match: '^/tmp/'
      software: unclassified
      version: ""
      versionstr: "%%(user)s/%%(project)s"
      user_provided: true
    - {match: '^/s?bin/', software: system, version: "", versionstr: "", ignore: true}
  rewrite:
    - match: {software: '^VASP$', version: '^(?P<newver>\\d+)'}
      update: {version: '%(newver)s'}
    - match: {version: '^(?P<newver>\\d+\\.\\d+)[^\\d]'}
      update: {version: '%(newver)s'}
"""
MPI = "MPI/GCC/12.3.0/OpenMPI/4.1.5"
CASES = [
    ("/bin/bash", ("bash", "system", "", False, True)),
    ("/sbin/init", ("system", "", "", False, True)),
    ("/pfs/eb/a/software/Core/GCC/12.3.0/bin/gcc", ("GCC", "12.3", "Core/GCC/12.3.0", True, False)),
    ("/pfs/eb/a/software/Core/VASP/6.4.1/vasp", ("VASP", "6", "Core/VASP/6.4.1", True, False)),
    (
        "/pfs/eb/a/software/Compiler/GCC/12.3.0/OpenMPI/4.1.5/bin/mpirun",
        ("OpenMPI", "4.1", "Compiler/GCC/12.3.0/OpenMPI/4.1.5", False, False),
    ),
    (
        f"/pfs/eb/a/software/{MPI}/GROMACS/2023.1/bin/gmx",
        ("GROMACS", "2023.1", f"{MPI}/GROMACS/2023.1", False, False),
    ),
    ("/home/alice/a.out", ("unclassified", "", "alice", True, False)),
    ("/tmp/x/a.out", ("unclassified", "", "alice/proj9", True, False)),
    ("/opt/x", None),
]


@pytest.mark.parametrize(("path", "expected"), CASES)
def test_the_rules_that_sams_documents(
    tmp_path: Path, path: str, expected: tuple[str, str, str, bool, bool] | None
) -> None:
    (tmp_path / "sams.yaml").write_text(DOCUMENTED)
    rules = RuleSet.load([tmp_path / "sams.yaml"])
    assert not rules.warnings
    name = rules.name(path.encode())
    if expected is None:
        assert name is None
        return
    assert name is not None
    local = fill_run(name.local_version, "alice", "proj9")
    assert (name.software, name.version, local, name.user_provided, name.ignored) == expected
