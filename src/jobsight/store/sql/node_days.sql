-- The time series of nodes as a whole, by day of UTC.

-- name: find_node_days
WITH wanted(cluster, node, day) AS (VALUES :keys)
SELECT own.id, own.day, own.first_sample, own.last_sample, own.open_chunks, own.stored_values
FROM wanted CROSS JOIN node_days AS own
WHERE own.cluster = wanted.cluster AND own.node = wanted.node AND own.day = wanted.day

-- name: insert_node_day
INSERT INTO node_days (id, cluster, node, day, first_sample, last_sample, open_chunks,
    stored_values, complete)
VALUES (:id, :cluster, :node, :day, :first_sample, :last_sample, :open_chunks, :stored_values,
    false)

-- A late part makes a day incomplete, which keeps its sums until it is complete again.
-- name: update_node_day
UPDATE node_days SET first_sample = :first_sample, last_sample = :last_sample,
    open_chunks = :open_chunks, stored_values = :stored_values, complete = false
WHERE id = :id

-- name: complete_node_day
UPDATE node_days SET open_chunks = 0, complete = true, downsampled = false, cpu_time = :cpu_time,
    core_time = :core_time
WHERE id = :id

-- name: clear_open_chunks
UPDATE node_days SET open_chunks = 0 WHERE id = :id

-- name: insert_chunk
INSERT INTO node_chunks (node_day_id, first, last, rows, level, data, summary)
VALUES (:owner, :first, :last, :rows, :level, :data, :summary)

-- name: chunks_up_to
SELECT data FROM node_chunks WHERE node_day_id = :owner AND level <= :level ORDER BY id

-- name: delete_chunks_up_to
DELETE FROM node_chunks WHERE node_day_id = :owner AND level <= :level

-- name: chunks_of_node
SELECT node_chunks.id, length(node_chunks.data)
FROM node_days JOIN node_chunks ON node_chunks.node_day_id = node_days.id
WHERE node_days.cluster = :cluster AND node_days.node = :node
    AND node_days.day BETWEEN :first_day AND :last_day
    AND node_chunks.last >= :since AND node_chunks.first <= :until
ORDER BY node_days.day, node_chunks.id

-- name: chunk_data
SELECT data FROM node_chunks WHERE id IN (:keys) ORDER BY id

-- As floating-point numbers: nobody bounds how many nodes a sender invents.
-- name: use_by_day
SELECT day, sum(CAST(cpu_time AS DOUBLE PRECISION)), sum(CAST(core_time AS DOUBLE PRECISION))
FROM node_days
WHERE cluster = :cluster AND day >= :since AND day < :until AND cpu_time IS NOT NULL
GROUP BY day

-- Maintenance.

-- Days that are over and wait for completion, in the order of their index. A day that was complete
-- before a late part came has a chunk of level 2.
-- name: incomplete_node_days
SELECT id, cluster, node, day FROM node_days
WHERE (cluster, node, day) > (:cluster, :node, :day) AND NOT complete AND day < :before
    AND (:late OR NOT EXISTS (
        SELECT 1 FROM node_chunks WHERE node_day_id = node_days.id AND level = 2))
    AND NOT EXISTS (
        SELECT 1 FROM dead_letters
        WHERE kind = 'node-day' AND key = CAST(node_days.id AS TEXT))
ORDER BY cluster, node, day LIMIT :limit

-- name: dead_letters_of_days
SELECT key FROM dead_letters WHERE kind = 'node-day' AND key IN (:keys)

-- Without those whose time series could not be downsampled.
-- name: node_days_by_id
SELECT id, cluster, node, day FROM node_days WHERE id IN (:keys) AND NOT complete ORDER BY id

-- Days that are due, oldest first; a downsampled one is only due for its removal.
-- name: due_node_days
SELECT id, cluster, node, day FROM node_days
WHERE (day > :day OR (day = :day AND id > :after)) AND day < :until
    AND (:all OR (complete AND NOT downsampled AND NOT EXISTS (
        SELECT 1 FROM dead_letters
        WHERE kind = 'node-day' AND key = CAST(node_days.id AS TEXT)
            AND (tries >= :tries OR last > :tried OR reason = :interrupted))))
ORDER BY day, id LIMIT :limit

-- name: count_due_node_days
SELECT count(*) FROM node_days
WHERE day >= :since AND day < :until
    AND (:all OR (complete AND NOT downsampled AND NOT EXISTS (
        SELECT 1 FROM dead_letters
        WHERE kind = 'node-day' AND key = CAST(node_days.id AS TEXT)
            AND (tries >= :tries OR last > :tried OR reason = :interrupted))))

-- name: size_of_due_chunks
SELECT count(*), coalesce(sum(length(node_chunks.data)), 0)
FROM node_days JOIN node_chunks ON node_chunks.node_day_id = node_days.id
WHERE node_days.day >= :since AND node_days.day < :until
    AND (:all OR (node_days.complete AND NOT node_days.downsampled AND NOT EXISTS (
        SELECT 1 FROM dead_letters
        WHERE kind = 'node-day' AND key = CAST(node_days.id AS TEXT)
            AND (tries >= :tries OR last > :tried OR reason = :interrupted))))

-- name: size_of_chunks
SELECT count(*), coalesce(sum(length(data)), 0) FROM node_chunks WHERE node_day_id IN (:keys)

-- name: chunks_of_day
SELECT id, data FROM node_chunks WHERE node_day_id = :id ORDER BY id

-- name: chunk_ids
SELECT id FROM node_chunks WHERE node_day_id = :id ORDER BY id

-- name: delete_chunks
DELETE FROM node_chunks WHERE node_day_id = :id

-- name: delete_dead_letters
DELETE FROM dead_letters WHERE kind = 'node-day' AND key = CAST(:id AS TEXT)

-- name: delete_node_day
DELETE FROM node_days WHERE id = :id

-- name: insert_downsampled
INSERT INTO node_chunks (node_day_id, first, last, rows, level, data, summary, resolution)
VALUES (:id, :first, :last, :rows, 2, :data, :summary, :resolution)

-- name: mark_downsampled
UPDATE node_days SET downsampled = true WHERE id = :id

-- name: delete_chunk
DELETE FROM node_chunks WHERE id = :id

-- name: one_chunk
SELECT data FROM node_chunks WHERE id = :id

-- name: repair_chunk
UPDATE node_chunks SET first = :first, last = :last, rows = :rows, summary = :summary WHERE id = :id

-- name: repair_node_day
UPDATE node_days SET
    open_chunks = (SELECT count(*) FROM node_chunks WHERE node_day_id = :id AND level = 0),
    first_sample = coalesce(
        (SELECT min(first) FROM node_chunks WHERE node_day_id = :id), first_sample),
    last_sample = coalesce((SELECT max(last) FROM node_chunks WHERE node_day_id = :id), last_sample)
WHERE id = :id
