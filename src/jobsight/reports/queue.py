"""The queue of a cluster: why jobs wait, and which have waited the longest."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final

import msgspec

from jobsight.model import JobInfo
from jobsight.reports.build import display_id
from jobsight.scheduler.cluster_metrics import count_tasks
from jobsight.scheduler.records import JobRecord
from jobsight.store.read import viewed
from jobsight.store.read.visibility import Visibility
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store
from jobsight.util.outer import Duration, Time

#: Jobs in the list of those that have waited the longest.
MAX_LONGEST: Final = 15
#: Slurm's reasons why a job waits, as sentences for its user.
_REASONS: Final = {
    "Priority": "Jobs with a higher priority are ahead of it.",
    "Resources": "It is next, and waits until enough nodes, CPUs, memory or GPUs are free.",
    "Dependency": "It waits for another job to end.",
    "DependencyNeverSatisfied": "The job that it depends on ended otherwise; it will never start.",
    "BeginTime": "Its user requested a later start.",
    "JobHeldUser": "Its user holds it; `scontrol release` lets it start.",
    "JobHeldAdmin": "An administrator holds it.",
    "JobArrayTaskLimit": "As many tasks of its array run as the array allows at a time.",
    "Licenses": "It waits for a licence.",
    "Reservation": "It waits for its reservation to begin.",
    "ReservationDeleted": "The reservation that it requests was deleted; it will never start.",
    "ReqNodeNotAvail": "A node that it needs is down, drained or reserved.",
    "NodeDown": "A node that it needs is down.",
    "PartitionDown": "Its partition starts no jobs.",
    "PartitionInactive": "Its partition accepts no jobs.",
    "PartitionNodeLimit": "It requests more nodes than its partition allows.",
    "PartitionTimeLimit": "It requests more time than its partition allows.",
    "BadConstraints": "No node can satisfy its constraints; it will never start.",
    "InvalidAccount": "Its account is not valid.",
    "InvalidQOS": "Its quality of service is not valid.",
    "Cleaning": "Its last run is being cleaned up.",
    "Prolog": "The prolog of its nodes runs.",
    "FrontEndDown": "No front end is available.",
    "None": "Slurm has not considered it yet.",
    "unknown": "Slurm gave no reason.",
}
#: By the beginning of the reason, where Slurm has dozens of the same sort.
_KINDS: Final = (
    ("QOS", "A limit of its quality of service is reached."),
    ("Assoc", "A limit of its account or user is reached."),
    ("Max", "A limit of its account or user is reached."),
    ("Nodes", "A node that it needs is not available."),
    ("ReqNodeNotAvail", "A node that it needs is down, drained or reserved."),
)


class WaitReason(msgspec.Struct, kw_only=True):
    """The pending jobs with one reason of Slurm."""

    reason: str
    text: str
    #: An array has one record for all its pending tasks; each task is counted.
    jobs: int
    cpus: int
    gpus: int
    #: The longest and the median time since the submission.
    longest: Duration | None
    median: Duration | None


class PendingJob(msgspec.Struct, kw_only=True):
    """One pending job."""

    run: str
    display_id: str
    name: str | None
    user: str | None
    account: str | None
    partition: str | None
    reason: str
    text: str
    submit: Time | None
    waited: Duration | None = msgspec.field(name="waited_seconds")
    expected_start: Time | None
    priority: int | None
    cpus: int | None
    gpus: int | None
    nodes: int | None


class QueueView(msgspec.Struct, kw_only=True):
    """The pending jobs of a cluster."""

    jobs: int
    reasons: list[WaitReason]
    #: Those that the viewer may see, and how many these are.
    longest: list[PendingJob]
    visible: int


def view_queue(store: Store, cluster: str, visibility: Visibility, now: int) -> QueueView:
    """Read the queue from the snapshot of the last scrape."""
    records = read_snapshot(store.database, cluster, "pending", JobRecord)
    by_reason: dict[str, list[JobRecord]] = {}
    for record in records:
        by_reason.setdefault(record.reason or "unknown", []).append(record)
    reasons = [_reason(reason, group, now) for reason, group in by_reason.items()]
    visible = [record for record in records if _is_visible(record.info, visibility)]
    visible.sort(key=lambda record: (record.info.submit is None, record.info.submit or 0))
    return QueueView(
        jobs=sum(map(count_tasks, records)),
        reasons=sorted(reasons, key=lambda each: (-each.jobs, each.reason)),
        longest=[_job(record, now) for record in visible[:MAX_LONGEST]],
        visible=sum(map(count_tasks, visible)),
    )


def _is_visible(info: JobInfo, visibility: Visibility) -> bool:
    return visibility.includes(
        cluster=info.cluster, user=info.user, account=info.account, start=None
    )


def _reason(reason: str, records: Iterable[JobRecord], now: int) -> WaitReason:
    group = list(records)
    waits = [max(0, now - each.info.submit) for each in group if each.info.submit is not None]
    return WaitReason(
        reason=reason,
        text=explain_reason(reason),
        jobs=sum(map(count_tasks, group)),
        cpus=sum((each.info.cpus or 0) * count_tasks(each) for each in group),
        gpus=sum((each.info.gpus or 0) * count_tasks(each) for each in group),
        longest=max(waits, default=None),
        median=round(median(waits)) if waits else None,
    )


def _job(record: JobRecord, now: int) -> PendingJob:
    info = record.info
    viewed.note(info.user)
    reason = record.reason or "unknown"
    tasks = f"{info.job_id}_[{record.array_tasks}]" if record.array_tasks else display_id(info)
    return PendingJob(
        run=f"{info.cluster}:{info.job_id}",
        display_id=tasks,
        name=info.name,
        user=info.user,
        account=info.account,
        partition=info.partition,
        reason=reason,
        text=explain_reason(reason),
        submit=info.submit,
        waited=None if info.submit is None else max(0, now - info.submit),
        expected_start=record.expected_start,
        priority=record.priority,
        cpus=info.cpus,
        gpus=info.gpus,
        nodes=record.node_count,
    )


def explain_reason(reason: str) -> str:
    """A reason of Slurm why a job waits, as a sentence; empty for one that is not known."""
    # "ReqNodeNotAvail, UnavailableNodes:cn[1-3]" names nodes after the reason.
    word = reason.partition(",")[0].strip()
    if word in _REASONS:
        return _REASONS[word]
    return next((text for start, text in _KINDS if word.startswith(start)), "")
