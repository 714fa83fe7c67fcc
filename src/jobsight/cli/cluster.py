"""``jobsight cluster``: nodes, partitions and load at a glance, as the last scrape saw them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobsight.cli.arguments import (
    CommandParser,
    add_json_option,
    add_store_options,
    existing_store,
)
from jobsight.cli.output import Table, print_table, write_json
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError
from jobsight.text import readable_text
from jobsight.util.units import format_bytes, format_count, format_duration, format_share

if TYPE_CHECKING:
    from jobsight.reports.cluster import Amount, ClusterView
    from jobsight.scheduler.records import NodeInfo

_WIDTH = 30
#: Waiting reasons and lost nodes that are shown before the rest is only counted.
_SHOWN = 12


def cluster(
    *, name: str | None, nodes: bool, json: bool, store: str | None, config: str | None
) -> None:
    """Show the allocated, idle and unavailable resources of a cluster, and its pending jobs.

    Slurm is not queried: the figures are those of the last scrape (see `jobsight scrape`).
    """
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.reports.cluster import view_cluster
    from jobsight.scheduler.records import NodeInfo
    from jobsight.store.snapshot import read_snapshot, snapshot_clusters
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        chosen = _chosen(name, snapshot_clusters(opened.database))
        listed = {
            one: read_snapshot(opened.database, one, "node", NodeInfo) for one in chosen if nodes
        }
        views = [view_cluster(opened, one) for one in chosen]
    if json:
        write_json(listed if nodes else views)
        return
    for index, view in enumerate(views):
        if index:
            print()
        _print_head(view)
        if nodes:
            _print_nodes(listed[view.cluster])
        else:
            _print_view(view)


def _chosen(name: str | None, known: list[str]) -> list[str]:
    if not known:
        raise ConfigError("no cluster has been scraped yet; see `jobsight scrape --help`")
    if name is not None and name not in known:
        raise ConfigError(
            f"there is no cluster {name!r} in the store; there are {', '.join(known)}"
        )
    return known if name is None else [name]


def _print_head(view: ClusterView) -> None:
    age = "never" if view.scraped is None else _ago(view.scraped)
    print(f"{view.cluster}   {view.running} running, {view.pending} pending   scraped {age}")
    if view.reason:
        print(f"jobsight: {view.cluster}: {view.reason}", file=sys.stderr)


def _ago(time_seen: int) -> str:
    return f"{format_duration(max(0, time.time_ns() - time_seen))} ago"


def _print_view(view: ClusterView) -> None:
    amounts = {"CPUs": view.cpus, "memory": view.memory}
    amounts |= {f"GPUs {readable_text(kind)}": amount for kind, amount in view.gpus.items()}
    table = Table("", "allocated", "share", "idle", "of", right=("share", "idle", "of"))
    for title, amount in amounts.items():
        shown = format_bytes if title == "memory" else format_count
        cells = (_bar(amount), format_share(amount.share), shown(amount.idle), shown(amount.total))
        table.add(title, *cells)
    print_table(table)
    states = ", ".join(f"{count} {state}" for state, count in view.node_states.items())
    print(f"\nnodes    {states or 'none'}")
    if view.pending_reasons:
        first = list(view.pending_reasons.items())[:_SHOWN]
        print("pending  " + ", ".join(f"{count} {readable_text(why)}" for why, count in first))
    _print_partitions(view)
    _print_unavailable(view)


def _bar(amount: Amount) -> str:
    """Allocated, then idle, then the rest on unavailable nodes."""
    if not amount.total:
        return ""
    allocated = round(_WIDTH * amount.allocated / amount.total)
    idle = round(_WIDTH * (amount.allocated + amount.idle) / amount.total) - allocated
    return (
        "\N{FULL BLOCK}" * allocated + "\N{LIGHT SHADE}" * idle + "x" * (_WIDTH - allocated - idle)
    )


def _print_partitions(view: ClusterView) -> None:
    right = ("nodes", "CPUs allocated", "idle", "of", "GPUs idle", "limit", "running", "pending")
    table = Table(
        *("partition", "state", *right), right=right, cut=("partition",), optional=("limit",)
    )
    for row in view.partitions:
        nodes = f"{row.nodes_usable}/{row.nodes}" if row.nodes_usable < row.nodes else row.nodes
        gpus = f"{row.gpus.idle}/{row.gpus.total}" if row.gpus.total else ""
        table.add(
            readable_text(row.name),
            (row.state or "").lower(),
            str(nodes),
            format_share(row.cpus.share),
            format_count(row.cpus.idle),
            format_count(row.cpus.total),
            gpus,
            "none" if row.time_limit is None else format_duration(row.time_limit),
            format_count(row.running),
            format_count(row.pending),
        )
    if view.partitions:
        print()
        print_table(table)


def _print_unavailable(view: ClusterView) -> None:
    if not view.unavailable:
        return
    table = Table("unavailable", "state", "since", "by", "reason", wrap=("reason",), cut=("by",))
    for node in view.unavailable[:_SHOWN]:
        since = "" if node.since is None else _ago(node.since)
        words = (node.name, node.state, since, node.user or "", node.reason or "")
        table.add(*(readable_text(word) for word in words))
    print()
    print_table(table)
    if len(view.unavailable) > _SHOWN:
        print(f"and {len(view.unavailable) - _SHOWN} more; see jobsight cluster --nodes")


def _print_nodes(nodes: Sequence[NodeInfo]) -> None:
    from jobsight.reports.cluster import shown_state

    right = ("CPUs", "load", "memory", "free")
    table = Table("node", "state", *right, "GPUs", "partitions", right=right, wrap=("partitions",))
    for node in nodes:
        used = sum(node.gres_used.values())
        gres = ",".join(f"{name}:{count}" for name, count in node.gres.items())
        table.add(
            readable_text(node.name),
            shown_state(node),
            f"{node.cpus_allocated or 0}/{node.cpus or 0}",
            "" if node.load is None else f"{node.load:.2f}",
            format_bytes(node.memory),
            format_bytes(node.memory_free),
            f"{used} of {readable_text(gres)}" if gres else "",
            readable_text(",".join(node.partitions)),
        )
    print()
    print_table(table)


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("cluster", cluster.__doc__)
    parser.add_argument("name", nargs="?", help="Cluster (default: all)")
    parser.add_argument("--nodes", "-N", action="store_true", help="List all nodes")
    add_json_option(parser)
    add_store_options(parser)
    return parser.run(cluster, arguments)
