-- What reports, pages and the API query. Rows are read by column name.

-- name: nodes_of_runs
SELECT run_id, final, totals FROM run_nodes WHERE run_id IN (:keys)

-- name: nodes_of_run
SELECT run_nodes.*, agents.clock_skew
FROM run_nodes
LEFT JOIN agents ON agents.cluster = run_nodes.cluster AND agents.node = run_nodes.node
WHERE run_nodes.run_id = :run_id
ORDER BY run_nodes.node, run_nodes.birth

-- All that a report of a run shows is newer if one of these differs. Figures of the nodes change
-- together with the run.
-- name: revision_of_run
SELECT updated, changes, pruned, archived, open_nodes, "end", state,
    (SELECT changed FROM run_details WHERE run_details.run_id = runs.id),
    (SELECT count(*) FROM findings WHERE findings.run_id = runs.id),
    (SELECT max(last) FROM findings WHERE findings.run_id = runs.id),
    (SELECT sum(reply_time) FROM findings WHERE findings.run_id = runs.id),
    (SELECT count(*) FROM run_nodes WHERE run_nodes.run_id = runs.id),
    (SELECT max(written) FROM run_nodes WHERE run_nodes.run_id = runs.id),
    (SELECT sum(agents.clock_skew) FROM run_nodes
        JOIN agents ON agents.cluster = run_nodes.cluster AND agents.node = run_nodes.node
        WHERE run_nodes.run_id = runs.id)
FROM runs WHERE id = :run_id

-- name: details_of_run
SELECT data FROM run_details WHERE run_id = :run_id

-- name: executables_of_run
SELECT run_nodes.node, paths.path, executables.*
FROM run_nodes
JOIN executables ON executables.run_node_id = run_nodes.id
JOIN paths ON paths.id = executables.path_id
WHERE run_nodes.run_id = :run_id

-- name: steps_of_run
SELECT run_nodes.node, steps.*
FROM run_nodes
JOIN steps ON steps.run_node_id = run_nodes.id
WHERE run_nodes.run_id = :run_id
ORDER BY run_nodes.node, steps.first_seen, steps.step, run_nodes.birth

-- name: chunks_of_run
SELECT run_nodes.node, chunks.id, length(chunks.data)
FROM run_nodes
JOIN chunks ON chunks.run_node_id = run_nodes.id
WHERE run_nodes.run_id = :run_id AND chunks.last >= :since AND chunks.first <= :until
ORDER BY run_nodes.node, chunks.id

-- name: summaries_of_run
SELECT run_nodes.node, chunks.id, length(chunks.data), chunks.summary
FROM run_nodes
JOIN chunks ON chunks.run_node_id = run_nodes.id
WHERE run_nodes.run_id = :run_id
ORDER BY run_nodes.node, chunks.id

-- name: chunk_data
SELECT data FROM chunks WHERE id IN (:keys) ORDER BY id

-- name: archived_run
SELECT archived AS file, cluster, job_id, archived_start AS start FROM runs
WHERE id = :run_id AND pruned <> 0 AND archived IS NOT NULL

-- name: span_of_run
SELECT cluster, job_id, start, "end" FROM runs WHERE id = :run_id

-- The newest uses of an executable in all runs.
-- name: failures_of_path
SELECT executables.run_node_id, executables.executions, executables.failures
FROM paths JOIN executables ON executables.path_id = paths.id
WHERE paths.digest = :digest
ORDER BY executables.run_node_id DESC LIMIT :limit

-- name: software_of_run
SELECT software.name
FROM run_nodes
JOIN executables ON executables.run_node_id = run_nodes.id
JOIN paths ON paths.id = executables.path_id
JOIN software ON software.id = paths.software_id
WHERE run_nodes.run_id = :run_id AND NOT software.ignored
GROUP BY software.name
ORDER BY sum(CAST(executables.cpu_time AS DOUBLE PRECISION)) DESC LIMIT :limit
