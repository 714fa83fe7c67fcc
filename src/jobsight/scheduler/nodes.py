"""Nodes and partitions: ``sinfo --json`` to 22.05, ``scontrol show nodes --json``, slurmrestd."""

from __future__ import annotations

from typing import Any

from jobsight.scheduler import readers
from jobsight.scheduler.reader import RecordReader
from jobsight.scheduler.records import NodeInfo, PartitionInfo
from jobsight.scheduler.states import parse_node_state
from jobsight.scheduler.tres import parse_gres, read_tres
from jobsight.scheduler.values import amount, text_or_none, words


def read_node(reader: RecordReader, cluster: str) -> NodeInfo:
    """One node."""
    read = reader.read
    state = read(_node_state, "state")
    more = read(readers.flags, "state_flags") or ()
    flags = dict.fromkeys((*(state[1] if state else ()), *(flag.upper() for flag in more)))
    return NodeInfo(
        cluster=cluster or read(text_or_none, "cluster_name") or "",
        name=read(text_or_none, "name") or "",
        state=state[0] if state else None,
        state_flags=tuple(flags),
        reason=read(text_or_none, "reason"),
        reason_user=read(text_or_none, "reason_set_by_user"),
        reason_time=read(readers.time, "reason_changed_at"),
        address=read(text_or_none, "address"),
        host=read(text_or_none, "hostname"),
        port=read(amount, "port"),
        architecture=read(text_or_none, "architecture"),
        system=read(text_or_none, "operating_system"),
        version=read(text_or_none, "version", "slurmd_version"),
        boards=read(amount, "boards"),
        sockets=read(amount, "sockets"),
        cores=read(amount, "cores"),
        threads=read(amount, "threads"),
        cpus=read(amount, "cpus"),
        cpus_allocated=read(amount, "alloc_cpus"),
        cpus_idle=read(amount, "alloc_idle_cpus", "idle_cpus"),
        load=read(readers.load, "cpu_load"),
        memory=read(readers.mebibytes, "real_memory"),
        memory_allocated=read(readers.mebibytes, "alloc_memory"),
        memory_free=read(readers.mebibytes, "free_mem", "free_memory"),
        temporary_disk=read(readers.mebibytes, "temporary_disk"),
        weight=read(amount, "weight"),
        features=read(readers.flags, "features") or (),
        features_active=read(readers.flags, "active_features") or (),
        partitions=read(readers.flags, "partitions") or (),
        reservation=read(text_or_none, "reservation"),
        owner=read(_owner, "owner"),
        comment=read(text_or_none, "comment"),
        extra=read(text_or_none, "extra"),
        gres=read(_gres, "gres") or {},
        gres_used=read(_gres, "gres_used") or {},
        tres=read(read_tres, "tres") or {},
        tres_used=read(read_tres, "tres_used") or {},
        booted=read(readers.time, "boot_time"),
        daemon_started=read(readers.time, "slurmd_start_time"),
        last_busy=read(readers.time, "last_busy"),
        raw=reader.raw,
    )


def read_partition(reader: RecordReader, cluster: str) -> PartitionInfo:
    """One partition; to 22.05 a flat record, then one with tables inside."""
    read = reader.read
    return PartitionInfo(
        cluster=cluster or read(text_or_none, "cluster") or "",
        name=read(text_or_none, "name") or "",
        state=read(_one_word, "partition.state", "state"),
        nodes=read(readers.hosts, "nodes.configured", "nodes"),
        node_count=read(amount, "nodes.total", "total_nodes"),
        cpus=read(amount, "cpus.total", "total_cpus"),
        time_limit=read(readers.minutes, "maximums.time", "max_time_limit"),
        default_time=read(readers.minutes, "defaults.time", "default_time_limit"),
        accounts_allowed=read(readers.flags, "accounts.allowed", "allowed_accounts") or (),
        accounts_denied=read(readers.flags, "accounts.deny", "denied_accounts") or (),
        groups_allowed=read(readers.flags, "groups.allowed", "allowed_groups") or (),
        qos_allowed=read(readers.flags, "qos.allowed", "allowed_qos") or (),
        qos=read(_text_only, "qos.assigned", "qos"),
        priority_tier=read(amount, "priority.tier", "priority_tier"),
        priority_factor=read(amount, "priority.job_factor", "priority_job_factor"),
        tres=read(read_tres, "tres.configured", "tres") or {},
        raw=reader.raw,
    )


def _node_state(value: Any) -> tuple[str, tuple[str, ...]]:
    return parse_node_state(words(value))


def _one_word(value: Any) -> str | None:
    found = words(value)
    return found[0].upper() if found else None


def _text_only(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _owner(value: Any) -> str | None:
    """A user who has the node alone: a name, or a number."""
    if isinstance(value, str):
        return text_or_none(value)
    found = amount(value)
    return None if found is None else str(found)


def _gres(value: Any) -> dict[str, int]:
    return parse_gres(value) if isinstance(value, str) else parse_gres(",".join(words(value)))
