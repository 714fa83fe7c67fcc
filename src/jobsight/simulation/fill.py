"""Fill a store with the runs of a made-up year, through the writers that agents and scraper use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from jobsight import __version__
from jobsight.errors import StoreError
from jobsight.model import SECOND, Batch, JobInfo, JobPart
from jobsight.scheduler.dependencies import dependencies_of
from jobsight.simulation.records import SimulatedRun
from jobsight.simulation.site import CLUSTERS
from jobsight.simulation.snapshot import write_snapshot
from jobsight.simulation.year import Year
from jobsight.software.naming import name_all_new
from jobsight.software.rules import RuleSet
from jobsight.store.store import Store
from jobsight.util.durable import write_atomically

#: Runs in one transaction.
_CHUNK: Final = 500
_NODE: Final = "simulation"


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one run of a made-up year."""

    cluster: str
    job_id: int
    #: Kinds of misbehaviour that were planted, and those that are neither right nor wrong.
    labels: tuple[str, ...]
    undecided: tuple[str, ...]
    #: How much agents saw of it: "full", "low" or "none".
    seen: str
    running: bool


def truth_of(run: SimulatedRun) -> Truth:
    return Truth(
        cluster=run.info.cluster,
        job_id=run.info.job_id,
        labels=tuple(sorted(run.labels)),
        undecided=tuple(sorted(run.undecided)),
        seen=run.seen,
        running=run.info.end is None,
    )


def fill(
    store: Store,
    year: Year,
    *,
    append: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Truth]:
    """Write all runs of a year to a store; returns the truth about each.

    A store that has runs is refused, unless ``append`` is set. Runs that are stored already are
    not stored twice, so that an interrupted call can be repeated with ``append``. The programs are
    named by the shipped rules: the site installs its software in directories that these know.
    """
    if not append and store.info().runs:
        raise StoreError(
            f"the store {store.database.where} has runs; expected an empty one, or --append"
        )
    truths: list[Truth] = []
    running: list[JobInfo] = []
    for first in range(0, year.count, _CHUNK):
        runs = list(year.runs(first, min(first + _CHUNK, year.count)))
        _write(store, year, runs, first // _CHUNK)
        truths += [truth_of(run) for run in runs]
        running += [run.info for run in runs if run.info.end is None]
        if progress is not None:
            progress("runs", len(truths), year.count)
    name_all_new(store.database, RuleSet.ready())
    for cluster in CLUSTERS:
        write_snapshot(store.database, year, cluster, running)
    return truths


def _write(store: Store, year: Year, runs: list[SimulatedRun], number: int) -> None:
    for cluster in CLUSTERS:
        own = [run for run in runs if run.info.cluster == cluster]
        if not own:
            continue
        now = max(_last_time(run.info, year) for run in own)
        # First the parts with the runs they belong to, so that a run is written once, with its
        # sums; then the same records again with what only the scheduler knows.
        batch = Batch(
            cluster=cluster,
            node=_NODE,
            spool=f"random seed {year.seed}, {year.count} runs",
            sequence=number,
            written=now,
            monotonic=now,
            agent=__version__,
            jobs=[run.info for run in own],
            parts=list(_parts(own)),
        )
        store.write(batch, received=now)
        # The one before ran some days ago, which Slurm would have forgotten.
        pairs = [(run.info, run.details) for run in own]
        after = [each._replace(submit=0) for each in dependencies_of(pairs)]
        store.record_dependencies(after, now=now)
        store.record_jobs([run.info for run in own], [run.details for run in own], now=now)


def _parts(runs: list[SimulatedRun]) -> Iterator[JobPart]:
    for run in runs:
        yield from run.parts


def _last_time(info: JobInfo, year: Year) -> int:
    return year.end * SECOND if info.end is None else info.end


def write_truth(file: Path, truths: list[Truth]) -> None:
    """Write the truth as a file of JSON lines."""
    write_atomically(file, b"".join(msgspec.json.encode(each) + b"\n" for each in truths))


def read_truth(file: Path) -> list[Truth]:
    """Read a file that :func:`write_truth` has written."""
    return [msgspec.json.decode(line, type=Truth) for line in file.read_bytes().splitlines()]
