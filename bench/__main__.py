"""Run the programs bench/bench_*.py one after the other and write their figures as one table.

A program prints what it likes; each line of the form `| what | peer | measured | to reach |` is a
figure and becomes a row of bench/results.md. It exits with 1 when a figure misses its goal.
"""

import subprocess
import sys
from pathlib import Path

DIRECTORY = Path(__file__).parent
HEADING = ["| what | peer | measured | to reach |", "|---|---|---|---|"]


def main(arguments: list[str]) -> int:
    # Options are those of the one program that is named: `findings_year --runs 1000`.
    first = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    names, options = arguments[:first], arguments[first:]
    known = sorted(path.stem.removeprefix("bench_") for path in DIRECTORY.glob("bench_*.py"))
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"no such program in bench/: {', '.join(unknown)} (there are: {', '.join(known)})")
        return 2
    if options and len(names) != 1:
        print(f"{options[0]}: expected the name of one program before it")
        return 2

    rows: list[str] = []
    failed: list[str] = []
    for name in names or known:
        print(f"== {name}", flush=True)
        # A process of its own each: one program's memory and caches must not colour the next.
        command = [sys.executable, "-m", f"bench.bench_{name}", *options]
        with subprocess.Popen(
            command, cwd=DIRECTORY.parent, stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            for line in program.stdout:
                print(line, end="", flush=True)
                if line.startswith("| "):
                    rows.append(line.rstrip())
        if program.returncode:
            failed.append(name)

    # Part of the table would pass for the whole of it.
    if not names:
        (DIRECTORY / "results.md").write_text("\n".join([*HEADING, *rows]) + "\n")
        print(f"\n{len(rows)} figures are in bench/results.md")
    if failed:
        print(f"failed or short of the goal: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
