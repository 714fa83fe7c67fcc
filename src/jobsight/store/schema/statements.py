"""The statements of the write path: those of ``sql/write.sql``, and those that are generated from
lists of fields.

The lists of names here are the only place that fixes the order of columns; what writes or reads
such rows is built from the same lists.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from jobsight.model import ExecutableUse, JobInfo, Sighting, StepUse
from jobsight.store.sql.load import load_statements

#: The revision of :mod:`jobsight.store.schema.migrations` that these statements need; a test
#: compares the two.
VERSION: Final = "0001"

#: The columns of ``runs`` that are fields of JobInfo, without the key of the run.
INFO_NAMES: Final = tuple(
    name for name in JobInfo.__struct_fields__ if name not in ("cluster", "job_id", "start")
)
#: The columns of ``run_nodes`` that identify a sighting within its cluster.
SIGHTING_KEY: Final = ("job_id", "node", "boot_id", "birth")
#: The columns of ``run_nodes`` that every part may change.
NODE_FIGURES: Final = (
    *("epoch", "written", "totals", "cpu_time", "memory_used_peak", "memory_peak"),
    *("first_sample", "last_sample", "final", "open_chunks"),
)
#: The figures of an executable that add up over epochs.
SUMMED_FIGURES: Final = (
    *("executions", "processes", "cpu_time", "cpu_user", "cpu_system", "cpu_estimated"),
    *("read_bytes", "written_bytes", "failures"),
)


class RunSums(NamedTuple):
    """The columns of ``runs`` that are summed over the nodes."""

    cpu_time: int | None = None
    memory_used_peak: int | None = None
    memory_peak: int | None = None
    first_seen: int | None = None
    last_seen: int | None = None


def quoted(name: str) -> str:
    """A column name in quotes; some are keywords of SQL (user, end, partition)."""
    return f'"{name}"'


def _insert(table: str, *names: str) -> str:
    columns = ", ".join(map(quoted, names))
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table} ({columns}) VALUES ({values})"


def _set(*names: str) -> str:
    return ", ".join(f"{quoted(name)} = :{name}" for name in names)


_SQL: Final = load_statements("write")

# Agents, spools, batches

INSERT_AGENT: Final = _SQL["insert_agent"]
FIND_AGENT: Final = _SQL["find_agent"]
UPDATE_AGENT: Final = _SQL["update_agent"]
INSERT_SPOOL: Final = _SQL["insert_spool"]
FIND_SPOOL: Final = _SQL["find_spool"]
INTERVAL_BEFORE: Final = _SQL["interval_before"]
INTERVAL_AFTER: Final = _SQL["interval_after"]
INSERT_INTERVAL: Final = _SQL["insert_interval"]
EXTEND_INTERVAL: Final = _SQL["extend_interval"]
DELETE_INTERVAL: Final = _SQL["delete_interval"]
INSERT_IMPORT: Final = _SQL["insert_import"]

# Runs

#: The order of the values of INSERT_RUN and UPDATE_RUN.
RUN_NAMES: Final = ("start", "provisional", "updated", *INFO_NAMES, "id")
INSERT_RUN: Final = _insert("runs", "cluster", "job_id", *RUN_NAMES, *RunSums._fields)
UPDATE_RUN: Final = (
    f"UPDATE runs SET {_set(*RUN_NAMES[:-1])}, stale = true, archived_updated = NULL WHERE id = :id"
)
#: Adds what a part changed; the cost does not depend on the number of nodes.
UPDATE_SUMS: Final = (
    f"UPDATE runs SET {_set('updated', *RunSums._fields)}, stale = true, archived_updated = NULL "
    "WHERE id = :id"
)
#: Keys are cluster and job id.
RUNS_OF_JOBS: Final = f"""
    WITH wanted(cluster, job_id) AS (VALUES :keys)
    SELECT runs.cluster, runs.job_id, id, start, provisional, {", ".join(map(quoted, INFO_NAMES))}
    FROM wanted CROSS JOIN runs
    WHERE runs.cluster = wanted.cluster AND runs.job_id = wanted.job_id
    ORDER BY start
"""
ENDS_OF_JOBS: Final = _SQL["ends_of_jobs"]
REMOVE_RUN: Final = (
    _SQL["drop_share_of_run"],
    _SQL["delete_details_of_run"],
    _SQL["delete_run"],
)
COUNT_NODES_OF_RUN: Final = _SQL["count_nodes_of_run"]

# Nodes of a run

_SUMS_OF_RUN = ", ".join(f"runs.{name}" for name in RunSums._fields)
#: SIGHTING_KEY, the id and the run id, NODE_FIGURES, RunSums, and whether the run has another
#: sighting on that node (a cgroup that was created again, a reboot). Keys are the cluster and
#: SIGHTING_KEY.
FIND_RUN_NODES: Final = f"""
    WITH wanted(cluster, {", ".join(SIGHTING_KEY)}) AS (VALUES :keys)
    SELECT {", ".join(f"own.{name}" for name in (*SIGHTING_KEY, "id", "run_id", *NODE_FIGURES))},
        {_SUMS_OF_RUN},
        EXISTS (
            SELECT 1 FROM run_nodes AS other
            WHERE other.run_id = own.run_id AND other.node = own.node AND other.id <> own.id
        )
    FROM wanted CROSS JOIN run_nodes AS own CROSS JOIN runs
    WHERE own.cluster = wanted.cluster AND runs.id = own.run_id
        AND {" AND ".join(f"own.{name} = wanted.{name}" for name in SIGHTING_KEY)}
"""
#: RunSums, and whether the run has a sighting on the node.
SUMS_OF_RUN: Final = f"""
    SELECT {_SUMS_OF_RUN},
        EXISTS (SELECT 1 FROM run_nodes WHERE run_id = :id AND node = :node)
    FROM runs WHERE id = :id
"""
INSERT_RUN_NODE: Final = _insert(
    "run_nodes", *Sighting.__struct_fields__, "id", "run_id", *NODE_FIGURES, "coverage"
)
UPDATE_RUN_NODE: Final = (
    f"UPDATE run_nodes SET {_set(*NODE_FIGURES)}, coverage = coalesce(:coverage, coverage) "
    "WHERE id = :id"
)
SIGHTINGS_OF_JOB: Final = _SQL["sightings_of_job"]
JOBS_SEEN: Final = _SQL["jobs_seen"]
MOVE_RUN_NODE: Final = _SQL["move_run_node"]
FIGURES_OF_RUN: Final = _SQL["figures_of_run"]

# Time series

INSERT_CHUNK: Final = _SQL["insert_chunk"]
CHUNKS_UP_TO: Final = _SQL["chunks_up_to"]
DELETE_CHUNKS_UP_TO: Final = _SQL["delete_chunks_up_to"]

# Executables

INSERT_PATH: Final = _SQL["insert_path"]
FIND_PATH: Final = _SQL["find_path"]
FIND_PATHS: Final = _SQL["find_paths"]
#: The fields of ExecutableUse that are figures, in their order.
_USE_FIGURES = tuple(
    name for name in ExecutableUse.__struct_fields__ if name not in ("path", "path_known")
)
UPSERT_EXECUTABLE: Final = (
    _insert(
        *("executables", "run_node_id", "epoch", "sequence", "path_id", "path_known"),
        *_USE_FIGURES,
    )
    + " ON CONFLICT (run_node_id, path_id, path_known, epoch) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in ("sequence", *_USE_FIGURES))
    + " WHERE excluded.sequence >= executables.sequence"
)

# Steps


def _newer(name: str) -> str:
    """The value of the later reading; NULL overwrites nothing."""
    arriving, stored = f"excluded.{name}", f"steps.{name}"
    return (
        f"{name} = CASE WHEN excluded.last_seen >= steps.last_seen "
        f"THEN coalesce({arriving}, {stored}) ELSE coalesce({stored}, {arriving}) END"
    )


def _highest(name: str) -> str:
    arriving, stored = f"excluded.{name}", f"steps.{name}"
    return (
        f"{name} = CASE WHEN {stored} IS NULL OR {arriving} > {stored} "
        f"THEN {arriving} ELSE {stored} END"
    )


#: Figures of a step are cumulative since its creation, across agent epochs. A time of zero is one
#: that the agent did not know.
UPSERT_STEP = (
    _insert("steps", "run_node_id", *StepUse.__struct_fields__)
    + " ON CONFLICT (run_node_id, step) DO UPDATE SET "
    + ", ".join(map(_newer, ("cpu_time", "cpu_overhead", "oom_kills")))
    + ", "
    + ", ".join(map(_highest, ("tasks", "memory_peak", "last_seen")))
    + """, ended = steps.ended OR excluded.ended,
        first_seen = CASE
            WHEN steps.first_seen = 0
                OR (excluded.first_seen > 0 AND excluded.first_seen < steps.first_seen)
            THEN excluded.first_seen ELSE steps.first_seen END
    """
)
