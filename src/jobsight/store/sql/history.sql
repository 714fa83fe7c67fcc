-- Earlier runs of the same work, arrays, waits of the queue, and batch scripts.

-- name: script_of_run
SELECT script FROM runs WHERE id = :run_id

-- The latest works of a user by the name of the job.
-- name: works_of_name
SELECT key FROM works
WHERE "user" = :user AND name = :name AND cluster = :cluster AND kind = 'name'
ORDER BY id DESC LIMIT :limit

-- name: work_of_run
SELECT work_id FROM run_figures WHERE run_id = :run_id

-- The last run of a user's works by their name or script.
-- name: latest_run
SELECT runs.cluster, runs.job_id, runs.start FROM works
JOIN run_figures ON run_figures.work_id = works.id
JOIN runs ON runs.id = run_figures.run_id
WHERE works."user" = :user AND (works.name = :name OR works.key = :key)
ORDER BY runs.start DESC LIMIT 1

-- Works whose key begins with some bytes: the latest of them first.
-- name: works_of_key
SELECT id, cluster, "user", account, kind, name, key FROM works
WHERE key >= :key AND key < :following ORDER BY id DESC LIMIT :limit

-- Works of the same name and owner: versions of a script.
-- name: versions_of_work
SELECT works.id, works.cluster, works."user", works.account, works.kind, works.name, works.key
FROM works AS one JOIN works ON works."user" = one."user" AND works.name = one.name
WHERE one.id = :id AND works.kind = 'script' ORDER BY works.id DESC LIMIT :limit

-- name: work_by_id
SELECT id, cluster, "user", account, kind, name, key FROM works WHERE id = :id

-- The works of the newest runs of some conditions, those that held the most core time first, with
-- the newest run of each. A run without an end counts up to its last sample.
-- name: largest_works
SELECT work_id, count(*) AS runs, sum(held) AS held, sum(failed) AS failed, max(id) AS newest
FROM (
    SELECT id, shown_state, CAST(coalesce(cpus, 0) AS DOUBLE PRECISION)
            * (coalesce("end", last_seen, start) - start) AS held,
        CASE WHEN shown_state IN ('COMPLETED', 'RUNNING', 'PENDING', 'CANCELLED') THEN 0 ELSE 1 END
            AS failed
    FROM runs WHERE :conditions ORDER BY start DESC, id DESC LIMIT :newest
) AS newest
JOIN run_figures ON run_figures.run_id = newest.id
WHERE work_id IS NOT NULL
GROUP BY work_id
ORDER BY held DESC, work_id
LIMIT :limit

-- The rows of the time series of some runs.
-- name: samples_of_runs
SELECT run_nodes.run_id, sum(chunks.rows)
FROM run_nodes JOIN chunks ON chunks.run_node_id = run_nodes.id
WHERE run_nodes.run_id IN (:keys) GROUP BY run_nodes.run_id

-- The latest runs of a work that were stored before one of them.
-- name: earlier_runs
SELECT runs.id, runs.job_id, runs.start, runs."end", runs.shown_state AS state, runs.exit_code,
    runs.exit_signal, runs.submit, runs.time_limit, runs.cpus, runs.memory, runs.gpus,
    runs."partition", runs.cpu_time, runs.memory_used_peak, runs.gpu_count, runs.gpu_unused_count,
    runs.gpu_held_time, run_figures.data
FROM run_figures JOIN runs ON runs.id = run_figures.run_id
WHERE run_figures.work_id = :work_id AND run_figures.run_id < :run_id
ORDER BY run_figures.run_id DESC LIMIT :limit

-- name: short_runs
SELECT count(*) FROM (
    SELECT runs.start, runs."end"
    FROM run_figures JOIN runs ON runs.id = run_figures.run_id
    WHERE run_figures.work_id = :work_id AND run_figures.run_id < :run_id
    ORDER BY run_figures.run_id DESC LIMIT :limit
) AS latest
WHERE start >= :since AND "end" - start < :short

-- name: tasks_of_array
SELECT array_task_id, start, "end", shown_state AS state, cpus, memory, memory_used_peak
FROM runs WHERE array_job_id = :array_job_id AND cluster = :cluster AND "end" IS NOT NULL
ORDER BY id LIMIT :limit

-- Some tasks of an array that were judged, the latest first.
-- name: judged_tasks_of_array
SELECT runs.array_task_id, run_figures.data
FROM runs JOIN run_figures ON run_figures.run_id = runs.id
WHERE runs.array_job_id = :array_job_id AND runs.cluster = :cluster AND runs."end" IS NOT NULL
ORDER BY runs.id DESC LIMIT :limit

-- Differs if a task has ended or changed.
-- name: state_of_array
SELECT count(*), sum(changes) FROM runs
WHERE array_job_id = :array_job_id AND cluster = :cluster AND "end" IS NOT NULL

-- The waits of a partition, the latest first.
-- name: waits
SELECT qos, cpus, memory, time_limit, coalesce(gpus, 0), start - submit
FROM runs
WHERE start >= :since AND start < :until AND cluster = :cluster AND "partition" = :partition
    AND submit IS NOT NULL AND cpus > 0 AND memory > 0 AND time_limit > 0 AND start >= submit
ORDER BY start DESC, id DESC LIMIT :limit

-- The latest runs on whose nodes a program ran, with its CPU time there.
-- name: runs_of_program
SELECT runs.id, runs."user", runs.cluster, runs.cpus, runs.cpu_time, runs.start, runs."end",
    uses.cpu_time AS program_time
FROM (
    SELECT run_node_id, cpu_time FROM executables
    WHERE path_id = (SELECT id FROM paths WHERE digest = :digest)
    ORDER BY run_node_id DESC LIMIT :limit
) AS uses
JOIN run_nodes ON run_nodes.id = uses.run_node_id
JOIN runs ON runs.id = run_nodes.run_id
WHERE runs."end" IS NOT NULL AND runs.cpus > 0 AND runs.cpu_time > 0 AND runs."user" IS NOT NULL

-- Keys are cluster and job id.
-- name: scripts_of_jobs
WITH wanted(cluster, job_id) AS (VALUES :keys)
SELECT runs.job_id, runs.script FROM wanted CROSS JOIN runs
WHERE runs.cluster = wanted.cluster AND runs.job_id = wanted.job_id

-- name: set_script
UPDATE runs SET script = :key WHERE cluster = :cluster AND job_id = :job_id AND script IS NULL
