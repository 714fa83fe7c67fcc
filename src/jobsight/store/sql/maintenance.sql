-- Retention, compaction and the integrity check. Statements of many rows have one key, :id.

-- name: size_of_chunks
SELECT count(*), coalesce(sum(length(data)), 0) FROM chunks WHERE run_node_id IN (:keys)

-- name: nodes_of_runs
SELECT run_id, id FROM run_nodes WHERE run_id IN (:keys)

-- name: chunks_of_node
SELECT id, data FROM chunks WHERE run_node_id = :id ORDER BY id

-- name: chunk_ids
SELECT id FROM chunks WHERE run_node_id = :id ORDER BY id

-- name: delete_chunks
DELETE FROM chunks WHERE run_node_id = :id

-- name: clear_open_chunks
UPDATE run_nodes SET open_chunks = 0 WHERE id = :id AND open_chunks <> 0

-- name: insert_downsampled
INSERT INTO chunks (run_node_id, first, last, rows, level, data, summary, resolution)
VALUES (:run_node_id, :first, :last, :rows, 2, :data, :summary, :resolution)

-- name: paths_of_nodes
SELECT path_id FROM executables WHERE run_node_id IN (:keys)

-- name: count_steps
SELECT count(*) FROM steps WHERE run_node_id IN (:keys)

-- name: delete_executables
DELETE FROM executables WHERE run_node_id = :id

-- name: delete_steps
DELETE FROM steps WHERE run_node_id = :id

-- name: count_gpus
SELECT count(*) FROM gpus WHERE run_node_id IN (:keys)

-- name: delete_gpus
DELETE FROM gpus WHERE run_node_id = :id

-- name: unused_among_paths
SELECT id FROM paths
WHERE id IN (:keys) AND NOT EXISTS (SELECT 1 FROM executables WHERE path_id = paths.id)

-- name: delete_path
DELETE FROM paths WHERE id = :id

-- name: delete_run_nodes
DELETE FROM run_nodes WHERE run_id = :id

-- The daily rollups keep the hours: the contribution is deleted, not subtracted.
-- name: delete_contribution
DELETE FROM contributions WHERE run_id = :id AND NOT dropped

-- name: delete_run_details
DELETE FROM run_details WHERE run_id = :id

-- Properties belong to all runs of a job.
-- name: delete_properties
DELETE FROM job_properties
WHERE (cluster, job_id) IN (SELECT cluster, job_id FROM runs WHERE id = :id)
    AND (SELECT count(*) FROM runs WHERE runs.cluster = job_properties.cluster
        AND runs.job_id = job_properties.job_id) = 1

-- name: delete_dead_letters
DELETE FROM dead_letters WHERE kind IN ('rollup', 'finding') AND key = CAST(:id AS TEXT)

-- name: delete_run
DELETE FROM runs WHERE id = :id

-- With the name of the export, since the key begins with it.
-- name: delete_exported
DELETE FROM exported WHERE name = :name AND run_id = :id

-- name: next_export
SELECT min(name) FROM exported WHERE name > :after

-- name: mark_pruned
UPDATE runs SET pruned = pruned | :bit WHERE id = :id

-- name: insert_retention_checkpoint
INSERT INTO checkpoints (name, value) VALUES ('retention', 0) ON CONFLICT (name) DO NOTHING

-- name: claim_retention
UPDATE checkpoints SET value = :now WHERE name = 'retention' AND value <= :before

-- name: set_retention_failure
UPDATE checkpoints SET text = :reason WHERE name = 'retention'

-- Nodes of ended runs with chunks that were never joined, without downsampled series. A run may have
-- ended on a node without a record of its end.
-- name: unjoined_nodes
SELECT run_nodes.id, run_nodes.cluster, run_nodes.job_id
FROM run_nodes
JOIN runs ON runs.id = run_nodes.run_id
WHERE run_nodes.id > :after
    AND (runs."end" < :before OR (run_nodes.final AND run_nodes.written < :before))
    AND EXISTS (SELECT 1 FROM chunks WHERE run_node_id = run_nodes.id AND level < 2)
    AND NOT EXISTS (
        SELECT 1 FROM chunks WHERE run_node_id = run_nodes.id AND resolution IS NOT NULL)
ORDER BY run_nodes.id LIMIT :limit

-- name: unused_paths
SELECT id FROM paths
WHERE id > :after AND NOT EXISTS (SELECT 1 FROM executables WHERE path_id = paths.id)
ORDER BY id LIMIT :limit

-- name: count_unused_paths
SELECT count(*) FROM paths
WHERE NOT EXISTS (SELECT 1 FROM executables WHERE path_id = paths.id)

-- Runs that got data after data of the same kind was deleted; the bits are those of retention.py.
-- name: late_runs
SELECT id FROM runs
WHERE (pruned & 2 <> 0 AND EXISTS (
        SELECT 1 FROM run_nodes JOIN chunks ON chunks.run_node_id = run_nodes.id
        WHERE run_nodes.run_id = runs.id))
    OR (pruned & 4 <> 0 AND EXISTS (
        SELECT 1 FROM run_nodes JOIN executables ON executables.run_node_id = run_nodes.id
        WHERE run_nodes.run_id = runs.id))

-- name: chunk_data
SELECT data FROM chunks WHERE id = :id

-- name: delete_chunk
DELETE FROM chunks WHERE id = :id

-- name: repair_chunk
UPDATE chunks SET first = :first, last = :last, rows = :rows, summary = :summary WHERE id = :id

-- name: repair_node
UPDATE run_nodes SET
    open_chunks = (SELECT count(*) FROM chunks WHERE run_node_id = :id AND level = 0),
    first_sample = coalesce((SELECT min(first) FROM chunks WHERE run_node_id = :id), first_sample),
    last_sample = coalesce((SELECT max(last) FROM chunks WHERE run_node_id = :id), last_sample)
WHERE id = :id

-- name: count_orphaned_contributions
SELECT count(*) FROM contributions
WHERE NOT dropped AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = contributions.run_id)

-- name: delete_orphaned_contributions
DELETE FROM contributions
WHERE NOT dropped AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = contributions.run_id)

-- name: count_orphaned_dead_letters
SELECT count(*) FROM dead_letters WHERE (kind IN ('rollup', 'finding')
    AND NOT EXISTS (SELECT 1 FROM runs
        WHERE runs.id = CASE WHEN kind IN ('rollup', 'finding') THEN CAST(key AS BIGINT) END))
    OR (kind = 'node-day' AND NOT EXISTS (SELECT 1 FROM node_days
        WHERE node_days.id = CASE WHEN kind = 'node-day' THEN CAST(key AS BIGINT) END))

-- name: delete_orphaned_dead_letters
DELETE FROM dead_letters WHERE (kind IN ('rollup', 'finding')
    AND NOT EXISTS (SELECT 1 FROM runs
        WHERE runs.id = CASE WHEN kind IN ('rollup', 'finding') THEN CAST(key AS BIGINT) END))
    OR (kind = 'node-day' AND NOT EXISTS (SELECT 1 FROM node_days
        WHERE node_days.id = CASE WHEN kind = 'node-day' THEN CAST(key AS BIGINT) END))

-- name: invalid_constraints
SELECT conname FROM pg_constraint WHERE NOT convalidated

-- Two queries: SQLite finds one of them by index, both together by reading all rows.
-- name: range_of_runs
SELECT (SELECT min(id) FROM runs), (SELECT max(id) FROM runs)

-- name: find_statistics
SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'

-- name: statistics_of_runs
SELECT stat FROM sqlite_stat1 WHERE tbl = 'runs' AND idx = 'ix_runs_start_id'
