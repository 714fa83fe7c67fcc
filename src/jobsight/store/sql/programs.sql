-- The use of one program, by its path.

-- name: find_program
SELECT paths.id, paths.path, software.name, software.version, software.local_version,
    software.user_provided
FROM paths LEFT JOIN software ON software.id = paths.software_id
WHERE paths.digest = :digest

-- Of its newest uses, by user: runs, executions, failures, CPU time, and the core time that was held
-- for it, by its share of the CPU time of each run.
-- name: program_users
WITH newest AS (
    SELECT run_node_id, executions, failures, cpu_time
    FROM executables WHERE path_id = :path_id
    ORDER BY run_node_id DESC LIMIT :limit
)
SELECT coalesce(runs."user", ''), count(DISTINCT runs.id), sum(newest.executions),
    sum(newest.failures), sum(newest.cpu_time),
    sum(coalesce(CAST(newest.cpu_time AS DOUBLE PRECISION) / nullif(runs.cpu_time, 0), 0)
        * coalesce(runs.cpus, 0)
        * (coalesce(runs."end", runs.last_seen, runs.start) - runs.start)),
    min(runs.start), max(runs.start)
FROM newest
JOIN run_nodes ON run_nodes.id = newest.run_node_id
JOIN runs ON runs.id = run_nodes.run_id
WHERE runs.start >= :since
GROUP BY coalesce(runs."user", '')

-- name: program_runs
SELECT run_nodes.run_id FROM (
    SELECT run_node_id FROM executables WHERE path_id = :path_id
    ORDER BY run_node_id DESC LIMIT :limit
) AS newest JOIN run_nodes ON run_nodes.id = newest.run_node_id

-- The programs of some runs, each over nodes and agent epochs. Keys are ids of runs. A row without
-- figures was renamed.
-- name: programs_of_runs
SELECT executables.path_id, executables.path_known,
    max(CASE WHEN executables.own_namespace THEN 1 ELSE 0 END),
    count(DISTINCT run_nodes.run_id), count(*),
    sum(CAST(executables.executions AS DOUBLE PRECISION)),
    sum(CAST(executables.failures AS DOUBLE PRECISION)),
    sum(CAST(executables.cpu_time AS DOUBLE PRECISION)),
    sum(CAST(executables.gpu_time AS DOUBLE PRECISION)),
    max(executables.peak_memory)
FROM run_nodes CROSS JOIN executables
WHERE run_nodes.run_id IN (:keys) AND executables.run_node_id = run_nodes.id
GROUP BY executables.path_id, executables.path_known
HAVING max(executables.executions) > 0 OR max(executables.processes) > 0
    OR max(executables.cpu_time) > 0 OR max(executables.gpu_time) > 0

-- The same by the name of the software; no name is what no rule names.
-- name: software_of_runs
SELECT software.name, software.user_provided, count(DISTINCT run_nodes.run_id),
    sum(CAST(executables.cpu_time AS DOUBLE PRECISION)),
    sum(CAST(executables.gpu_time AS DOUBLE PRECISION))
FROM run_nodes CROSS JOIN executables
JOIN paths ON paths.id = executables.path_id
LEFT JOIN software ON software.id = paths.software_id
WHERE run_nodes.run_id IN (:keys) AND executables.run_node_id = run_nodes.id
    AND (software.id IS NULL OR NOT software.ignored)
GROUP BY software.name, software.user_provided

-- name: paths_of_ids
SELECT id, path FROM paths WHERE id IN (:keys)
