"""`python -m tests.guest run [-- COMMAND]`: run a command in a guest that has cgroup v2 alone."""

import argparse
import shlex
import sys
from pathlib import Path

from tests.bed import interrupts
from tests.bed.errors import BedError
from tests.bed.steps import Steps
from tests.guest import image, machine

DEFAULT_COMMAND = "python3 -m tests.guest.trial"
REQUIREMENTS = [image.PROJECT / "requirements" / name for name in ("agent.txt", "server.txt")]
CACHE = image.PROJECT / ".cache" / "guest"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m tests.guest", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build the image only, if it is not there")
    run = commands.add_parser("run", help="build if needed, boot, run a command in the project")
    for one in (build, run):
        one.add_argument("--cache", type=Path, default=CACHE, help="where the image is kept")
        one.add_argument("--requirements", type=Path, action="append", metavar="FILE",
                         help="Python packages of the image (those that run)")  # fmt: skip
    run.add_argument("--result", type=Path, help="directory for what the command left in /out")
    run.add_argument("--seconds", type=int, default=600, help="time limit of the guest (600)")
    run.add_argument("--systemd", action="store_true", help="systemd as pid 1 of the guest")
    run.add_argument("--reboot", action="store_true",
                     help="let the guest reboot; the command runs once per boot")  # fmt: skip
    run.add_argument("--add", action="append", default=[], metavar="FILE=NAME",
                     help="a file or directory that the guest has as /project/NAME")  # fmt: skip
    run.add_argument("--quiet", action="store_true", help="do not show the guest's console")
    run.add_argument("argv", nargs="*", metavar="COMMAND", help=f"default: {DEFAULT_COMMAND}")
    return top


def main() -> int:
    options = parser().parse_args()
    steps = Steps.on_terminal()
    cache: Path = options.cache.resolve()
    requirements = options.requirements or REQUIREMENTS
    with interrupts.stop_as_interrupt():
        built = image.get(cache, requirements, steps)
        if options.command == "build":
            print(built.folder)
            return 0
        result: Path = options.result or cache / "result"
        command = shlex.join(options.argv) if options.argv else DEFAULT_COMMAND
        echo = None if options.quiet else sys.stderr
        with steps.step("guest: run"):
            pairs = [each.rpartition("=") for each in options.add]
            more = tuple((Path(file), name) for file, _, name in pairs)
            start = machine.Start(options.seconds, options.systemd, options.reboot, more)
            status = machine.run(built, command, result, start, echo)
    if status == machine.TIMED_OUT:
        steps.say(f"The guest did not end within {options.seconds} seconds.")
    elif status == machine.NO_ANSWER:
        steps.say("The guest ended without a result; its console tells why.")
    steps.say(f"Result and console: {result}")
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BedError as error:
        sys.exit(f"jobsight: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
