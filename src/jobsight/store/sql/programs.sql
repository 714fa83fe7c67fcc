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
