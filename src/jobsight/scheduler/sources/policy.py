"""Reservations, QOS and associations by Slurm's administrative commands, for every release."""

from __future__ import annotations

from collections.abc import Sequence

from jobsight.scheduler.commands import StreamRunner
from jobsight.scheduler.policy import (
    Policy,
    add_shares,
    parse_columns,
    parse_scontrol,
    read_associations,
    read_qos,
    read_reservations,
)

_QOS = ("Name", "Priority", "UsageFactor", "Flags", "MaxWall", "MaxTRESPU")
_ASSOCIATION = ("Account", "User", "Partition", "ParentName", "Share", "QOS")
_SHARE = ("Account", "User", "NormShares", "EffectvUsage", "FairShare")


def ask_policy(cluster: str, run: StreamRunner, timeout: float) -> Policy:
    """Three short questions, and a fourth for the shares."""

    def ask(*command: str) -> str:
        return b"".join(run(command, timeout)).decode("utf-8", "backslashreplace")

    def rows(columns: Sequence[str], *command: str) -> list[dict[str, str]]:
        return parse_columns(ask(*command), columns, command[0])

    found = Policy()
    found.reservations = read_reservations(
        parse_scontrol(ask("scontrol", "show", "reservation", "--oneliner")),
        cluster,
        found.problems,
    )
    manager = ("sacctmgr", "--parsable2", "--noheader", "--readonly", "show")
    found.qos = read_qos(
        rows(_QOS, *manager, "qos", f"format={','.join(_QOS)}"), cluster, found.problems
    )
    wanted = (f"cluster={cluster}", f"format={','.join(_ASSOCIATION)}")
    found.associations = read_associations(
        rows(_ASSOCIATION, *manager, "associations", *wanted), cluster, found.problems
    )
    layout = f"--format={','.join(_SHARE)}"
    shares = rows(_SHARE, "sshare", "--all", "--parsable2", "--noheader", layout)
    add_shares(found.associations, shares)
    return found
