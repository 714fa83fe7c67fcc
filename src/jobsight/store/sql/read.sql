-- What reports, pages and the API query. Rows are read by column name.

-- name: run_by_row
SELECT *, NULL AS sort_value FROM runs WHERE id = :run_id

-- name: nodes_of_runs
SELECT run_id, final, totals FROM run_nodes WHERE run_id IN (:keys)

-- name: nodes_of_run
SELECT run_nodes.*, agents.clock_skew
FROM run_nodes
LEFT JOIN agents ON agents.cluster = run_nodes.cluster AND agents.node = run_nodes.node
WHERE run_nodes.run_id = :run_id
ORDER BY run_nodes.node, run_nodes.birth

-- All that a report of a run shows is newer if one of these differs. Figures of the nodes change
-- together with the run; what is said of its work, when it is judged; the names of its software, by
-- the rules and before the run is summed up.
-- name: revision_of_run
SELECT updated, changes, pruned, archived, open_nodes, "end", state, stale,
    (SELECT revision FROM run_figures WHERE run_figures.run_id = runs.id),
    (SELECT value FROM checkpoints WHERE name = 'rules'),
    (SELECT text FROM checkpoints WHERE name = 'rules'),
    (SELECT changed FROM run_details WHERE run_details.run_id = runs.id),
    (SELECT count(*) FROM findings WHERE findings.run_id = runs.id),
    (SELECT max(last) FROM findings WHERE findings.run_id = runs.id),
    (SELECT sum(reply_time) FROM findings WHERE findings.run_id = runs.id),
    (SELECT max(changed) FROM job_properties WHERE job_properties.cluster = runs.cluster
        AND job_properties.job_id = runs.job_id AND job_properties."user" = runs."user"),
    (SELECT sum(size) FROM job_properties WHERE job_properties.cluster = runs.cluster
        AND job_properties.job_id = runs.job_id AND job_properties."user" = runs."user"),
    (SELECT count(*) FROM run_nodes WHERE run_nodes.run_id = runs.id),
    (SELECT max(written) FROM run_nodes WHERE run_nodes.run_id = runs.id),
    (SELECT sum(agents.clock_skew) FROM run_nodes
        JOIN agents ON agents.cluster = run_nodes.cluster AND agents.node = run_nodes.node
        WHERE run_nodes.run_id = runs.id)
FROM runs WHERE id = :run_id

-- name: states_of_runs
SELECT shown_state, count(*)
FROM (
    SELECT shown_state FROM runs WHERE :conditions ORDER BY start DESC, id DESC LIMIT :newest
) AS newest
GROUP BY shown_state

-- name: states_of_group
SELECT shown_state, count(*) FROM runs WHERE :condition GROUP BY shown_state ORDER BY count(*) DESC

-- name: spread_of_group
SELECT count(*), min(elapsed), max(elapsed), min(cpu_share), avg(cpu_share), max(cpu_share),
    max(memory_share), max(ended_memory_peak)
FROM (SELECT * FROM runs WHERE :condition LIMIT :limit) AS tasks

-- A run without an end counts up to its last sample: it may have been lost.
-- name: largest_runs
SELECT id
FROM (
    SELECT id, CAST(cpus AS DOUBLE PRECISION) * (coalesce("end", last_seen, start) - start) AS held
    FROM runs WHERE :conditions ORDER BY start DESC, id DESC LIMIT :newest
) AS newest
WHERE held > 0
ORDER BY held DESC, id DESC
LIMIT :limit

-- name: details_of_run
SELECT data FROM run_details WHERE run_id = :run_id

-- name: executables_of_run
SELECT run_nodes.node, paths.path, executables.*
FROM run_nodes
JOIN executables ON executables.run_node_id = run_nodes.id
JOIN paths ON paths.id = executables.path_id
WHERE run_nodes.run_id = :run_id

-- The executables of a run with the most CPU and GPU time, each over all nodes and agent epochs, and
-- how many there are. A row without figures was renamed.
-- name: largest_executables
SELECT paths.path, largest.*
FROM (
    SELECT path_id, path_known, max(CASE WHEN own_namespace THEN 1 ELSE 0 END) AS own_namespace,
        :figures,
        sum(CAST(executables.cpu_time AS DOUBLE PRECISION) + executables.gpu_time) AS used_time,
        sum(CAST(executions AS DOUBLE PRECISION)) AS all_executions,
        count(*) OVER () AS executable_count,
        sum(max(CASE WHEN own_namespace THEN 1 ELSE 0 END)) OVER () AS own_count
    FROM run_nodes CROSS JOIN executables
    WHERE run_nodes.run_id = :run_id AND executables.run_node_id = run_nodes.id
    GROUP BY path_id, path_known
    HAVING max(executions) > 0 OR max(processes) > 0 OR max(executables.cpu_time) > 0
        OR max(executables.gpu_time) > 0
    ORDER BY used_time DESC, all_executions DESC, path_id
    LIMIT :limit
) AS largest
JOIN paths ON paths.id = largest.path_id
ORDER BY used_time DESC, all_executions DESC, path_id

-- The sums of all of them.
-- name: all_executables
SELECT :sums
FROM run_nodes CROSS JOIN executables
WHERE run_nodes.run_id = :run_id AND executables.run_node_id = run_nodes.id

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
SELECT runs."user", executables.executions, executables.failures
FROM paths
JOIN executables ON executables.path_id = paths.id
JOIN run_nodes ON run_nodes.id = executables.run_node_id
JOIN runs ON runs.id = run_nodes.run_id
WHERE paths.digest = :digest
ORDER BY executables.run_node_id DESC LIMIT :limit

-- name: software_of_run
SELECT software.name, software.user_provided
FROM run_nodes
JOIN executables ON executables.run_node_id = run_nodes.id
JOIN paths ON paths.id = executables.path_id
JOIN software ON software.id = paths.software_id
WHERE run_nodes.run_id = :run_id AND NOT software.ignored
GROUP BY software.name, software.user_provided
ORDER BY sum(CAST(executables.cpu_time AS DOUBLE PRECISION)) DESC LIMIT :limit

-- name: known_clusters
SELECT cluster FROM agents UNION SELECT cluster FROM cluster_records ORDER BY cluster

-- What no rule names is one row without a name.
-- name: software_use_of_run
SELECT software.name, software.version, software.local_version, software.user_provided,
    software.ignored, sum(CAST(executables.cpu_time AS DOUBLE PRECISION)) AS cpu_time,
    sum(CAST(executables.gpu_time AS DOUBLE PRECISION)) AS gpu_time,
    sum(CAST(executables.executions AS DOUBLE PRECISION)) AS executions
FROM run_nodes
JOIN executables ON executables.run_node_id = run_nodes.id
JOIN paths ON paths.id = executables.path_id
LEFT JOIN software ON software.id = paths.software_id
WHERE run_nodes.run_id = :run_id
GROUP BY software.name, software.version, software.local_version, software.user_provided,
    software.ignored
ORDER BY cpu_time DESC, software.name LIMIT :limit

-- name: received_batches
SELECT agents.node, spools.name, batches.first, batches.last
FROM agents JOIN spools ON spools.agent_id = agents.id JOIN batches ON batches.spool_id = spools.id
WHERE agents.cluster = :cluster ORDER BY agents.node, spools.id, batches.first

-- name: runs_of_cluster
SELECT id, job_id FROM runs WHERE cluster = :cluster AND id > :after ORDER BY id LIMIT :limit
