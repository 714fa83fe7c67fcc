-- The daily rollups. CROSS JOIN fixes the order of the joins: the runs are few, whatever a planner
-- estimates.

-- name: software_names
WITH wanted(id) AS (VALUES :keys)
SELECT software.id, ignored, name, version, local_version, user_provided
FROM wanted CROSS JOIN software WHERE software.id = wanted.id

-- The next stale runs of a cluster that are not set aside.
-- name: stale_runs
SELECT :columns FROM runs
WHERE stale AND cluster = :cluster AND id > :after AND id <= :last AND NOT EXISTS (
    SELECT 1 FROM dead_letters WHERE kind = 'rollup' AND key = CAST(runs.id AS TEXT))
ORDER BY id LIMIT :limit

-- name: last_stale_run
SELECT max(id) FROM runs WHERE stale AND cluster = :cluster

-- name: first_stale_cluster
SELECT min(cluster) FROM runs WHERE stale

-- name: next_stale_cluster
SELECT min(cluster) FROM runs WHERE stale AND cluster > :after

-- The numbers of nodes and of executables of runs; the latter is counted up to a limit.
-- name: sizes_of_runs
WITH wanted(id) AS (VALUES :keys)
SELECT wanted.id,
    (SELECT count(*) FROM run_nodes WHERE run_nodes.run_id = wanted.id),
    (SELECT count(*) FROM (
        SELECT 1 FROM run_nodes CROSS JOIN executables
        WHERE run_nodes.run_id = wanted.id AND executables.run_node_id = run_nodes.id
        LIMIT :many) AS uses)
FROM wanted

-- name: count_stale
SELECT cluster, count(*) FROM runs WHERE stale GROUP BY cluster ORDER BY cluster

-- name: count_set_aside
SELECT count(*) FROM dead_letters WHERE kind = 'rollup'

-- name: run_by_id
SELECT :columns FROM runs WHERE id = :id

-- name: due_dead_letters
SELECT key FROM dead_letters
WHERE kind = 'rollup' AND cluster = :cluster AND tries < :tries AND last <= :before
    AND reason <> :interrupted
ORDER BY last, key LIMIT :limit

-- name: nodes_of_runs
WITH wanted(id) AS (VALUES :keys)
SELECT run_nodes.run_id, run_nodes.id, run_nodes.cpu_time
FROM wanted CROSS JOIN run_nodes WHERE run_nodes.run_id = wanted.id
ORDER BY run_nodes.id

-- name: uses_of_runs
WITH wanted(id) AS (VALUES :keys)
SELECT run_nodes.run_id, executables.run_node_id, paths.digest, paths.software_id,
    executables.cpu_time, executables.executions, executables.gpu_time
FROM wanted CROSS JOIN run_nodes CROSS JOIN executables CROSS JOIN paths
WHERE run_nodes.run_id = wanted.id AND executables.run_node_id = run_nodes.id
    AND paths.id = executables.path_id

-- The paths of a run with too many executables to be read, the largest first. CPU time is summed in
-- two halves of 32 bits, which cannot overflow.
-- name: largest_uses_of_run
SELECT paths.digest, paths.software_id,
    sum(CASE WHEN executables.cpu_time > 0 THEN executables.cpu_time >> 32 ELSE 0 END) AS high,
    sum(CASE WHEN executables.cpu_time > 0 THEN executables.cpu_time & 4294967295 ELSE 0 END)
        AS low,
    sum(CASE WHEN executables.executions < 0 THEN 0
        WHEN executables.executions > 1099511627776 THEN 1099511627776
        ELSE executables.executions END) AS executions,
    sum(executables.gpu_time >> 32), sum(executables.gpu_time & 4294967295)
FROM run_nodes CROSS JOIN executables CROSS JOIN paths
WHERE run_nodes.run_id = :id AND executables.run_node_id = run_nodes.id
    AND paths.id = executables.path_id
GROUP BY paths.id, paths.digest, paths.software_id
ORDER BY sum(CASE WHEN executables.cpu_time > 0
        THEN CAST(executables.cpu_time AS DOUBLE PRECISION) ELSE 0 END)
        + sum(CAST(executables.gpu_time AS DOUBLE PRECISION)) DESC,
    5 DESC, paths.digest DESC
LIMIT :limit

-- The same of all its paths, and of those on nodes without a counter; and whether a path has no
-- name yet.
-- name: total_uses_of_run
SELECT run_nodes.cpu_time IS NULL,
    sum(CASE WHEN executables.cpu_time > 0 THEN executables.cpu_time >> 32 ELSE 0 END),
    sum(CASE WHEN executables.cpu_time > 0 THEN executables.cpu_time & 4294967295 ELSE 0 END),
    sum(CASE WHEN executables.executions < 0 THEN 0
        WHEN executables.executions > 1099511627776 THEN 1099511627776
        ELSE executables.executions END),
    sum(executables.gpu_time >> 32), sum(executables.gpu_time & 4294967295),
    max(CASE WHEN paths.software_id IS NULL THEN 1 ELSE 0 END)
FROM run_nodes CROSS JOIN executables CROSS JOIN paths
WHERE run_nodes.run_id = :id AND executables.run_node_id = run_nodes.id
    AND paths.id = executables.path_id
GROUP BY run_nodes.cpu_time IS NULL

-- name: contributions_of_runs
SELECT run_id, revision, data FROM contributions WHERE run_id IN (:keys) AND NOT dropped

-- name: sizes_of_contributions
SELECT run_id, length(data) FROM contributions WHERE run_id IN (:keys)

-- name: revisions_of_runs
SELECT run_id, revision FROM contributions WHERE run_id IN (:keys)

-- name: changes_of_runs
SELECT id, changes FROM runs WHERE id IN (:keys)

-- name: dropped_contributions
SELECT run_id, length(data) FROM contributions WHERE dropped
ORDER BY run_id LIMIT :limit

-- name: dropped_contribution
SELECT data FROM contributions WHERE run_id = :run_id AND dropped

-- name: set_contribution
INSERT INTO contributions (run_id, revision, dropped, data)
VALUES (:run_id, :revision, :dropped, :data)
ON CONFLICT (run_id) DO UPDATE SET revision = excluded.revision, dropped = excluded.dropped,
    data = excluded.data

-- name: delete_contribution
DELETE FROM contributions WHERE run_id = :run_id

-- name: clear_stale
UPDATE runs SET stale = false WHERE id = :id AND changes = :changes

-- name: sizes_of_chunks
SELECT run_nodes.id, chunks.id, chunks.rows, length(chunks.data)
FROM run_nodes JOIN chunks ON chunks.run_node_id = run_nodes.id
WHERE run_nodes.run_id = :id ORDER BY run_nodes.id, chunks.id

-- name: chunks_by_id
SELECT run_node_id, data FROM chunks WHERE id IN (:keys)
