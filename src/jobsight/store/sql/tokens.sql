-- Tokens of clusters.

-- name: list
SELECT * FROM tokens ORDER BY id

-- name: get
SELECT * FROM tokens WHERE id = :id

-- name: find
SELECT * FROM tokens WHERE digest = :digest

-- name: insert
INSERT INTO tokens (cluster, digest, label, created, expires)
VALUES (:cluster, :digest, :label, :created, :expires)

-- name: find_id
SELECT id FROM tokens WHERE digest = :digest

-- A second rotation never extends the life of a token.
-- name: shorten
UPDATE tokens SET expires = :expires
WHERE id = :id AND (expires IS NULL OR expires > :expires)

-- name: revoke
UPDATE tokens SET revoked = :now WHERE id = :id AND revoked IS NULL

-- name: set_used
UPDATE tokens SET used = :used WHERE id = :id AND (used IS NULL OR used < :used)
