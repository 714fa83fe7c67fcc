"""`python -m tests.bed up|down|status|shell-env`: a Slurm cluster on this machine."""

import argparse
import sys

from tests.bed import guard, register
from tests.bed.cluster import Cluster
from tests.bed.errors import BedError
from tests.bed.settings import Settings
from tests.bed.steps import Steps


def parser() -> argparse.ArgumentParser:
    defaults = Settings()
    top = argparse.ArgumentParser(prog="python -m tests.bed", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("--name", default=defaults.name, help="of the cluster (js1)")
        one.add_argument("--folder", default="", help="where it lives")
        return one

    up = command("up", "Bring the cluster up; nothing happens if it is.")
    up.add_argument("--nodes", type=int, default=defaults.nodes)
    up.add_argument("--cgroup", choices=["auto", "v1", "v2"], default=defaults.cgroup)
    up.add_argument("--systemd", action="store_true", help="with v2: systemd makes the scopes")
    up.add_argument("--gather", default=defaults.gather, help="JobAcctGatherType")
    for hook in ("prolog", "epilog", "task-prolog", "task-epilog"):
        up.add_argument(f"--{hook}", default="", metavar="PATH")
    up.add_argument("--rest", action="store_true", help="slurmrestd on a unix socket as well")
    up.add_argument("--extra", action="append", default=[], metavar="LINE", help="for slurm.conf")
    up.add_argument("--port-base", type=int, default=defaults.port_base)
    up.add_argument("--ready-seconds", type=int, default=defaults.ready_seconds,
                    help="how long to wait for each daemon")  # fmt: skip
    command("down", "Take the cluster down and leave nothing behind.")
    command("status", "Say whether it is up; exit status 0 if so, 3 if not.")
    command("shell-env", "Print the line that makes a shell speak to this cluster.")
    watch = command("guard", "Used by the bed itself: take it down when its owner has died.")
    watch.add_argument("--owner", type=int, required=True)
    watch.add_argument("--owner-start", type=int, required=True)
    watch.add_argument("--mark", required=True)
    return top


def existing(name: str, folder: str, steps: Steps | None = None) -> Cluster:
    """The bed of that name, wherever it was put, or one that is not there."""
    if not folder:
        with register.locked() as entries:
            folder = str(entries.entries.get(name, {}).get("folder", ""))
    found = Cluster.found(folder, steps) if folder else None
    return found or Cluster(steps, name=name, folder=folder)


def main() -> int:
    options = vars(parser().parse_args())
    command = options.pop("command")
    steps = Steps.on_terminal()
    if command == "up":
        Cluster(steps, **options).up()
        return 0
    if command == "guard":
        guard.wait_for_end(options["owner"], options["owner_start"])
    cluster = existing(options["name"], options["folder"], steps)
    if command in ("down", "guard"):
        cluster.down(options.get("mark"))
        return 0
    if not cluster.running():
        print(f"The bed {options['name']} is not up.", file=sys.stderr)
        return 3
    if command == "shell-env":
        print(f"export SLURM_CONF={cluster.settings.slurm_conf}")
        return 0
    for daemon in cluster.daemons():
        print(f"{daemon.name:<16} {daemon.pid}")
    print(f"folder           {cluster.settings.folder}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BedError as error:
        sys.exit(f"jobsight: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
