"""Rules for paths that no rule knows."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.software.rules import RuleSet
from jobsight.software.suggestions import suggest
from jobsight.store.rollups.catalogue import PathRow
from jobsight.text import path_bytes, readable_path


def row(path: str, core_hours: float = 1.0, known: bool = True) -> PathRow:
    return PathRow(
        path=path, path_known=known, jobs=2, users=1, executions=3, cpu_hours=0.5,
        core_hours=core_hours, last=None, software_id=0,
    )  # fmt: skip


def rules(rule: str) -> RuleSet:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "suggested.yaml"
        file.write_text(f"rules:\n{rule}\n")
        return RuleSet.load([file])


@pytest.mark.parametrize(
    ("path", "software", "version", "user"),
    [
        ("/data/apps/Gromacs/2023.1/bin/gmx", "Gromacs", "2023.1", False),
        ("/data/apps/vasp/6.4.1-gcc/vasp_std", "vasp", "6.4.1-gcc", False),
        ("/data/pkg/openmpi-4.1.5/bin/mpirun", "openmpi", "4.1.5", False),
        ("/data/pkg/quantum-espresso-7.2/bin/pw.x", "quantum-espresso", "7.2", False),
        ("/opt/matlab/bin/glnxa64/MATLAB", "matlab", "", False),
        ("/opt/starccm/lib/solver", "starccm", "", False),
        ("/usr/local/bin/tool", "tool", "", False),
        ("/cluster/home/anna/code/run/a.out", "a.out", "", True),
        ("/proj/x7/bin/solver", "solver", "", True),
        ("python3", "python3", "", False),
        (r"/data/a\xff 100%/x", r"a\xff 100%", "", False),
    ],
)
def test_what_is_suggested(path: str, software: str, version: str, user: bool) -> None:
    (suggestion,) = suggest([row(path)])
    name = rules(suggestion.rule).name(path_bytes(path))
    assert name is not None
    assert (name.software, name.version, name.user_provided) == (software, version, user)


def test_one_rule_for_a_cluster_the_largest_first() -> None:
    found = suggest(
        [
            row("/data/apps/a/1.0/bin/a", 1),
            row("/data/apps/b/2.0/bin/b", 2),
            row("/data/apps/b/2.1/bin/b", 4),
            row("/opt/x/bin/y", 5),
        ]
    )
    assert [(one.paths, one.core_hours, one.jobs) for one in found] == [(3, 7, 6), (1, 5, 2)]
    assert found[0].match == "^/data/apps/(?P<software>[^/]+)/(?P<version>[^/]+)/"


def test_a_command_whose_path_is_not_known_gets_no_rule() -> None:
    """Each stands for itself; the same text as a path is something else."""
    found = suggest(
        [row("sh", 1, known=False), row("/opt/x/bin/y", 2), row("replaced at once", 3, known=False)]
    )
    assert [(one.examples, one.path_known, one.match, one.rule is None) for one in found] == [
        (["replaced at once"], False, None, True),
        (["/opt/x/bin/y"], True, "^/opt/x/", False),
        (["sh"], False, None, True),
    ]


PIECES = st.one_of(
    st.sampled_from(
        [b"home", b"bin", b"1.2", b"foo-2.1", b"proj", b"%(user)s", b"'", b"\\", b"a\nb"]
    ),
    st.binary(min_size=1, max_size=6).map(lambda name: name.translate(None, b"/\0") or b"-"),
)


@given(st.lists(PIECES, min_size=1, max_size=6), st.booleans())
def test_a_rule_names_the_paths_that_it_was_made_of(pieces: list[bytes], absolute: bool) -> None:
    path = (b"/" if absolute else b"") + b"/".join(pieces)
    (suggestion,) = suggest([row(readable_path(path))])
    assert rules(suggestion.rule).name(path) is not None
