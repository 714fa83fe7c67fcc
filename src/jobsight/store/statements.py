"""The statements that run for every batch, in the dialect that SQLite and PostgreSQL share.

No RETURNING: SQLite has it since 3.35 only, and enterprise Linux 9 ships 3.34.
"""

from __future__ import annotations

from jobsight.store.tables import INFO_FIELDS, SUMMED_FIGURES

INFO_NAMES = tuple(column.name for column in INFO_FIELDS)


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
        "agents", "cluster", "node", "version", "written", "received", "clock_skew", "skew_found"
    )
    + " ON CONFLICT (cluster, node) DO NOTHING"
)
FIND_AGENT = """
    SELECT id, clock_skew, skew_found FROM agents WHERE cluster = :cluster AND node = :node
"""
UPDATE_AGENT = """
    UPDATE agents SET version = :version, written = :written, received = :received,
        clock_skew = :clock_skew, skew_found = :skew_found
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

# Runs

_RUN = ("cluster", "job_id", "start", *INFO_NAMES, "provisional", "updated")
INSERT_RUN = _insert("runs", *_RUN)
RUNS_OF_JOB = f"""
    SELECT id, start, provisional, {", ".join(map(quoted, INFO_NAMES))}
    FROM runs WHERE cluster = :cluster AND job_id = :job_id ORDER BY start
"""
UPDATE_RUN = f"""
    UPDATE runs SET start = :start, provisional = :provisional, updated = :updated,
        {", ".join(f"{quoted(name)} = :{name}" for name in INFO_NAMES)}
    WHERE id = :id
"""
DELETE_RUN = "DELETE FROM runs WHERE id = :id"
COUNT_NODES_OF_RUN = "SELECT count(*) FROM run_nodes WHERE run_id = :id"

#: Adds what one part changed; cost does not depend on the number of nodes.
ADD_TO_RUN = """
    UPDATE runs SET updated = :updated, cpu_time = :cpu_time, memory_used_peak = :memory_used_peak,
        memory_peak = :memory_peak, first_seen = :first_seen, last_seen = :last_seen
    WHERE id = :id
"""
SUMS_OF_RUN = """
    SELECT cpu_time, memory_used_peak, memory_peak, first_seen, last_seen FROM runs WHERE id = :id
"""

# Nodes of a run

FIND_RUN_NODE = """
    SELECT id, run_id, written, totals, cpu_time, memory_used_peak, memory_peak,
        first_sample, last_sample, final, open_chunks
    FROM run_nodes
    WHERE cluster = :cluster AND job_id = :job_id AND node = :node AND boot_id = :boot_id
        AND birth = :birth
"""
INSERT_RUN_NODE = _insert(
    "run_nodes",
    *("run_id", "cluster", "job_id", "node", "boot_id", "birth", "sluid", "restart_count"),
    *("epoch", "written"),
)
RUN_NODES_OF_JOB = """
    SELECT id, run_id, node, boot_id, birth, sluid, restart_count FROM run_nodes
    WHERE cluster = :cluster AND job_id = :job_id
"""
MOVE_RUN_NODE = "UPDATE run_nodes SET run_id = :run_id WHERE id = :id"
UPDATE_RUN_NODE = """
    UPDATE run_nodes SET epoch = CASE WHEN written <= :written THEN :epoch ELSE epoch END,
        written = CASE WHEN written <= :written THEN :written ELSE written END,
        totals = :totals, cpu_time = :cpu_time, memory_used_peak = :memory_used_peak,
        memory_peak = :memory_peak, first_sample = :first_sample, last_sample = :last_sample,
        final = :final, open_chunks = :open_chunks
    WHERE id = :id
"""
UPDATE_COVERAGE = "UPDATE run_nodes SET coverage = :coverage WHERE id = :id"
#: Other sightings of the run on the same node (a cgroup that was made anew, a reboot).
SIBLINGS = """
    SELECT cpu_time, memory_used_peak, memory_peak FROM run_nodes
    WHERE run_id = :run_id AND node = :node AND id <> :id
"""
FIGURES_OF_RUN = """
    SELECT node, cpu_time, memory_used_peak, memory_peak, first_sample, last_sample FROM run_nodes
    WHERE run_id = :id
"""

# Series

INSERT_CHUNK = _insert("chunks", "run_node_id", "first", "last", "rows", "level", "data", "summary")
CHUNKS_BELOW = """
    SELECT id, data FROM chunks WHERE run_node_id = :run_node_id AND level < :level ORDER BY id
"""
CHUNKS_OF_NODE = "SELECT id, data FROM chunks WHERE run_node_id = :run_node_id ORDER BY id"
DELETE_CHUNK = "DELETE FROM chunks WHERE id = :id"

# Executables

INSERT_PATH = _insert("paths", "digest", "path") + " ON CONFLICT (digest) DO NOTHING"
FIND_PATH = "SELECT id FROM paths WHERE digest = :digest"
_FIGURES = (*SUMMED_FIGURES, "peak_memory", "first_seen", "last_seen")
UPSERT_EXECUTABLE = (
    _insert("executables", "run_node_id", "path_id", "path_known", "epoch", "sequence", *_FIGURES)
    + " ON CONFLICT (run_node_id, path_id, path_known, epoch) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in ("sequence", *_FIGURES))
    + " WHERE excluded.sequence >= executables.sequence"
)
