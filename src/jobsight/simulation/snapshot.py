"""The made-up site at the end of its year, as a scrape of Slurm would see it: nodes with what the
running jobs hold, some of them drained, partitions, pending jobs, reservations and shares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np

from jobsight.model import SECOND, JobInfo
from jobsight.scheduler.adapters.policy import AssociationInfo, ReservationInfo
from jobsight.scheduler.dependencies import dependencies_of
from jobsight.scheduler.records import JobRecord, NodeInfo
from jobsight.scheduler.state import ScrapeState, write_state
from jobsight.simulation.site import NODE_KINDS, NodeKind, node_records, partition_records
from jobsight.simulation.works import Work, choose
from jobsight.simulation.year import Year
from jobsight.store.chains import record_dependencies
from jobsight.store.database import Database
from jobsight.store.snapshot import Snapshot

_HOUR: Final = 3600 * SECOND
_DAY: Final = 24 * _HOUR
_FIRST_PENDING: Final = 9_000_000
#: One node of so many accepts no jobs.
_BROKEN: Final = 45
_FAULTS: Final = (
    ("IDLE", ("DRAIN",), "DIMM errors, vendor called"),
    ("DOWN", ("NOT_RESPONDING",), "Not responding"),
    ("IDLE", ("DRAIN",), "Kill task failed"),
    ("IDLE", ("DRAIN",), "GPU fell off the bus"),
    ("IDLE", ("MAINTENANCE", "DRAIN"), "New firmware"),
)
#: Reasons of pending jobs, by how often they occur.
_REASONS: Final = (
    *("Priority",) * 9,
    *("Resources",) * 3,
    *("QOSMaxCpuPerUserLimit",) * 2,
    "AssocGrpCpuLimit",
    "Dependency",
    "JobHeldUser",
    "BeginTime",
)


def write_snapshot(
    database: Database, year: Year, cluster: str, running: Iterable[JobInfo]
) -> None:
    """Write the snapshot of one cluster, and that a scrape has succeeded."""
    now = year.end * SECOND
    # Of its own, so that the runs of a year stay the same.
    random = np.random.default_rng([year.seed, 7, len(cluster), ord(cluster[0])])
    own = [info for info in running if info.cluster == cluster]
    pending = list(_pending(year, cluster, random))
    after = dependencies_of((record.info, record) for record in pending)
    record_dependencies(database, after, now)
    reservations = _reservations(cluster, now)
    snapshot = Snapshot(database, cluster, lambda: now)
    snapshot.replace("node", [(each.name, each) for each in _nodes(cluster, own, now)])
    snapshot.replace("partition", [(each.name, each) for each in partition_records(cluster)])
    snapshot.replace("pending", [(str(each.info.job_id), each) for each in pending])
    snapshot.replace("reservation", [(each.name, each) for each in reservations])
    shares = _associations(year, cluster, random)
    snapshot.replace("association", [(each.name, each) for each in shares])
    state = ScrapeState(
        cluster=cluster,
        until=now,
        attempted=now,
        succeeded=now,
        source="made up by jobsight simulate",
        seen=len(own) + len(pending),
    )
    write_state(database, state)


def _nodes(cluster: str, running: Iterable[JobInfo], now: int) -> list[NodeInfo]:
    records = {record.name: record for record in node_records(cluster)}
    for info in running:
        names = [name for name in info.nodes or () if name in records]
        for name in names:
            _allocate(records[name], info, len(names))
    broken = [name for number, name in enumerate(records) if number % _BROKEN == _BROKEN // 2]
    for number, name in enumerate(broken):
        record = records[name]
        record.state, record.state_flags, record.reason = _FAULTS[number % len(_FAULTS)]
        record.reason_user = "root" if record.state == "DOWN" else "operator"
        record.reason_time = now - (number + 1) * 7 * _HOUR
        if record.state == "DOWN":
            _clear(record)
    for record in records.values():
        _set_state(record)
        record.booted = now - 40 * _DAY
        record.version = "25.05.3"
    return list(records.values())


def _allocate(record: NodeInfo, info: JobInfo, nodes: int) -> None:
    """Jobs are placed at random, so that some nodes would have more than they hold."""
    cpus = min((info.cpus or 1) // nodes or 1, (record.cpus or 0) - (record.cpus_allocated or 0))
    record.cpus_allocated = (record.cpus_allocated or 0) + cpus
    record.cpus_idle = (record.cpus or 0) - record.cpus_allocated
    free = (record.memory or 0) - (record.memory_allocated or 0)
    record.memory_allocated = (record.memory_allocated or 0) + min(
        (info.memory or 0) // nodes, free
    )
    for name, count in record.gres.items():
        used = record.gres_used.get(name, 0)
        record.gres_used[name] = min(used + (info.gpus or 0) // nodes, count)


def _clear(record: NodeInfo) -> None:
    record.cpus_allocated, record.cpus_idle, record.memory_allocated = 0, record.cpus, 0
    record.gres_used = {}


def _set_state(record: NodeInfo) -> None:
    allocated = record.cpus_allocated or 0
    record.load = round(allocated * 0.93, 2)
    if record.state == "IDLE" and allocated:
        record.state = "ALLOCATED" if allocated == record.cpus else "MIXED"


def _pending(year: Year, cluster: str, random: np.random.Generator) -> Iterable[JobRecord]:
    """Some dozens of jobs that wait; in a larger year more."""
    now = year.end * SECOND
    kinds = [kind for kind in NODE_KINDS if kind.cluster == cluster]
    works = [work for work in year.works if work.kind.cluster == cluster]
    before: Work | None = None
    for number in range(min(max(year.count // 150, 12), 400) if works else 0):
        work = works[int(random.integers(len(works)))]
        reason = choose(random, _REASONS)
        if reason == "Dependency":
            # The next step of the work of the job before.
            work = before or work
        before = work
        kind: NodeKind = next(each for each in kinds if each.partition == work.kind.partition)
        waited = int(random.exponential(5 * 3600)) * SECOND
        tasks = int(choose(random, (8, 24, 60))) if random.random() < 0.15 else 0
        job_id = _FIRST_PENDING + number
        yield JobRecord(
            info=JobInfo(
                cluster=cluster,
                job_id=job_id,
                source="slurm",
                array_job_id=job_id if tasks else None,
                name=work.name,
                user=work.user.name,
                uid=work.user.uid,
                account=work.user.account,
                partition=kind.partition,
                qos="normal",
                cpus=int(choose(random, (1, 4, 16, 32, 64, 128))),
                memory=int(choose(random, (4, 16, 64, 128))) * 2**30,
                gpus=int(choose(random, (1, 2, 4))) if kind.gpus else None,
                time_limit=int(choose(random, (1, 4, 24, 72))) * _HOUR,
                submit=now - waited,
                state="PENDING",
            ),
            reason=reason,
            array_tasks=f"1-{tasks}" if tasks else None,
            priority=int(random.integers(2_000, 90_000)),
            node_count=1,
            dependency=f"afterok:{job_id - 1}" if reason == "Dependency" else None,
            expected_start=now + int(random.exponential(3 * 3600)) * SECOND
            if reason in ("Priority", "Resources") and random.random() < 0.6
            else None,
        )


def _reservations(cluster: str, now: int) -> list[ReservationInfo]:
    kind = next(kind for kind in NODE_KINDS if kind.cluster == cluster)
    names = kind.node_names()
    return [
        ReservationInfo(
            cluster=cluster,
            name="course",
            start=now - 2 * _HOUR,
            end=now + 4 * _HOUR,
            nodes=names[:4],
            partition=kind.partition,
            accounts=("chem2024",),
            flags=("SPEC_NODES",),
        ),
        ReservationInfo(
            cluster=cluster,
            name="maintenance",
            start=now + 6 * _DAY,
            end=now + 6 * _DAY + 8 * _HOUR,
            nodes=names,
            users=("root",),
            flags=("MAINT", "IGNORE_JOBS"),
        ),
    ]


def _associations(year: Year, cluster: str, random: np.random.Generator) -> list[AssociationInfo]:
    """Each account has its share of the cluster, each user a share of the account."""
    accounts = sorted({user.account for user in year.users})
    shares = {account: int(random.integers(10, 200)) for account in accounts}
    usage = {account: float(random.random()) for account in accounts}
    all_shares, all_usage = sum(shares.values()), sum(usage.values())
    found = []
    for account in accounts:
        members = [user for user in year.users if user.account == account]
        share, used = shares[account] / all_shares, usage[account] / all_usage
        whole = AssociationInfo(
            cluster=cluster,
            account=account,
            parent="root",
            shares=shares[account],
            share=round(share, 6),
            usage_share=round(used, 6),
        )
        found.append(whole)
        weights = random.random(len(members))
        for user, weight in zip(members, weights / weights.sum(), strict=True):
            own = msgspec.structs.replace(
                whole,
                user=user.name,
                parent=None,
                shares=1,
                share=round(share / len(members), 6),
                usage_share=round(used * float(weight), 6),
                fair_share=round(2 ** -(used * float(weight) * len(members) / share), 6),
            )
            found.append(own)
    return found
