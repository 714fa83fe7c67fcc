"""One file under names without end: hard links, paths of thousands of bytes, names of software.

Every process lives long enough for its link to be read, so each name is one more row of the job.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import deque
from pathlib import Path

from tests.hostile.attacks.common import Attack, Pace, main, parser

#: Characters that mean something in formats, shells, terminals, SQL or HTML.
STRANGE = (
    b"%(jobid)s",
    b"'\"",
    b"{0}${HOME}`id`",
    b"\n\r\t",
    b"\xff\xfe\x80",
    b" (deleted)",
    b") R 1 1 (",
    b"\x1b[2J",
    b"=HYPERLINK(1)",
    b"<script>",
    b"';DROP TABLE runs;--",
)
#: Bytes of a path; the kernel gives no more than 4,095.
LONGEST = 3800


def attack(running: Attack) -> None:
    options = running.options
    options.directory.mkdir(parents=True, exist_ok=True)
    program = options.directory / "program"
    shutil.copyfile("/bin/sleep", program)
    program.chmod(0o755)
    # The working directory is the deep one: such a path can only be reached step by step.
    top = os.open(options.directory, os.O_RDONLY)
    _descend(options.directory)
    pace = Pace(running, options.rate)
    alive: deque[tuple[int, str | bytes, int | None]] = deque()
    while running.goes_on() or alive:
        if running.goes_on():
            alive.append(_start(running, top))
            pace.wait()
        while alive and (len(alive) > options.width or not running.goes_on()):
            pid, name, directory = alive.popleft()
            os.waitpid(pid, 0)
            os.unlink(name, dir_fd=directory)
            if isinstance(name, str) and "/" in name:
                os.rmdir(os.path.dirname(name), dir_fd=directory)


def _start(running: Attack, top: int) -> tuple[int, str | bytes, int | None]:
    """Link the program to a new name and execute it; its PID, the name, and whose it is."""
    number = running.random.randrange(10**9)
    kind = running.random.choice(("long", "software", "strange"))
    name: str | bytes
    if kind == "long":
        name, directory = f"link{number}", None
        path: str | bytes = f"./{name}"
    else:
        directory = top
        if kind == "software":
            prefix = f"miniconda3/envs/e{number:09}"
            os.makedirs(f"/proc/self/fd/{top}/{prefix}", exist_ok=True)
            name = f"{prefix}/p"
        else:
            name = running.random.choice(STRANGE) + str(number).encode()
        path = os.path.join(os.readlink(os.fsencode(f"/proc/self/fd/{top}")), os.fsencode(name))
    os.link("program", name, src_dir_fd=top, dst_dir_fd=directory)
    running.counts[kind] += 1
    return os.posix_spawn(path, [path, "0.2"], {}), name, directory


def _descend(directory: Path) -> None:
    """Make a path of :data:`LONGEST` bytes and go there."""
    os.chdir(directory)
    length = len(os.fsencode(directory))
    while length + 201 < LONGEST:
        os.makedirs("d" * 200, exist_ok=True)
        os.chdir("d" * 200)
        length += 201


if __name__ == "__main__":
    made = parser(__doc__)
    made.add_argument("--directory", type=Path, required=True, help="where links are made")
    made.add_argument("--rate", type=float, default=200, help="names a second")
    made.add_argument("--width", type=int, default=100, help="programs at a time")
    sys.exit(main(attack, made, sys.argv[1:]))
