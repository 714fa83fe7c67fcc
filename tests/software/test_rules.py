"""Rules name paths as SAMS's do, in linear time, and a wrong file says what is wrong in it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import re2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobsight.errors import ConfigError
from jobsight.software.regex import Pattern, PatternError
from jobsight.software.rule_file import MAX_TEXT, fill_run
from jobsight.software.rules import RuleSet, SoftwareName, run_expectations

EASYBUILD = """
rules:
  - match: '^/sw/(?P<software>[^/]+)/(?P<version>[^/]+)/'
    software: '%(software)s'
    version: '%(version)s'
    versionstr: '%(software)s/%(version)s'
"""


def rules(tmp_path: Path, text: str, name: str = "rules.yaml") -> RuleSet:
    return RuleSet.load([write(tmp_path, text, name)])


def write(tmp_path: Path, text: str, name: str = "rules.yaml") -> Path:
    file = tmp_path / name
    file.write_text(textwrap.dedent(text))
    return file


def named(software: str, version: str, local: str, **flags: bool) -> SoftwareName:
    return SoftwareName(software, version, local, **flags)


def test_the_first_rule_wins_and_no_rule_is_undetermined(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        """
        rules:
          - {match: '^/bin/bash', software: bash, version: system, versionstr: '', ignore: true}
          - {match: '^/bin/', software: other, version: '', versionstr: '', user_provided: yes}
        """,
    )
    assert found.name(b"/bin/bash") == named("bash", "system", "", ignored=True)
    assert found.name(b"/bin/ls") == named("other", "", "", user_provided=True)
    assert found.name(b"/usr/bin/ls") is None
    assert found.rule_of(b"/bin/ls") == (str(tmp_path / "rules.yaml"), 2)


def test_rules_are_read_inside_of_a_configuration_of_sams(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        """
        sams.software-updater: {updater: sams.software.Regexp}
        sams.software.Regexp:
          rules:
            - match: '/eb/(?P<name>[^/]+)/(?P<version>[^/]+)/'
              software: "%(name)s"
              version: "%(version)s"
              versionstr: "eb/%(name)s/%(version)s"
          rewrite:
            - match: {version: '^(?P<newver>\\d+\\.\\d+)[^\\d]'}
              update: {version: '%(newver)s'}
        """,
    )
    assert found.name(b"/eb/GROMACS/2023.1.4/bin/gmx") == named(
        "GROMACS", "2023.1", "eb/GROMACS/2023.1.4"
    )
    assert not found.warnings


REWRITES = """
rules:
  - {match: '^/(?P<a>[^/]+)/(?P<b>[^/]+)', software: '%(a)s', version: '%(b)s', versionstr: ''}
rewrite:
  - match: {software: 'gmx', version: '^(?P<major>\\d+)'}
    update: {software: gromacs, versionstr: '%(major)s of %(version)s'}
  - match: {software: 'gromacs'}
    update: {software: '%(software)s!'}
"""


@pytest.mark.parametrize(
    ("stop", "software"), [("", "gromacs!"), ("stop_on_rewrite_match: true\n", "gromacs")]
)
def test_rewrites_come_in_order_and_may_stop(tmp_path: Path, stop: str, software: str) -> None:
    found = rules(tmp_path, stop + REWRITES)
    assert found.name(b"/gmx/2023") == named(software, "2023", "2023 of 2023")
    # Both must match.
    assert found.name(b"/gmx/x") == named("gmx", "x", "")


def test_rewrites_hold_for_their_own_file_and_for_the_ready_rules(tmp_path: Path) -> None:
    files = [
        write(
            tmp_path,
            f"""
            rules: [{{match: /{name}, software: plain, version: '', versionstr: ''}}]
            rewrite: [{{match: {{software: '(?P<s>.*)'}}, update: {{software: '%(s)s {name}'}}}}]
            """,
            f"{name}.yaml",
        )
        for name in ("a", "b")
    ]
    found = RuleSet.load(files, ready=True)
    assert found.name(b"/a") == named("plain a", "", "")
    assert found.name(b"/b") == named("plain b", "", "")
    assert found.name(b"/usr/bin/python3.9") == named("Python a b", "3.9", "system/python3.9")


def test_places_of_the_run_are_filled_later_and_nothing_of_the_path_is_one(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        """
        rules:
          - match: '^/tmp/(?P<name>[^/]*)'
            software: 'tmp of %%(user)s in %%(project)s'
            version: '100%%'
            versionstr: '%(name)s'
        """,
    )
    name = found.name(b"/tmp/50%(user)s%d%")
    assert name == named("tmp of %(user)s in %(project)s", "100%", "50\\x25(user)s%d%")
    assert fill_run(name.software, "alice", "%(user)s") == "tmp of alice in %(user)s"
    assert fill_run(name.local_version, "alice", "p") == "50\\x25(user)s%d%"


def test_bytes_that_are_no_text_match_and_are_written_out(tmp_path: Path) -> None:
    found = rules(tmp_path, EASYBUILD)
    assert found.name(b"/sw/a\xff\n/1\xc3\xa4/x") == named("a\\xff\\x0a", "1ä", "a\\xff\\x0a/1ä")
    assert found.name("/sw/ä/1/x".encode()) == named("ä", "1", "ä/1")


def test_a_class_holds_whole_characters(tmp_path: Path) -> None:
    text = "rules: [{match: '^/(?P<a>[åä])/', software: '%(a)s', version: '', versionstr: ''}]"
    found = rules(tmp_path, text)
    assert found.name("/ä/x".encode()) == named("ä", "", "")
    assert found.name("/ö/x".encode()) is None


def test_names_stay_short_enough_for_the_store_and_differ(tmp_path: Path) -> None:
    found = rules(tmp_path, EASYBUILD)
    one, other = (
        found.name(b"/sw/" + b"\xe2\x82\xac" * 1000 + end + b"/1/x") for end in (b"a", b"b")
    )
    assert one is not None
    assert other is not None
    assert len(one.software.encode()) <= MAX_TEXT
    assert one.software != other.software


WRONG = [
    ("rules: [{match: /a, software: a, version: '1'}]", "rule 1: versionstr: is missing"),
    (
        "rules: [{match: /a, software: a, version: 1.0, versionstr: ''}]",
        "rule 1: version: expected a text, got `float`; put it in quotes: '1.0'",
    ),
    (
        "rules: [{match: '/(a', software: a, version: '', versionstr: ''}]",
        "rule 1: match: '/(a' is not a regular expression: missing ), unterminated subpattern",
    ),
    (
        "rules:\n- {match: /a, software: a, version: '', versionstr: ''}\n"
        "- {match: '/(?P<b>a)', software: '%(c)s', version: '', versionstr: ''}",
        "rule 2: software: %(c)s: match has no such group; its groups: b",
    ),
    (
        "rules: [{match: /a, software: '100%', version: '', versionstr: ''}]",
        "rule 1: software: '%' is not a placeholder; expected %(name)s, or %% for %",
    ),
    (
        "rules: [{match: /a, software: a, version: '', versionstr: '', ignore: perhaps}]",
        "rule 1: ignore: expected true or false, got 'perhaps'",
    ),
    ("rules: {match: /a}", "rules: expected a list, got `dict`"),
    ("rules: [/a]", "rule 1: expected keys and values, got `str`"),
    ("- /a", "contains no rules; expected a list `rules:` or a section sams.software.Regexp"),
    ("rules: [", "rules.yaml: line 2, column 1: "),
    (
        "rules: [{match: '(?!/a)(b*)*', software: a, version: '', versionstr: ''}]",
        "a repeat or alternatives inside a repeat",
    ),
    (
        "rules: [{match: '(?!/a).*/.*/.*', software: a, version: '', versionstr: ''}]",
        "too many repeats together with look-around",
    ),
    ("rules: []\ntests: [{path: /a}]", "test 1: expected one of software"),
    (
        "rewrite: [{match: {software: '('}, update: {software: b}}]",
        "rewrite 1: match: software: '(' is not a regular expression",
    ),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_a_wrong_file_is_one_line_that_says_where(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        rules(tmp_path, text)
    said = str(error.value)
    assert said.startswith(str(tmp_path / "rules.yaml") + ": ")
    assert sentence in said
    assert "\n" not in said


def test_a_file_that_is_not_there_or_no_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        RuleSet.load([tmp_path / "none.yaml"])
    (tmp_path / "latin.yaml").write_bytes(b"rules: [\xe4]")
    with pytest.raises(ConfigError, match=r"latin\.yaml: is not UTF-8 text at byte 8"):
        RuleSet.load([tmp_path / "latin.yaml"])


def test_unknown_keys_and_unused_rewrites_are_warned_of(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        """
        rulez: []
        rules:
          - {match: /a, software: '%(user)s', version: '', versionstr: '', ingore: true}
        rewrite:
          - {match: {software: a}}
          - {match: {softwear: a}, update: {software: b}}
        """,
    )
    file = tmp_path / "rules.yaml"
    assert found.warnings == [
        f"{file}: unknown key rulez; did you mean rules?",
        f"{file}: rule 1: unknown key ingore; did you mean ignore?",
        f"{file}: rule 1: software: %(user)s is not a group of match; read as %%(user)s",
        f"{file}: rewrite 1: is ignored: update is not a mapping of software, version ...",
        f"{file}: rewrite 2: match: unknown key softwear; did you mean software?",
        f"{file}: rewrite 2: is ignored: match has none of software, version, versionstr",
    ]
    assert found.name(b"/a") == named("%(user)s", "", "")


def test_keys_of_any_kind_are_only_unknown(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        """
        null: 1
        2024-01-01: {1.5: !!binary aGFsbG8=}
        rules:
          - {match: /a, software: a, version: '', versionstr: '', null: 3, 7: !!set {a, b}}
        rewrite: [{match: {software: b, null: 2}, update: {software: c, 3: 4}, 5: 6}]
        """,
    )
    assert found.name(b"/a") == named("a", "", "")
    assert len(found.warnings) == 7


def test_look_around_is_matched_with_a_warning_in_its_place(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        """
        rules:
          - {match: '/a/b', software: first, version: '', versionstr: ''}
          - {match: '/(?!a/c)(?P<x>[^/]+)', software: 'not %(x)s', version: '', versionstr: ''}
          - {match: '/a', software: last, version: '', versionstr: ''}
        """,
    )
    assert [found.name(path).software for path in (b"/a/b", b"/a/c", b"/a/d", b"/e\xff")] == [
        "first",
        "last",
        "not a",
        "not e\\xff",
    ]
    (warning,) = found.warnings
    assert "rule 2: match: cannot be matched in linear time" in warning
    assert found.name(b"/" + b"x" * 600) is None


SLOW = [
    (r"(?!/home/)/(?:[^/]+/)*bin/(?P<x>[^/]+)$", True),
    (r"/(?P<a>[^/]+)/(?P=a)-(?P<x>\d+)\.[^/]*-[a-z]+/", True),
    (r"/.*/(?P<x>[^/]+)(?<!-test)/.*", True),
    (r"(?!x)[^/]+[^/]+[^/]+[^/]+!", False),
    (r"(?!x).*[^/]+[^/]+[^/]+!", False),
    (r"(?!x)(?:[^/]+/?)*!", False),
    (r"(?!x)(?:a|.*/)+!", False),
    (r"(?!x)(?:/*a*)*!", False),
    (r"(?!y)(a|b|ab)*c", False),
    (r"(?!y)(?:aa?)*c", False),
    (r"(?!y)" + "a?" * 30 + "a{30}", False),
    (r"(?!y)(?:a?){30}a{30}", False),
    (r"(?!y)(?:a|ab){30}c", False),
    (r"(?!y)(?:.*b){4}c", False),
    (r"(?!y)" + "(?:a|aa)" * 30 + "c", False),
    (r"(?!y)/(?:opt|sw)/(?P<x>[^/]+)(?:-(?:gcc|intel))?/(?:bin|lib)/", True),
]


@pytest.mark.parametrize(("pattern", "taken"), SLOW)
def test_what_python_matches_has_few_ways_to_match(pattern: str, taken: bool) -> None:
    if not taken:
        with pytest.raises(PatternError, match=r"can take (exponential time|too long)"):
            Pattern(pattern)
        return
    found = Pattern(pattern)
    assert found.linear is None
    for path in (b"/" + b"a" * 511, b"/a" * 256, b"/" * 512, b"/a-" * 170, b"/a/a-1.b-c/bin/x"):
        found.match(path, True)


def test_the_end_of_the_text_is_pythons(tmp_path: Path) -> None:
    text = r"rules: [{match: '/a\\?\Z', software: a, version: '', versionstr: ''}]"
    found = rules(tmp_path, text)
    assert found.name(b"/a\\") is not None
    assert found.name(b"/ab") is None
    assert not found.warnings


def test_the_digest_follows_what_decides_on_names(tmp_path: Path) -> None:
    first = rules(tmp_path, EASYBUILD)
    commented = rules(
        tmp_path, "# a comment\n" + EASYBUILD + "\ntests: [{path: /a, undetermined: true}]"
    )
    changed = rules(tmp_path, EASYBUILD.replace("^/sw", "^/opt"))
    assert first.digest == commented.digest != changed.digest


@pytest.mark.parametrize("gives_up", ["while compiling", "while matching"])
def test_where_re2_gives_up_the_rules_are_asked_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives_up: str
) -> None:
    if gives_up == "while compiling":
        monkeypatch.setattr("jobsight.software.rules.MAX_MEMORY", 60_000)
    else:
        # What RE2 gives where its table grows beyond its memory: no match at all.
        monkeypatch.setattr(re2.Set, "Match", lambda self, text: [])
    lines = [
        f"- {{match: '.*/x{n}/.*y{n}.*z', software: '{n}', version: '', versionstr: ''}}"
        for n in range(150)
    ]
    found = rules(tmp_path, "rules:\n" + "\n".join(lines))
    names = [found.name(b"/q/x%d/y%d/z" % (n, n)) for n in range(150)]
    assert [name and name.software for name in names] == [str(n) for n in range(150)]
    assert found._matching.first_by_re2(b"/q/x1/y1/z", True) == -1


def test_scripts_of_interpreters_have_rules_of_their_own(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        """
        rules:
          - match: '^.*/python[0-9.]*//(?:.*/)?(?P<tool>snakemake|-m jupyterlab)$'
            software: '%(tool)s'
            version: ''
            versionstr: ''
          - {match: '^/opt/(?P<s>[^/]+)/.*', software: '%(s)s', version: '', versionstr: ''}
        """,
    )
    assert found.name(b"/opt/py/bin/python3//home/a/bin/snakemake") == named("snakemake", "", "")
    assert found.name(b"/opt/py/bin/python3//-m jupyterlab") == named("-m jupyterlab", "", "")
    assert found.name(b"/opt/py/bin/python3//home/a/x\xff.py") == named("py", "", "")
    assert found.name(b"/opt/py/bin/python3") == named("py", "", "")


HOSTILE = ["^(a+/?)+$", "^(a/?)*(a/?)*(a/?)*b", "^((a|a/)+)+!$", ".*.*.*.*.*(?P<x>.*)x$"]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_hostile_rule_ends_on_a_hostile_path(tmp_path: Path, pattern: str) -> None:
    """Python's own engine would not come back from any of these within a life."""
    text = f"rules: [{{match: '{pattern}', software: a, version: '', versionstr: ''}}]"
    found = rules(tmp_path, text)
    assert found.name(b"a/" * 2048 + b"?") is None
    assert found.name(b"a/" * 2048 + b"\xff") is None


@given(st.binary(min_size=1, max_size=300), st.text(max_size=20), st.text(max_size=20))
def test_every_path_is_named_or_not_and_never_fails(path: bytes, user: str, project: str) -> None:
    name = READY.name(path)
    if name is not None:
        text = fill_run(name.software + name.version + name.local_version, user, project)
        assert "\n" not in text or "\n" in user + project


READY = RuleSet.ready()


def test_what_a_site_expects_is_shown_where_it_differs(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        EASYBUILD
        + """
tests:
  - {path: /sw/A/1/bin/a, software: A, version: '1', versionstr: A/1, ignore: false}
  - {path: /sw/A/1/bin/a, software: B, user_provided: true}
  - {path: '/sw/\\xff/1/a', software: '\\xff'}
  - {path: /opt/a, software: A}
  - {path: /sw/A/1/bin/a, undetermined: true}
  - {path: /opt/a, undetermined: true}
""",
    )
    found = [str(one).removeprefix(f"{file}: ") for one in run_expectations([file], ready=False)]
    by = f" (rule 1 of {file})"
    assert found == [
        "test 1: /sw/A/1/bin/a: as expected",
        "test 2: /sw/A/1/bin/a: software: expected 'B', got 'A'; "
        f"user_provided: expected true, got false{by}",
        "test 3: /sw/\\xff/1/a: as expected",
        "test 4: /opt/a: expected a name, but no rule matches",
        f"test 5: /sw/A/1/bin/a: expected no name, got 'A' '1' 'A/1'{by}",
        "test 6: /opt/a: as expected",
    ]


#: Reads patterns as JSON and matches each with paths on which engines backtrack.
MATCHER = """
import json, sys
from jobsight.software.regex import Pattern, PatternError
for text in json.load(sys.stdin):
    try:
        found = Pattern(text)
    except PatternError:
        continue
    for path in (b"a" * 511 + b"!", b"ab" * 255 + b"!", b"/a" * 255 + b"!", b"/" * 511 + b"!"):
        found.match(path, True)
print("done")
"""

_ATOMS = st.sampled_from(["a", "b", "ab", "/", ".", "[^/]", "[ab]", "(?=a)", "(?!y)"])
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{30}", "{0,3}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_PATTERNS, min_size=40, max_size=40))
def test_no_accepted_pattern_runs_for_ever(patterns: list[str]) -> None:
    """In a process, since nothing else ends a match. The limit is far above what is needed."""
    done = subprocess.run(
        [sys.executable, "-c", MATCHER],
        input=json.dumps([f"(?!y){pattern}!c" for pattern in patterns]),
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    assert done.stdout == "done\n"
