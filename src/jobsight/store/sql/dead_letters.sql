-- Dead letters: work that failed and is not tried again by itself.

-- name: mark
INSERT INTO dead_letters (kind, key, cluster, reason, first, last, tries)
VALUES (:kind, :key, :cluster, :reason, :now, :now, 1)
ON CONFLICT (kind, key) DO UPDATE SET cluster = excluded.cluster, reason = excluded.reason,
    last = excluded.last, tries = dead_letters.tries + 1

-- name: set_reason
UPDATE dead_letters SET reason = :reason, last = :now WHERE kind = :kind AND key = :key

-- name: resolve
DELETE FROM dead_letters WHERE kind = :kind AND key = :key

-- name: due
SELECT key FROM dead_letters
WHERE kind = :kind AND tries < :tries AND last <= :before AND reason <> :interrupted
ORDER BY last, key LIMIT :limit

-- name: list
SELECT kind, key, dead_letters.cluster, reason, first, last, tries, runs.job_id, runs.start
FROM dead_letters
LEFT JOIN runs ON runs.id = CASE WHEN kind IN ('rollup', 'finding')
    THEN CAST(key AS BIGINT) END
ORDER BY last DESC, kind, key LIMIT :limit

-- name: count
SELECT cluster, kind, count(*) FROM dead_letters GROUP BY cluster, kind ORDER BY cluster, kind

-- name: names
SELECT kind, key FROM dead_letters ORDER BY kind, key

-- name: find
SELECT 1 FROM dead_letters WHERE kind = :kind AND key = :key

-- The run keeps the share in the daily rollups that it had before, if any.
-- name: give_up_rollup
UPDATE runs SET stale = false WHERE id = CAST(:key AS BIGINT)

-- The run keeps the findings that it had before, if any.
-- name: give_up_finding
UPDATE runs SET unjudged = false WHERE id = CAST(:key AS BIGINT)

-- The day keeps its chunks as they are until a part of it arrives.
-- name: give_up_node_day
UPDATE node_days SET complete = true, downsampled = true WHERE id = CAST(:key AS BIGINT)
