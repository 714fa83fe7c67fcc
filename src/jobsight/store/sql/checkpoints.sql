-- Positions at which background work resumes.

-- name: read_checkpoint
SELECT value, text FROM checkpoints WHERE name = :name

-- name: list_checkpoints
SELECT name, value, text FROM checkpoints WHERE name LIKE :pattern ORDER BY name

-- name: set_checkpoint
INSERT INTO checkpoints (name, value, text) VALUES (:name, :value, :text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, text = excluded.text

-- name: add_to_checkpoint
INSERT INTO checkpoints (name, value, text) VALUES (:name, :value, :text)
ON CONFLICT (name) DO UPDATE SET value = checkpoints.value + excluded.value

-- name: remove_checkpoint
DELETE FROM checkpoints WHERE name = :name
