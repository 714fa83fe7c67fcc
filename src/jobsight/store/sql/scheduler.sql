-- Runs, details and snapshots that the scrape of a scheduler writes, and what sinks read.

-- A run whose columns changed counts as changed for sinks even if its details are the same.
-- name: set_details
INSERT INTO run_details (run_id, changed, data) VALUES (:run_id, :now, :data)
ON CONFLICT (run_id) DO UPDATE SET changed = excluded.changed, data = excluded.data
WHERE :run_changed OR run_details.data <> excluded.data

-- name: judge_again
UPDATE runs SET unjudged = true WHERE id = :run_id AND NOT unjudged AND "end" IS NOT NULL
    AND EXISTS (SELECT 1 FROM run_details WHERE run_id = :run_id AND changed = :now)

-- Sorted by the caller: with ORDER BY, SQLite chooses the index of that order and reads all runs.
-- name: open_runs
SELECT job_id, start, provisional, state, source, name, "partition" FROM runs
WHERE cluster = :cluster AND "end" IS NULL

-- name: changed_runs
SELECT runs.*, run_details.changed, run_details.data AS details
FROM run_details JOIN runs ON runs.id = run_details.run_id
WHERE (run_details.changed, run_details.run_id) > (:changed, :run_id)
ORDER BY run_details.changed, run_details.run_id LIMIT :limit

-- name: running_runs
SELECT runs.*, run_details.changed, run_details.data AS details
FROM run_details JOIN runs ON runs.id = run_details.run_id
WHERE runs."end" IS NULL AND runs.id > :run_id
ORDER BY runs.id LIMIT :limit

-- name: records_of_cluster
SELECT name, data FROM cluster_records WHERE cluster = :cluster AND kind = :kind ORDER BY name

-- name: clusters
SELECT DISTINCT cluster FROM cluster_records ORDER BY cluster

-- name: set_record
INSERT INTO cluster_records (cluster, kind, name, changed, data)
VALUES (:cluster, :kind, :name, :now, :data)
ON CONFLICT (cluster, kind, name) DO UPDATE SET changed = excluded.changed, data = excluded.data
WHERE cluster_records.data <> excluded.data

-- name: remove_record
DELETE FROM cluster_records WHERE cluster = :cluster AND kind = :kind AND name = :name
