"""Nodes and partitions from the columns of ``sinfo``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jobsight.scheduler.adapters.tables import read_node, read_partition
from jobsight.scheduler.fields import RecordReader
from jobsight.scheduler.records import NodeInfo, Nodes, PartitionInfo, Partitions, Problem

NODE_COLUMNS = (
    "NodeList", "PartitionName", "StateComplete", "CPUs", "CPUsState", "CPUsLoad", "Sockets",
    "Cores", "Threads", "Memory", "AllocMem", "FreeMem", "Disk", "Weight", "Gres", "GresUsed",
    "Features", "features_act", "NodeAddr", "NodeHost", "Port", "Version", "UserLong", "Timestamp",
    "Comment", "Extra", "Reason",
)  # fmt: skip
PARTITION_COLUMNS = ("PartitionName", "Available", "Time", "DefaultTime", "Nodes", "CPUsState",
                     "PriorityTier", "PriorityJobFactor", "Groups", "NodeList")  # fmt: skip
_NOT_SET = frozenset({"", "(null)", "N/A", "n/a", "none", "Unknown"})
_NAMES = frozenset({"NodeList", "PartitionName"})


def nodes_from_rows(rows: Iterable[Mapping[str, str]], cluster: str) -> Nodes:
    """One record per node; sinfo has one row per node and partition."""
    nodes: dict[str, NodeInfo] = {}
    reply = Nodes(records=[])
    for row in rows:
        name, partition = row["NodeList"], row["PartitionName"]
        if not _is_name(name):
            reply.problems.append(Problem(f"node {name[:40]!r}", "NodeList", "is not a node name"))
            continue
        if name not in nodes:
            reader = _reader(row, f"node {name}")
            nodes[name] = read_node(reader, "sinfo", cluster)
            reply.records.append(nodes[name])
            reply.problems += reader.problems
        if partition not in _NOT_SET:
            nodes[name].partitions += (partition,)
    return reply


def partitions_from_rows(rows: Iterable[Mapping[str, str]], cluster: str) -> Partitions:
    """One record per partition; sinfo has one row for each state of its nodes."""
    partitions: dict[str, PartitionInfo] = {}
    reply = Partitions(records=[])
    for row in rows:
        name = row["PartitionName"]
        if not _is_name(name):
            reason = "is not a partition name"
            reply.problems.append(Problem(f"partition {name[:40]!r}", "PartitionName", reason))
            continue
        reader = _reader(row, f"partition {name}")
        part = read_partition(reader, "sinfo", cluster)
        partition = partitions.setdefault(part.name, part)
        if partition is part:
            reply.records.append(part)
            part.nodes, part.cpus = part.nodes or (), part.cpus or 0
        else:
            partition.nodes = (partition.nodes or ()) + (part.nodes or ())
            partition.cpus = (partition.cpus or 0) + (part.cpus or 0)
        partition.node_count = len(partition.nodes or ())
        reply.problems += reader.problems
    return reply


def _is_name(name: str) -> bool:
    """Names have no spaces; a message that a command printed before its rows does."""
    return name.isprintable() and name not in _NOT_SET and not any(map(str.isspace, name))


def _reader(row: Mapping[str, str], label: str) -> RecordReader:
    known = {name: value for name, value in row.items() if value not in _NOT_SET or name in _NAMES}
    return RecordReader(known, label)
