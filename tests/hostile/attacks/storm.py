"""Short programs with names of 15 characters, gone before anybody reads their links, and forks.

The command name of a process has 15 characters at most, so whoever has nothing else than that name
must look for the file. Each program lies in one of many directories full of files.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import deque
from pathlib import Path

from tests.hostile.attacks.common import Attack, Pace, main, parser


def attack(running: Attack) -> None:
    options = running.options
    directories = [options.directory / f"d{number:04}" for number in range(options.directories)]
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(options.files):
            (directory / f"file-{number:010}").touch()
    pace = Pace(running, options.rate)
    alive: deque[int] = deque()
    while running.goes_on():
        if running.random.random() < 0.1:
            _fork(running, options.forks)
        program = running.random.choice(directories) / f"p{running.random.randrange(10**14):014}"
        shutil.copyfile("/bin/true", program)
        program.chmod(0o755)
        alive.append(os.posix_spawn(program, [os.fsdecode(program)], {}))
        program.unlink()
        running.counts["executed"] += 1
        while len(alive) > options.width:
            os.waitpid(alive.popleft(), 0)
        pace.wait()
    for pid in alive:
        os.waitpid(pid, 0)


def _fork(running: Attack, count: int) -> None:
    children = []
    for _ in range(count):
        try:
            child = os.fork()
        except OSError:
            running.counts["fork refused"] += 1
            break
        if child == 0:
            os._exit(0)
        children.append(child)
        running.counts["forked"] += 1
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    made = parser(__doc__)
    made.add_argument("--directory", type=Path, required=True, help="where files are made")
    made.add_argument("--directories", type=int, default=8)
    made.add_argument("--files", type=int, default=500, help="files of each directory")
    made.add_argument("--rate", type=float, default=200, help="programs a second")
    made.add_argument("--width", type=int, default=20, help="programs at a time")
    made.add_argument("--forks", type=int, default=100, help="processes of one burst")
    sys.exit(main(attack, made, sys.argv[1:]))
