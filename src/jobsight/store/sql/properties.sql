-- Properties that users add to their own jobs.

-- name: properties_of_job
SELECT name, value FROM job_properties
WHERE cluster = :cluster AND job_id = :job_id AND "user" = :user ORDER BY name

-- name: set_property
INSERT INTO job_properties (cluster, job_id, "user", name, value, size, changed)
VALUES (:cluster, :job_id, :user, :name, :value, :size, :changed)
ON CONFLICT (cluster, job_id, "user", name)
DO UPDATE SET value = excluded.value, size = excluded.size, changed = excluded.changed

-- name: remove_property
DELETE FROM job_properties
WHERE cluster = :cluster AND job_id = :job_id AND "user" = :user AND name = :name

-- name: size_of_properties
SELECT count(*), coalesce(sum(size), 0) FROM job_properties
WHERE cluster = :cluster AND job_id = :job_id AND "user" = :user

-- name: short_properties
SELECT name, value FROM job_properties
WHERE cluster = :cluster AND job_id = :job_id AND "user" = :user AND size <= :size
ORDER BY name LIMIT :limit
