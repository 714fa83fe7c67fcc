"""Nodes and partitions out of the fixed columns of ``sinfo``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jobsight.scheduler.fields import (
    MIB,
    RecordReader,
    amount,
    number,
    parse_duration,
    parse_gres,
    parse_node_state,
    parse_time,
    words,
)
from jobsight.scheduler.hostlist import expand_hosts
from jobsight.scheduler.records import NodeInfo, Nodes, PartitionInfo, Partitions

NODE_COLUMNS = (
    "NodeList", "PartitionName", "StateComplete", "CPUs", "CPUsState", "CPUsLoad", "Sockets",
    "Cores", "Threads", "Memory", "AllocMem", "FreeMem", "Disk", "Weight", "Gres", "GresUsed",
    "Features", "features_act", "NodeAddr", "NodeHost", "Port", "Version", "UserLong", "Timestamp",
    "Comment", "Extra", "Reason",
)  # fmt: skip
PARTITION_COLUMNS = ("PartitionName", "Available", "Time", "DefaultTime", "Nodes", "CPUsState",
                     "PriorityTier", "PriorityJobFactor", "Groups", "NodeList")  # fmt: skip
_NONE = frozenset({"", "(null)", "N/A", "n/a", "none", "Unknown"})


def nodes_from_rows(rows: Iterable[Mapping[str, str]], cluster: str) -> Nodes:
    """One record for each node; sinfo gives one row for each node in each partition."""
    found: dict[str, NodeInfo] = {}
    result = Nodes(records=[])
    for row in rows:
        partition = _text(row["PartitionName"])
        node = found.get(row["NodeList"])
        if node is None:
            reader = RecordReader(row, f"node {row['NodeList']}")
            node = found[row["NodeList"]] = _node(reader, cluster)
            result.records.append(node)
            result.problems += reader.problems
        if partition:
            node.partitions += (partition,)
    return result


def _node(reader: RecordReader, cluster: str) -> NodeInfo:
    read = reader.read
    state = read(lambda text: parse_node_state([text]), "StateComplete")
    cpus = read(_cpu_states, "CPUsState")
    return NodeInfo(
        cluster=cluster,
        name=str(reader.document["NodeList"]),
        state=state[0] if state else None,
        state_flags=state[1] if state else (),
        reason=read(_text, "Reason"),
        reason_user=read(_user, "UserLong"),
        reason_time=read(parse_time, "Timestamp"),
        address=read(_text, "NodeAddr"),
        host=read(_text, "NodeHost"),
        port=read(amount, "Port"),
        version=read(_text, "Version"),
        sockets=read(amount, "Sockets"),
        cores=read(amount, "Cores"),
        threads=read(amount, "Threads"),
        cpus=read(amount, "CPUs"),
        cpus_allocated=cpus[0] if cpus else None,
        cpus_idle=cpus[1] if cpus else None,
        load=read(_load, "CPUsLoad"),
        memory=read(_mebibytes, "Memory"),
        memory_allocated=read(_mebibytes, "AllocMem"),
        memory_free=read(_mebibytes, "FreeMem"),
        temporary_disk=read(_mebibytes, "Disk"),
        weight=read(amount, "Weight"),
        features=read(words, "Features") or (),
        features_active=read(words, "features_act") or (),
        comment=read(_text, "Comment"),
        extra=read(_text, "Extra"),
        gres=read(parse_gres, "Gres") or {},
        gres_used=read(parse_gres, "GresUsed") or {},
        raw=reader.raw,
    )


def partitions_from_rows(rows: Iterable[Mapping[str, str]], cluster: str) -> Partitions:
    """One record for each partition; sinfo gives one row for each state of its nodes."""
    found: dict[str, PartitionInfo] = {}
    result = Partitions(records=[])
    for row in rows:
        reader = RecordReader(row, f"partition {row['PartitionName']}")
        read = reader.read
        cpus = read(_cpu_states, "CPUsState")
        nodes = read(expand_hosts, "NodeList") or ()
        partition = found.get(row["PartitionName"])
        if partition is None:
            groups = read(words, "Groups") or ()
            partition = found[row["PartitionName"]] = PartitionInfo(
                cluster=cluster,
                name=row["PartitionName"],
                state=(read(_text, "Available") or "").upper() or None,
                nodes=(),
                node_count=0,
                cpus=0,
                time_limit=read(parse_duration, "Time"),
                default_time=read(parse_duration, "DefaultTime"),
                groups_allowed=() if groups == ("all",) else groups,
                priority_tier=read(amount, "PriorityTier"),
                priority_factor=read(amount, "PriorityJobFactor"),
                raw=reader.raw,
            )
            result.records.append(partition)
        partition.nodes = (partition.nodes or ()) + nodes
        partition.node_count = len(partition.nodes)
        partition.cpus = (partition.cpus or 0) + (cpus[3] if cpus else 0)
        result.problems += reader.problems
    return result


def _text(text: str) -> str | None:
    return None if text in _NONE else text


def _user(text: str) -> str | None:
    """ "root(0)": the name alone."""
    return _text(text.partition("(")[0])


def _cpu_states(text: str) -> tuple[int, int, int, int]:
    allocated, idle, other, total = (int(part) for part in text.split("/"))
    return allocated, idle, other, total


def _load(text: str) -> float | None:
    found = number(text)
    return None if found is None else float(found)


def _mebibytes(text: str) -> int | None:
    # FreeMem of a group of nodes is a range; with --Node there is one node in a row.
    found = amount(text)
    return None if found is None else found * MIB
