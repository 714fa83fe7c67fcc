"""Chains of jobs that depend on each other, which a list shows as one row.

Slurm names a dependency while a job waits, and in the command that submitted it. A chain has the id
of the first job that depends on another, and belongs to one user: a job may depend on those of
others, which must not be counted with it. :func:`record_dependencies` stores which jobs belong to a
chain, whether they have run or not; :func:`link_runs` marks runs that are recorded after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from jobsight.model import SECOND, JobInfo
from jobsight.store.database import Database
from jobsight.store.sql.load import load_statements
from jobsight.store.transaction import Transaction
from jobsight.util.batching import batched

_SQL: Final = load_statements("chains")
_DAY: Final = 86400 * SECOND
#: Jobs of one chain. A job that submits its successor does so for years; the next one begins
#: another chain.
MAX_JOBS: Final = 1000
#: A run that ended longer before the submission of a job is not one that it depends on.
_MAX_AGE: Final = _DAY
#: Nanoseconds after which a job that waited is no longer expected to run.
KEPT: Final = 180 * _DAY
_BATCH_SIZE: Final = 500


class Dependency(NamedTuple):
    """A job that may start only after others."""

    cluster: str
    #: Of the array or the heterogeneous job if it is one.
    job_id: int
    user: str
    submit: int
    after: tuple[int, ...]


class _Job(NamedTuple):
    """As :func:`read_chains` names a job."""

    cluster: str
    user: str
    job_id: int


_Chains: TypeAlias = dict[tuple[str, str, int], int]


def chain_key(info: JobInfo) -> int:
    """The id by which other jobs depend on a job."""
    if info.array_job_id is not None:
        return info.array_job_id
    return info.het_job_id if info.het_job_id is not None else info.job_id


def read_chains(
    transaction: Transaction, jobs: Iterable[tuple[str, int]]
) -> Mapping[tuple[str, str, int], int]:
    """The chains of jobs, by cluster, user and id."""
    keys = list(dict.fromkeys(jobs))
    return {
        _Job(cluster, user, job_id): chain
        for cluster, user, job_id, chain in transaction.look_up(_SQL["chains_of_jobs"], keys)
    }


def record_dependencies(database: Database, dependencies: Iterable[Dependency], now: int) -> int:
    """Store which jobs belong together; returns how many dependencies were new."""
    recorded = 0
    for batch in batched(dependencies, _BATCH_SIZE):
        with database.query() as transaction:
            known = read_chains(transaction, _jobs(batch))
        new = [each for each in batch if not _is_known(each, known)]
        if new:
            with database.write() as transaction:
                _record(transaction, new, now)
        recorded += len(new)
    return recorded


def _jobs(dependencies: Iterable[Dependency]) -> Iterable[tuple[str, int]]:
    return (
        (each.cluster, job_id) for each in dependencies for job_id in (*each.after, each.job_id)
    )


def _is_known(dependency: Dependency, chains: Mapping[tuple[str, str, int], int]) -> bool:
    """Whether all its jobs are in one chain."""
    jobs = (*dependency.after, dependency.job_id)
    found = {chains.get(_Job(dependency.cluster, dependency.user, job_id)) for job_id in jobs}
    return len(found) == 1 and None not in found


def _record(transaction: Transaction, dependencies: Sequence[Dependency], now: int) -> None:
    transaction.lock("job", {f"chains {each.cluster}" for each in dependencies})
    # Another server may have recorded some of them meanwhile.
    chains = dict(read_chains(transaction, _jobs(dependencies)))
    for each in sorted(dependencies, key=lambda each: each.job_id):
        if not _is_known(each, chains):
            _add(transaction, chains, each, now)


def _add(transaction: Transaction, chains: _Chains, dependency: Dependency, now: int) -> None:
    cluster, user = dependency.cluster, dependency.user
    ids = (*sorted(set(dependency.after) - {dependency.job_id}), dependency.job_id)
    jobs = [_Job(cluster, user, job_id) for job_id in ids]
    known = sorted({chains[job] for job in jobs if job in chains})
    # Not the id of a predecessor, which may be a job of somebody else.
    chain = known[0] if known else dependency.job_id
    size = sum(_count(transaction, cluster, user, each) for each in known)
    if size + sum(job not in chains for job in jobs) > MAX_JOBS:
        # The predecessors stay where they are.
        chain, known, jobs = dependency.job_id, [], jobs[-1:]
    for other in known[1:]:
        _join(transaction, chains, cluster, user, other, chain)
    for job in jobs:
        if job not in chains:
            chains[job] = chain
            values = job._asdict() | {"chain": chain, "now": now}
            transaction.execute(_SQL["add_job"], values)
            found = job._asdict() | {"since": dependency.submit - _MAX_AGE}
            _set_chain(transaction, cluster, _SQL["runs_of_job"], found, chain)


def _count(transaction: Transaction, cluster: str, user: str, chain: int) -> int:
    values = {"cluster": cluster, "user": user, "chain": chain}
    return int(transaction.execute(_SQL["count_jobs"], values).fetchone()[0])


def _join(
    transaction: Transaction, chains: _Chains, cluster: str, user: str, other: int, chain: int
) -> None:
    values = {"cluster": cluster, "user": user, "other": other}
    transaction.execute(_SQL["join_chains"], {**values, "chain": chain})
    for job, found in chains.items():
        if (*job[:2], found) == (cluster, user, other):
            chains[job] = chain
    _set_chain(transaction, cluster, _SQL["runs_of_chain"], values, chain)


def _set_chain(
    transaction: Transaction, cluster: str, query: str, values: Mapping[str, object], chain: int
) -> None:
    runs = transaction.execute(query, values).fetchall()
    # As all writers of runs do, which lock the job before its rows.
    transaction.lock("job", {f"{cluster} {job_id}" for _, job_id in runs})
    transaction.execute_many(_SQL["set_chain"], [{"id": id, "chain": chain} for id, _ in runs])


def link_runs(transaction: Transaction, runs: Iterable[tuple[int, JobInfo]]) -> None:
    """Mark runs, by id and record, whose job is known to belong to a chain."""
    keys = [(run_id, info.cluster, chain_key(info)) for run_id, info in runs]
    rows = [
        {"id": run_id, "chain": chain}
        for run_id, chain in transaction.look_up(_SQL["chains_of_new_runs"], keys)
    ]
    transaction.execute_many(_SQL["set_chain"], rows)


def remove_old(transaction: Transaction, now: int) -> None:
    """Remove what is known of jobs that ran long ago; their runs keep their chain."""
    transaction.execute(_SQL["delete_old"], {"before": now - KEPT})
