"""Fuzz one target with coverage guidance: ``python -m tests.fuzz.run TARGET --runs N``.

atheris (libFuzzer for Python) instruments jobsight's modules, keeps inputs that reach new code, and
stops at the first exception that is not one of the target's, at a hang, or at too much memory. The
input is then in ``crash-*`` in the working directory. `make fuzz` runs all targets.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import warnings
from pathlib import Path

import atheris

from tests.fuzz.targets import CORPUS, FACTORIES, remove_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=sorted(FACTORIES))
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--random", type=int, default=1, help="number that mutation starts from")
    parser.add_argument("--found", type=Path, help="directory of inputs that reach new code")
    parser.add_argument("--artifacts", default="", help="prefix of files with what was found")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    # Of the standard library what parses for jobsight; it may have been imported already.
    include = ["jobsight", "email"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "email"]:
        del sys.modules[name]
    with atheris.instrument_imports(include=include, enable_loader_override=False):
        target = FACTORIES[options.target]()

    def one_input(data: bytes) -> None:
        with contextlib.suppress(*target.allowed):
            target.parse(data)

    found = options.found or Path("build/fuzz/corpus") / target.name
    found.mkdir(parents=True, exist_ok=True)
    arguments = [
        sys.argv[0],
        f"-runs={options.runs}",
        f"-max_len={target.largest}",
        f"-seed={options.random}",
        # Seconds of one input and megabytes in all: a hang or a bomb is a finding.
        "-timeout=25",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={options.artifacts}",
        str(found),
        str(CORPUS / target.name),
    ]
    if target.words:
        words = found.parent / f"{target.name}.words"
        words.write_text("".join(f"{_quoted(word)}\n" for word in target.words))
        arguments.insert(1, f"-dict={words}")
    if options.seconds:
        arguments.insert(1, f"-max_total_time={options.seconds}")
    atheris.Setup(arguments, one_input)
    try:
        atheris.Fuzz()
    finally:
        remove_files()


def _quoted(word: str) -> str:
    """A line of libFuzzer's dictionary."""
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}"
             for byte in word.encode())  # fmt: skip
    return f'"{"".join(plain)}"'


if __name__ == "__main__":
    main()
