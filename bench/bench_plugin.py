"""What Slurm's profile plugin costs a job, whatever is at the other end: run time and exit code of
a step, how soon its node is free again, and slurmstepd's peak memory, with and without it."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.figures import Figures
from tests.bed import BedUnavailableError
from tests.plugin.gateways import gateway, hanging
from tests.ports import free_port
from tests.slurm.profiled import Host, Outcome, compare, median, profiled

ROUNDS = 7
SECONDS = 3
#: The time of one and the same step differs by as much from one run to the next.
SLOWER = 1.05
#: The plugin's pages and its thread are some 0.2 MiB, and the peak itself varies by as much.
LARGER = 1.1


def measure() -> dict[str, Outcome]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = {
            "without": Host(None),
            "a gateway that answers": Host(stack.enter_context(gateway()).url),
            "a gateway that is stopped": Host(f"http://127.0.0.1:{free_port()}"),
            "a gateway that hangs": Host(stack.enter_context(hanging())),
            "a gateway that answers 500": Host(stack.enter_context(gateway(500)).url),
            "a gateway whose name cannot be resolved": Host("http://gateway.invalid:9091"),
            "an agent that is unreachable": Host(f"unix:{folder}/nobody.sock"),
        }
        cluster, nodes = stack.enter_context(profiled(hosts))
        rounds = [compare(cluster, nodes, SECONDS) for _ in range(ROUNDS)]
    return {kind: median([one[kind] for one in rounds]) for kind in hosts}


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("needs root, for a real Slurm")
    figures = Figures()
    try:
        outcomes = measure()
    except BedUnavailableError as error:
        sys.exit(str(error))
    peer = outcomes.pop("without")
    for kind, ours in outcomes.items():
        time_ratio, memory_ratio = ours.seconds / peer.seconds, ours.memory / peer.memory
        figures.row(
            f"a profiled step, {kind}",
            f"without the plugin: {peer.seconds:.2f} s, node free after {peer.freed:.2f} s, "
            f"exit code {peer.code:.0f}, slurmstepd {peer.memory / 1024:.2f} MiB",
            f"{ours.seconds:.2f} s ({time_ratio:.3f}), {ours.freed:.2f} s, {ours.code:.0f}, "
            f"{ours.memory / 1024:.2f} MiB ({memory_ratio:.3f})",
            f"the same (time up to {SLOWER}, memory up to {LARGER})",
            reached=time_ratio <= SLOWER and memory_ratio <= LARGER and ours.code == peer.code,
        )
    figures.end()


if __name__ == "__main__":
    main()
