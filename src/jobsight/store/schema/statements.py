"""The statements of the write path: those of ``sql/write.sql``, and those that are generated from
lists of fields.

The lists of names here are the only place that fixes the order of columns; what writes or reads
such rows is built from the same lists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from jobsight.model import ExecutableUse, GpuUse, JobInfo, Sighting, StepUse
from jobsight.store.sql.load import load_statements

#: The revision of :mod:`jobsight.store.schema.migrations` that these statements need; a test
#: compares the two.
VERSION: Final = "0004"

#: Sums of figures saturate here instead of overflowing.
HIGHEST: Final = 2**63 - 1

#: The columns of ``runs`` that are fields of JobInfo, without the key of the run.
INFO_NAMES: Final = tuple(
    name for name in JobInfo.__struct_fields__ if name not in ("cluster", "job_id", "start")
)
#: The columns of ``run_nodes`` that identify a sighting within its cluster.
SIGHTING_KEY: Final = ("job_id", "node", "boot_id", "birth")
#: The columns of ``run_nodes`` that every part may change.
NODE_FIGURES: Final = (
    *("epoch", "written", "totals", "cpu_time", "memory_used_peak", "memory_peak"),
    *("first_sample", "last_sample", "final", "open_chunks", "stored_values", "stored_rows"),
)
#: The figures of an executable that add up over epochs.
SUMMED_FIGURES: Final = (
    *("executions", "processes", "cpu_time", "cpu_user", "cpu_system", "cpu_estimated"),
    *("read_bytes", "written_bytes", "failures", "gpu_time"),
)
#: The figures of an executable of which the highest of all epochs counts.
PEAK_FIGURES: Final = ("peak_memory", "gpu_memory_peak")


class RunSums(NamedTuple):
    """The columns of ``runs`` that are summed over the nodes."""

    cpu_time: int | None = None
    memory_used_peak: int | None = None
    memory_peak: int | None = None
    #: Sightings without a final report; None before the first sighting.
    open_nodes: int | None = None
    sightings: int | None = None
    #: Nodes with a sighting.
    reporting_nodes: int | None = None
    first_seen: int | None = None
    last_seen: int | None = None
    # As GpuSums of jobsight.store.write.gpus has them; None for a run without GPUs.
    gpu_count: int | None = None
    gpu_unused_count: int | None = None
    gpu_held_time: int | None = None
    gpu_measured_time: int | None = None
    gpu_profiled_time: int | None = None
    gpu_used_time: int | None = None
    gpu_memory_peak: int | None = None
    gpu_energy: int | None = None


def path_digest(path: bytes) -> bytes:
    """The key of a path in ``paths``."""
    return hashlib.blake2b(path, digest_size=16).digest()


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

#: Every change makes the rollups, the findings and the archive stale.
_CHANGED: Final = "stale = true, unjudged = true, changes = changes + 1, archived_updated = NULL"
#: The order of the values of INSERT_RUN and UPDATE_RUN.
RUN_NAMES: Final = ("start", "provisional", "updated", *INFO_NAMES, "id")
INSERT_RUN: Final = _insert("runs", "cluster", "job_id", *RUN_NAMES, *RunSums._fields)
UPDATE_RUN: Final = f"UPDATE runs SET {_set(*RUN_NAMES[:-1])}, {_CHANGED} WHERE id = :id"
#: Adds what a part changed; the cost does not depend on the number of nodes.
UPDATE_SUMS: Final = (
    f"UPDATE runs SET {_set('updated', *RunSums._fields)}, {_CHANGED} WHERE id = :id"
)
#: The sums that nearly every part of a running job changes.
MOVING_SUMS: Final = ("cpu_time", "memory_used_peak", "memory_peak", "last_seen")
#: The same where only those have changed. SQLite writes every index of which a column is named in
#: the statement, changed or not, and the state of a run depends on its open nodes.
UPDATE_MOVING_SUMS: Final = (
    f"UPDATE runs SET {_set('updated', *MOVING_SUMS)}, {_CHANGED} WHERE id = :id"
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
    _SQL["delete_dead_letters_of_run"],
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
COUNT_SIGHTINGS_OF_NODE: Final = _SQL["count_sightings_of_node"]
COUNT_ROWS_OF_NODE: Final = _SQL["count_rows_of_node"]
FIGURES_OF_RUN: Final = _SQL["figures_of_run"]
COUNT_SIGHTINGS: Final = _SQL["count_sightings"]

# Time series

INSERT_CHUNK: Final = _SQL["insert_chunk"]


class ChunkStatements(NamedTuple):
    """The statements by which chunks of one table are joined. A chunk belongs to an owner."""

    insert: str
    up_to: str
    delete_up_to: str

    @classmethod
    def of(cls, sql: Mapping[str, str]) -> ChunkStatements:
        """Those of a file of statements."""
        return cls(sql["insert_chunk"], sql["chunks_up_to"], sql["delete_chunks_up_to"])


#: The owner is a row of ``run_nodes``.
RUN_CHUNKS: Final = ChunkStatements.of(_SQL)

# Executables

INSERT_PATH: Final = _SQL["insert_path"]
FIND_PATH: Final = _SQL["find_path"]
FIND_PATHS: Final = _SQL["find_paths"]
#: The fields of ExecutableUse that are figures, in their order.
_USE_FIGURES = tuple(
    name for name in ExecutableUse.__struct_fields__ if name not in ("path", "path_known")
)
EXECUTABLE_KEY: Final = ("run_node_id", "path_id", "path_known", "epoch")
#: The order of the values of UPSERT_EXECUTABLE, and of the rows of FIND_EXECUTABLES.
EXECUTABLE_NAMES: Final = (
    *("run_node_id", "path_id", "path_known", "epoch", "sequence"),
    *_USE_FIGURES,
)
#: A row that is as it is stored is not written again. It then keeps its sequence, which decides
#: nothing: figures are cumulative, so a batch between two equal rows has the same figures.
UPSERT_EXECUTABLE: Final = (
    _insert("executables", *EXECUTABLE_NAMES)
    + " ON CONFLICT (run_node_id, path_id, path_known, epoch) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in ("sequence", *_USE_FIGURES))
    + " WHERE excluded.sequence >= executables.sequence AND "
    + f"({', '.join(f'excluded.{name}' for name in _USE_FIGURES)})"
    + f" <> ({', '.join(f'executables.{name}' for name in _USE_FIGURES)})"
)
#: Keys are EXECUTABLE_KEY.
FIND_EXECUTABLES: Final = f"""
    WITH wanted({", ".join(EXECUTABLE_KEY)}) AS (VALUES :keys)
    SELECT {", ".join(f"own.{name}" for name in EXECUTABLE_NAMES)}
    FROM wanted CROSS JOIN executables AS own
    WHERE {" AND ".join(f"own.{name} = wanted.{name}" for name in EXECUTABLE_KEY)}
"""

# Steps

FIND_STEPS: Final = _SQL["find_steps"]


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


#: GPU time counts from zero in each agent epoch. The batches of a node come in order, so an epoch
#: other than the stored one is a new one if it is later. A row of the archive has no epoch.
_STEP_GPU_GROWTH: Final = """CASE
    WHEN steps.gpu_epoch = excluded.gpu_epoch THEN
        CASE WHEN excluded.gpu_time > steps.gpu_epoch_time
            THEN excluded.gpu_time - steps.gpu_epoch_time ELSE 0 END
    WHEN steps.gpu_epoch <> excluded.gpu_epoch THEN
        CASE WHEN excluded.last_seen >= steps.last_seen THEN excluded.gpu_time ELSE 0 END
    WHEN excluded.gpu_time > steps.gpu_time THEN excluded.gpu_time - steps.gpu_time
    ELSE 0 END"""
_STEP_GPU_IS_LATER: Final = """excluded.gpu_epoch IS NOT NULL AND (
    steps.gpu_epoch IS NULL
    OR (steps.gpu_epoch = excluded.gpu_epoch AND excluded.gpu_time > steps.gpu_epoch_time)
    OR (steps.gpu_epoch <> excluded.gpu_epoch AND excluded.last_seen >= steps.last_seen))"""
_STEP_GPU: Final = f"""
    gpu_time = CASE
        WHEN steps.gpu_time IS NULL THEN excluded.gpu_time
        WHEN excluded.gpu_time IS NULL THEN steps.gpu_time
        WHEN steps.gpu_time > {HIGHEST} - ({_STEP_GPU_GROWTH}) THEN {HIGHEST}
        ELSE steps.gpu_time + ({_STEP_GPU_GROWTH}) END,
    gpu_epoch = CASE WHEN {_STEP_GPU_IS_LATER} THEN excluded.gpu_epoch ELSE steps.gpu_epoch END,
    gpu_epoch_time = CASE WHEN {_STEP_GPU_IS_LATER}
        THEN excluded.gpu_epoch_time ELSE steps.gpu_epoch_time END
"""
#: Other figures of a step are cumulative since its creation, across agent epochs. A time of zero is
#: one that the agent did not know.
UPSERT_STEP = (
    _insert("steps", "run_node_id", *StepUse.__struct_fields__, "gpu_epoch", "gpu_epoch_time")
    + " ON CONFLICT (run_node_id, step) DO UPDATE SET "
    + _STEP_GPU
    + ", "
    + ", ".join(map(_newer, ("cpu_time", "cpu_overhead", "oom_kills")))
    + ", "
    + ", ".join(map(_highest, ("tasks", "memory_peak", "gpu_memory_peak", "last_seen")))
    + """, ended = steps.ended OR excluded.ended,
        first_seen = CASE
            WHEN steps.first_seen = 0
                OR (excluded.first_seen > 0 AND excluded.first_seen < steps.first_seen)
            THEN excluded.first_seen ELSE steps.first_seen END
    """
)

# GPUs

#: The columns of ``gpus`` that are fields of GpuUse.
GPU_NAMES: Final = GpuUse.__struct_fields__
#: Computed from them when a row is written, for queries that sum over many runs.
GPU_DERIVED: Final = ("measured_time", "used_time")
UPSERT_GPU: Final = (
    _insert("gpus", "run_node_id", "epoch", "sequence", *GPU_NAMES, *GPU_DERIVED)
    + " ON CONFLICT (run_node_id, key, epoch) DO UPDATE SET "
    + ", ".join(
        f"{name} = excluded.{name}"
        for name in ("sequence", *GPU_NAMES, *GPU_DERIVED)
        if name != "key"
    )
    + " WHERE excluded.sequence >= gpus.sequence"
)
#: The sighting, the epoch and sequence, and GPU_NAMES. Keys are ids of sightings.
FIND_GPUS: Final = f"""
    WITH wanted(id) AS (VALUES :keys)
    SELECT {", ".join(f"gpus.{name}" for name in ("run_node_id", "epoch", "sequence", *GPU_NAMES))}
    FROM wanted CROSS JOIN gpus WHERE gpus.run_node_id = wanted.id
"""
#: The node, and GPU_NAMES.
GPUS_OF_RUN: Final = f"""
    SELECT run_nodes.node, {", ".join(f"gpus.{name}" for name in GPU_NAMES)}
    FROM run_nodes JOIN gpus ON gpus.run_node_id = run_nodes.id
    WHERE run_nodes.run_id = :id
"""
