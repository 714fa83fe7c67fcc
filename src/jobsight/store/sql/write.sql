-- What runs for every batch. No RETURNING: SQLite has it since 3.35 only, and enterprise Linux 9
-- ships 3.34. Joins with "wanted" are written in the order in which SQLite must do them: the keys
-- first, then by index, however large the table is.

-- name: insert_agent
INSERT INTO agents (cluster, node, version, written, received, clock_skew, skew_measured)
VALUES (:cluster, :node, :version, :written, :received, :clock_skew, :skew_measured)
ON CONFLICT (cluster, node) DO NOTHING

-- name: find_agent
SELECT id, clock_skew, skew_measured FROM agents WHERE cluster = :cluster AND node = :node

-- name: update_agent
UPDATE agents SET version = :version, written = :written, received = :received,
    clock_skew = :clock_skew, skew_measured = :skew_measured
WHERE id = :id

-- name: insert_spool
INSERT INTO spools (agent_id, name) VALUES (:agent_id, :name)
ON CONFLICT (agent_id, name) DO NOTHING

-- name: find_spool
SELECT id FROM spools WHERE agent_id = :agent_id AND name = :name

-- The interval that contains the sequence number or that the number extends.
-- name: interval_before
SELECT first, last FROM batches WHERE spool_id = :spool_id AND first <= :sequence
ORDER BY first DESC LIMIT 1

-- name: interval_after
SELECT last FROM batches WHERE spool_id = :spool_id AND first = :sequence + 1

-- name: insert_interval
INSERT INTO batches (spool_id, first, last) VALUES (:spool_id, :first, :last)

-- name: extend_interval
UPDATE batches SET last = :last WHERE spool_id = :spool_id AND first = :first

-- name: delete_interval
DELETE FROM batches WHERE spool_id = :spool_id AND first = :first

-- Inserts nothing if content with this name has been imported before.
-- name: insert_import
INSERT INTO checkpoints (name, value) VALUES (:name, :received) ON CONFLICT (name) DO NOTHING

-- name: ends_of_jobs
WITH wanted(cluster, job_id) AS (VALUES :keys)
SELECT runs.job_id, runs.start, runs."end", runs.source
FROM wanted CROSS JOIN runs
WHERE runs.cluster = wanted.cluster AND runs.job_id = wanted.job_id

-- The next update of the daily rollups subtracts its share.
-- name: drop_share_of_run
UPDATE contributions SET dropped = true WHERE run_id = :id

-- name: delete_details_of_run
DELETE FROM run_details WHERE run_id = :id

-- name: delete_dead_letters_of_run
DELETE FROM dead_letters WHERE kind IN ('rollup', 'finding') AND key = CAST(:id AS TEXT)

-- name: delete_run
DELETE FROM runs WHERE id = :id

-- name: count_nodes_of_run
SELECT count(*) FROM run_nodes WHERE run_id = :id

-- name: sightings_of_job
SELECT id, run_id, node, boot_id, birth, sluid, restart_count FROM run_nodes
WHERE cluster = :cluster AND job_id = :job_id

-- Which of the jobs have been seen by a node.
-- name: jobs_seen
WITH wanted(cluster, job_id) AS (VALUES :keys)
SELECT wanted.cluster, wanted.job_id FROM wanted WHERE EXISTS (
    SELECT 1 FROM run_nodes AS own
    WHERE own.cluster = wanted.cluster AND own.job_id = wanted.job_id
)

-- name: move_run_node
UPDATE run_nodes SET run_id = :run_id WHERE id = :id

-- name: figures_of_run
SELECT node, cpu_time, memory_used_peak, memory_peak, final, first_sample, last_sample
FROM run_nodes WHERE run_id = :id

-- name: count_sightings_of_node
SELECT count(*) FROM run_nodes WHERE run_id = :id AND node = :node

-- name: count_rows_of_node
SELECT (SELECT count(*) FROM executables WHERE run_node_id = :id)
    + (SELECT count(*) FROM steps WHERE run_node_id = :id)

-- name: count_sightings
UPDATE runs SET
    open_nodes = (
        SELECT sum(CASE WHEN final THEN 0 ELSE 1 END) FROM run_nodes WHERE run_id = runs.id),
    sightings = (SELECT nullif(count(*), 0) FROM run_nodes WHERE run_id = runs.id),
    reporting_nodes = (
        SELECT nullif(count(DISTINCT node), 0) FROM run_nodes WHERE run_id = runs.id)
WHERE id = :id

-- name: insert_chunk
INSERT INTO chunks (run_node_id, first, last, rows, level, data, summary)
VALUES (:owner, :first, :last, :rows, :level, :data, :summary)

-- name: chunks_up_to
SELECT data FROM chunks WHERE run_node_id = :owner AND level <= :level ORDER BY id

-- name: delete_chunks_up_to
DELETE FROM chunks WHERE run_node_id = :owner AND level <= :level

-- name: find_steps
WITH wanted(run_node_id, step) AS (VALUES :keys)
SELECT own.run_node_id, own.step FROM wanted CROSS JOIN steps AS own
WHERE own.run_node_id = wanted.run_node_id AND own.step = wanted.step

-- name: insert_path
INSERT INTO paths (digest, path) VALUES (:digest, :path) ON CONFLICT (digest) DO NOTHING

-- name: find_path
SELECT id FROM paths WHERE digest = :digest

-- name: find_paths
WITH wanted(digest) AS (VALUES :keys)
SELECT paths.digest, paths.id FROM wanted CROSS JOIN paths WHERE paths.digest = wanted.digest
