-- Chains of jobs that depend on each other: which jobs belong to which, and their runs.

-- name: chains_of_jobs
WITH wanted(cluster, job_id) AS (VALUES :keys)
SELECT job_chains.cluster, job_chains."user", job_chains.job_id, job_chains.chain_job_id
FROM wanted CROSS JOIN job_chains
WHERE job_chains.cluster = wanted.cluster AND job_chains.job_id = wanted.job_id

-- name: count_jobs
SELECT count(*) FROM job_chains
WHERE cluster = :cluster AND "user" = :user AND chain_job_id = :chain

-- name: add_job
INSERT INTO job_chains (cluster, job_id, "user", chain_job_id, seen)
VALUES (:cluster, :job_id, :user, :chain, :now)
ON CONFLICT (cluster, job_id, "user") DO NOTHING

-- name: join_chains
UPDATE job_chains SET chain_job_id = :chain
WHERE cluster = :cluster AND "user" = :user AND chain_job_id = :other

-- A job is also the array or the heterogeneous job of that id. Slurm forgets a job some minutes
-- after its end, so an older run is that of another job with the same id.
-- name: runs_of_job
SELECT id, job_id FROM runs
WHERE id IN (
        SELECT id FROM runs WHERE job_id = :job_id
        UNION SELECT id FROM runs WHERE array_job_id = :job_id AND cluster = :cluster
        UNION SELECT id FROM runs WHERE het_job_id = :job_id AND cluster = :cluster
    )
    AND cluster = :cluster AND "user" = :user AND coalesce("end", last_seen, start) >= :since

-- name: runs_of_chain
SELECT id, job_id FROM runs
WHERE chain_job_id = :other AND cluster = :cluster AND "user" = :user

-- name: set_chain
UPDATE runs SET chain_job_id = :chain WHERE id = :id

-- name: chains_of_new_runs
WITH wanted(id, cluster, job_id) AS (VALUES :keys)
SELECT runs.id, job_chains.chain_job_id
FROM wanted CROSS JOIN job_chains CROSS JOIN runs
WHERE job_chains.cluster = wanted.cluster AND job_chains.job_id = wanted.job_id
    AND runs.id = wanted.id AND runs."user" = job_chains."user" AND runs.chain_job_id IS NULL

-- name: delete_old
DELETE FROM job_chains WHERE seen < :before
