"""Names for 100,000 paths by the ready rules and 500 of a site, alongside Python's own engine asked
rule by rule, as SAMS asks it."""

from __future__ import annotations

import itertools
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.figures import Figures
from jobsight.software.rules import RuleSet
from jobsight.text import path_bytes

PATHS = 100_000
SITE_RULES = 500
#: Python's engine is given fewer: the time of each path is what is compared.
SAMPLE = 2_000


def site_rules(file: Path) -> None:
    """What a site grows over the years: some rules by directory, some by the program's name."""
    lines = ["rules:"]
    for number in range(SITE_RULES):
        match = (
            f"^/pdc/vol/package{number}/(?P<version>[^/]+)/"
            if number % 3
            else f"^/(?:.*/)?program{number}(?P<version>[0-9.]*)$"
        )
        lines += [
            f"  - match: '{match}'",
            f"    software: package{number}",
            "    version: '%(version)s'",
            f"    versionstr: 'package{number}/%(version)s'",
        ]
    file.write_text("\n".join(lines))


def paths(rules: RuleSet) -> Iterator[bytes]:
    """Distinct paths without end: those of the ready rules' own tests, and a site's."""
    known = [path_bytes(test.path) for file in rules.files for test in file.expectations]
    for number in itertools.count():
        for path in known:
            head, _, tail = path.rpartition(b"/")
            yield b"%s/%d/%s" % (head, number, tail)
        for place in range(0, SITE_RULES, 5):
            yield b"/pdc/vol/package%d/%d.1/bin/x" % (place, number)
        yield b"/nobody/knows/%d" % number


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best(work: Callable[[], object]) -> float:
    return min(seconds(work) for _ in range(3))


def name_all(rules: RuleSet, chosen: Sequence[bytes]) -> None:
    for path in chosen:
        rules.name(path)


def ask_one_by_one(patterns: Sequence[re.Pattern[str]], chosen: Sequence[bytes]) -> None:
    for path in chosen:
        text = path.decode("utf-8", "surrogateescape")
        next((pattern for pattern in patterns if pattern.match(text)), None)


def main() -> None:
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "site.yaml")
        site_rules(file)
        rules = RuleSet.load([file], ready=True)
    chosen = list(itertools.islice(paths(rules), 2 * PATHS))
    assert len(set(chosen)) == len(chosen)
    name_all(rules, chosen[:SAMPLE])
    once = seconds(lambda: name_all(rules, chosen[:PATHS]))
    twice = seconds(lambda: name_all(rules, chosen))
    patterns = [re.compile(rule.pattern.text) for read in rules.files for rule in read.rules]
    plain = seconds(lambda: ask_one_by_one(patterns, chosen[:: len(chosen) // SAMPLE]))
    ratio = plain / SAMPLE / (once / PATHS)
    figures.row(
        f"{PATHS:,} distinct paths named by {len(patterns)} rules",
        f"Python's re, rule by rule: 1.0 ({plain / SAMPLE * 1e6:.0f} us a path)",
        f"{ratio:.1f} x ({once:.2f} s)",
        "5 x",
        reached=ratio >= 5,
    )
    figures.row(
        "twice as many paths",
        "-",
        f"{twice / once:.2f} x the time",
        "2.4 x",
        reached=twice < 2.4 * once,
    )
    half, whole = b"/" + b"a/" * 1024, b"/" + b"a/" * 2048
    growth = best(lambda: name_all(rules, [whole] * 50)) / best(
        lambda: name_all(rules, [half] * 50)
    )
    short = [("/" + "a/" * length).encode() for length in (64, 128)]
    theirs = [best(lambda path=path: ask_one_by_one(patterns, [path])) for path in short]  # type: ignore[misc]
    figures.row(
        "a path of 4,096 characters (a/a/a/...) against one of 2,048",
        f"Python's re, 256 against 128 characters: {theirs[1] / theirs[0]:.1f} x the time",
        f"{growth:.2f} x the time",
        "2.4 x",
        reached=growth < 2.4,
    )
    figures.end()


if __name__ == "__main__":
    main()
