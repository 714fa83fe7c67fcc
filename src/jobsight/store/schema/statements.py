"""The statements that run for every batch, in the dialect that SQLite and PostgreSQL share.

No RETURNING: SQLite has it since 3.35 only, and enterprise Linux 9 ships 3.34.
"""

from __future__ import annotations

from jobsight.model import ExecutableUse, JobInfo, StepUse

#: The revision of :mod:`jobsight.store.schema.migrations` that these statements are
#: for; a test compares the two.
VERSION = "0001"

#: The columns of ``runs`` that are fields of JobInfo; what names a run is not among them.
INFO_NAMES = tuple(
    name for name in JobInfo.__struct_fields__ if name not in ("cluster", "job_id", "start")
)


#: The figures of an executable that add up over epochs.
SUMMED_FIGURES = (
    "executions",
    "processes",
    "cpu_time",
    "cpu_user",
    "cpu_system",
    "cpu_estimated",
    "read_bytes",
    "written_bytes",
    "failures",
)


def quoted(name: str) -> str:
    """A column's name; some are words of SQL (user, end, partition)."""
    return f'"{name}"'


def _insert(table: str, *names: str) -> str:
    columns = ", ".join(map(quoted, names))
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table} ({columns}) VALUES ({values})"


# Agents, spools, batches

INSERT_AGENT = (
    _insert(
        "agents", "cluster", "node", "version", "written", "received", "clock_skew", "skew_measured"
    )
    + " ON CONFLICT (cluster, node) DO NOTHING"
)
FIND_AGENT = """
    SELECT id, clock_skew, skew_measured FROM agents WHERE cluster = :cluster AND node = :node
"""
UPDATE_AGENT = """
    UPDATE agents SET version = :version, written = :written, received = :received,
        clock_skew = :clock_skew, skew_measured = :skew_measured
    WHERE id = :id
"""
INSERT_SPOOL = _insert("spools", "agent_id", "name") + " ON CONFLICT (agent_id, name) DO NOTHING"
FIND_SPOOL = "SELECT id FROM spools WHERE agent_id = :agent_id AND name = :name"

#: The stretch that holds the number or could be continued by it, and the one that follows.
STRETCH_BEFORE = """
    SELECT first, last FROM batches WHERE spool_id = :spool_id AND first <= :sequence
    ORDER BY first DESC LIMIT 1
"""
STRETCH_AFTER = "SELECT last FROM batches WHERE spool_id = :spool_id AND first = :sequence + 1"
INSERT_STRETCH = _insert("batches", "spool_id", "first", "last")
EXTEND_STRETCH = "UPDATE batches SET last = :last WHERE spool_id = :spool_id AND first = :first"
DELETE_STRETCH = "DELETE FROM batches WHERE spool_id = :spool_id AND first = :first"

#: Inserts nothing where content with this name has been imported before.
INSERT_IMPORT = (
    "INSERT INTO checkpoints (name, value) VALUES (:name, :received) ON CONFLICT (name) DO NOTHING"
)

# Runs

_RUN = ("start", "provisional", "updated", *INFO_NAMES, "id")
_SUMS = ("cpu_time", "memory_used_peak", "memory_peak", "first_seen", "last_seen")
INSERT_RUN = _insert("runs", "cluster", "job_id", *_RUN, *_SUMS)
#: Keys are cluster and job id. The join is written as SQLite takes it: the keys first, then by
#: the index, however large the table is.
RUNS_OF_JOBS = f"""
    WITH wanted(cluster, job_id) AS (VALUES :keys)
    SELECT runs.cluster, runs.job_id, id, start, provisional, {", ".join(map(quoted, INFO_NAMES))}
    FROM wanted CROSS JOIN runs
    WHERE runs.cluster = wanted.cluster AND runs.job_id = wanted.job_id
    ORDER BY start
"""
#: Until when the runs of some jobs were, and who said so.
ENDS_OF_JOBS = """
    WITH wanted(cluster, job_id) AS (VALUES :keys)
    SELECT runs.job_id, runs.start, runs."end", runs.source
    FROM wanted CROSS JOIN runs
    WHERE runs.cluster = wanted.cluster AND runs.job_id = wanted.job_id
"""
UPDATE_RUN = f"""
    UPDATE runs SET start = :start, provisional = :provisional, updated = :updated, stale = true,
        archived_updated = NULL,
        {", ".join(f"{quoted(name)} = :{name}" for name in INFO_NAMES)}
    WHERE id = :id
"""
#: Its share of the sums by day is taken out by whoever sums up next.
REMOVE_RUN = (
    "UPDATE contributions SET dropped = true WHERE run_id = :id",
    "DELETE FROM run_details WHERE run_id = :id",
    "DELETE FROM runs WHERE id = :id",
)
COUNT_NODES_OF_RUN = "SELECT count(*) FROM run_nodes WHERE run_id = :id"

#: Adds what one part changed; cost does not depend on the number of nodes.
ADD_TO_RUN = """
    UPDATE runs SET updated = :updated, stale = true, archived_updated = NULL, cpu_time = :cpu_time,
        memory_used_peak = :memory_used_peak, memory_peak = :memory_peak,
        first_seen = :first_seen, last_seen = :last_seen
    WHERE id = :id
"""

# Nodes of a run

_SUMS_OF_RUN = ", ".join(f"runs.{name}" for name in _SUMS)
#: Sightings' rows, the sums of their runs, and whether the run has other sightings on that node (a
#: cgroup that was made anew, a reboot). Keys are cluster, job id, node, boot id and birth.
FIND_RUN_NODES = f"""
    WITH wanted(cluster, job_id, node, boot_id, birth) AS (VALUES :keys)
    SELECT own.job_id, own.node, own.boot_id, own.birth, own.id, own.run_id, own.epoch,
        own.written, own.totals, own.cpu_time, own.memory_used_peak, own.memory_peak,
        own.first_sample, own.last_sample, own.final, own.open_chunks, {_SUMS_OF_RUN},
        EXISTS (
            SELECT 1 FROM run_nodes AS other
            WHERE other.run_id = own.run_id AND other.node = own.node AND other.id <> own.id
        )
    FROM wanted CROSS JOIN run_nodes AS own CROSS JOIN runs
    WHERE own.cluster = wanted.cluster AND own.job_id = wanted.job_id AND own.node = wanted.node
        AND own.boot_id = wanted.boot_id AND own.birth = wanted.birth AND runs.id = own.run_id
"""
#: The same for a sighting that is new to its run.
SUMS_OF_RUN = f"""
    SELECT {_SUMS_OF_RUN},
        EXISTS (SELECT 1 FROM run_nodes WHERE run_id = :id AND node = :node)
    FROM runs WHERE id = :id
"""
_SIGHTING = ("cluster", "job_id", "node", "boot_id", "birth", "sluid", "restart_count")
_NODE = (
    *("run_id", "epoch", "written", "totals", "cpu_time", "memory_used_peak", "memory_peak"),
    *("first_sample", "last_sample", "final", "open_chunks"),
)
INSERT_RUN_NODE = _insert("run_nodes", *_SIGHTING, "id", *_NODE, "coverage")
RUN_NODES_OF_JOB = """
    SELECT id, run_id, node, boot_id, birth, sluid, restart_count FROM run_nodes
    WHERE cluster = :cluster AND job_id = :job_id
"""
#: Which of some jobs any node has seen.
JOBS_SEEN = """
    WITH wanted(cluster, job_id) AS (VALUES :keys)
    SELECT wanted.cluster, wanted.job_id FROM wanted WHERE EXISTS (
        SELECT 1 FROM run_nodes AS own
        WHERE own.cluster = wanted.cluster AND own.job_id = wanted.job_id
    )
"""
MOVE_RUN_NODE = "UPDATE run_nodes SET run_id = :run_id WHERE id = :id"
UPDATE_RUN_NODE = """
    UPDATE run_nodes SET epoch = :epoch, written = :written, totals = :totals,
        cpu_time = :cpu_time, memory_used_peak = :memory_used_peak, memory_peak = :memory_peak,
        first_sample = :first_sample, last_sample = :last_sample, final = :final,
        open_chunks = :open_chunks, coverage = coalesce(:coverage, coverage)
    WHERE id = :id
"""
FIGURES_OF_RUN = """
    SELECT node, cpu_time, memory_used_peak, memory_peak, first_sample, last_sample FROM run_nodes
    WHERE run_id = :id
"""

# Series

INSERT_CHUNK = _insert("chunks", "run_node_id", "first", "last", "rows", "level", "data", "summary")
CHUNKS_UP_TO = """
    SELECT data FROM chunks WHERE run_node_id = :run_node_id AND level <= :level ORDER BY id
"""
DELETE_CHUNKS_UP_TO = "DELETE FROM chunks WHERE run_node_id = :run_node_id AND level <= :level"

# Executables

INSERT_PATH = _insert("paths", "digest", "path") + " ON CONFLICT (digest) DO NOTHING"
FIND_PATH = "SELECT id FROM paths WHERE digest = :digest"
FIND_PATHS = """
    WITH wanted(digest) AS (VALUES :keys)
    SELECT paths.digest, paths.id FROM wanted CROSS JOIN paths WHERE paths.digest = wanted.digest
"""
#: In the order of ExecutableUse, without its path and whether that is known.
_FIGURES = ExecutableUse.__struct_fields__[2:]
UPSERT_EXECUTABLE = (
    _insert("executables", "run_node_id", "epoch", "sequence", "path_id", "path_known", *_FIGURES)
    + " ON CONFLICT (run_node_id, path_id, path_known, epoch) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in ("sequence", *_FIGURES))
    + " WHERE excluded.sequence >= executables.sequence"
)

# Steps


def _newer(name: str) -> str:
    """The value of the later reading; one that is not known overwrites nothing."""
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


#: Figures of a step are cumulative since its birth, whichever life of the agent reports them.
#: A time of zero is one that the agent did not know.
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
