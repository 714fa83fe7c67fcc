"""Programs on a file system that leaves some requests without an answer: FUSE, or NFS that hangs.

Whoever else requests the attributes of the running program, such as ``stat("/proc/PID/exe")`` of
root, waits until the file system is unmounted. So does a program that closes a file of it in its
exec, and with it whoever reads what the kernel holds back during an exec, such as ``/proc/PID/io``.
Mounting it needs root, as with fusermount and allow_other; the programs are those of ``--user``.
The mount is in a namespace of its own unless ``--here`` is given, so that other programs of the
machine do not meet it.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.hostile.attacks.common import Attack, main, parser
from tests.hostile.attacks.fuse import FLUSH, GETATTR, Request, SilentFuse, private_mounts

#: Opens a file that its exec closes.
_CLOSES_IN_EXEC = """
import os, sys
os.open(sys.argv[1], os.O_RDONLY | os.O_CLOEXEC)
os.execv("/bin/true", ["true"])
"""


def attack(running: Attack) -> None:
    options = running.options
    if not options.here:
        private_mounts()
    options.directory.mkdir(exist_ok=True)
    content = Path("/bin/sleep").read_bytes()

    def is_silent(request: Request) -> bool:
        if request.operation == GETATTR:
            return request.uid != options.user
        return request.operation == FLUSH

    while running.goes_on():
        served = SilentFuse(options.directory, content, silent=is_silent, allow_other=True)
        with closing(served):
            commands = (
                [str(served.program), str(options.length)],
                [sys.executable, "-c", _CLOSES_IN_EXEC, str(served.program)],
            )
            programs = [
                subprocess.Popen(command, user=options.user, group=options.user, extra_groups=[])
                for command in commands
            ]
            running.pause(options.length)
        for program in programs:
            running.counts["failed run" if program.wait() else "run"] += 1
        running.counts["unanswered"] += len(served.unanswered)


if __name__ == "__main__":
    made = parser(__doc__)
    made.add_argument("--directory", type=Path, required=True, help="mount point")
    made.add_argument("--user", type=int, default=6666, help="uid that is answered")
    made.add_argument("--length", type=float, default=1.0, help="seconds of each program")
    made.add_argument("--here", action="store_true", help="mount for the whole machine")
    sys.exit(main(attack, made, sys.argv[1:]))
