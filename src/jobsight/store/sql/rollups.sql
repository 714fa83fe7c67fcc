-- The daily rollups. CROSS JOIN fixes the order of the joins: the runs are few, whatever a planner
-- estimates.

-- name: software_names
WITH wanted(id) AS (VALUES :keys)
SELECT software.id, ignored, name, version, local_version, user_provided
FROM wanted CROSS JOIN software WHERE software.id = wanted.id

-- name: contributions_of_stale_runs
SELECT contributions.run_id, contributions.data FROM runs CROSS JOIN contributions
WHERE runs.stale AND runs.id BETWEEN :first AND :last AND contributions.run_id = runs.id

-- name: dropped_contributions
SELECT run_id, data FROM contributions WHERE dropped ORDER BY run_id LIMIT :limit

-- name: set_contribution
INSERT INTO contributions (run_id, revision, dropped, data)
VALUES (:run_id, :revision, false, :data)
ON CONFLICT (run_id) DO UPDATE SET revision = excluded.revision, dropped = false,
    data = excluded.data

-- name: delete_contribution
DELETE FROM contributions WHERE run_id = :run_id

-- name: clear_stale
UPDATE runs SET stale = false WHERE id = :id

-- name: chunks_of_run
SELECT run_nodes.id, chunks.data
FROM run_nodes JOIN chunks ON chunks.run_node_id = run_nodes.id
WHERE run_nodes.run_id = :id ORDER BY run_nodes.id, chunks.id
