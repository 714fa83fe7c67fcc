"""Slurm's reasons why a job waits, as sentences for its user."""

from __future__ import annotations

from typing import Final

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


def explain_reason(reason: str) -> str:
    """The reason as a sentence; empty for one that is not known."""
    # "ReqNodeNotAvail, UnavailableNodes:cn[1-3]" names nodes after the reason.
    word = reason.partition(",")[0].strip()
    if word in _REASONS:
        return _REASONS[word]
    return next((text for start, text in _KINDS if word.startswith(start)), "")
