"""Who a job is, from the environment that Slurm gives its prolog.

slurmd itself sets these variables for a prolog, and a user has no hand in them. They are believed
only for the job that they name.
"""

from __future__ import annotations

from collections.abc import Mapping

from jobsight.model import SECOND, JobInfo


def info_from_prolog(environment: Mapping[str, str], cluster: str, job_id: int) -> JobInfo | None:
    """What the prolog was told about this job; None where it was told nothing."""
    if environment.get("SLURM_JOB_ID") != str(job_id):
        return None
    start = _number(environment, "SLURM_JOB_START_TIME")
    return JobInfo(
        cluster=environment.get("SLURM_CLUSTER_NAME") or cluster,
        job_id=job_id,
        source="prolog",
        sluid=environment.get("SLURM_JOB_SLUID") or None,
        restart_count=_number(environment, "SLURM_JOB_RESTART_COUNT", "SLURM_RESTART_COUNT"),
        het_job_id=_number(environment, "SLURM_HET_JOB_ID"),
        array_job_id=_number(environment, "SLURM_ARRAY_JOB_ID"),
        array_task_id=_number(environment, "SLURM_ARRAY_TASK_ID"),
        user=environment.get("SLURM_JOB_USER") or None,
        uid=_number(environment, "SLURM_JOB_UID"),
        account=environment.get("SLURM_JOB_ACCOUNT") or None,
        partition=environment.get("SLURM_JOB_PARTITION") or None,
        nodes=_nodes(environment.get("SLURM_JOB_NODELIST", "")),
        start=start * SECOND if start else None,
    )


def _number(environment: Mapping[str, str], *names: str) -> int | None:
    """The first of these that is a number."""
    for name in names:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def _nodes(text: str) -> tuple[str, ...] | None:
    # A list with brackets is Slurm's to expand; the server asks it.
    return tuple(text.split(",")) if text and "[" not in text else None
