-- Accounts of people: roles, sessions, tokens, preferences, the audit log, coordinators.

-- name: list_accounts
SELECT * FROM user_accounts ORDER BY name

-- name: get_account
SELECT * FROM user_accounts WHERE name = :name

-- name: any_password
SELECT 1 FROM user_accounts WHERE password_hash IS NOT NULL LIMIT 1

-- name: insert_account
INSERT INTO user_accounts (name, role, accounts, password_hash, origin, created)
VALUES (:name, :role, :accounts, :password_hash, :origin, :now)
ON CONFLICT (name) DO NOTHING

-- name: set_role
UPDATE user_accounts SET role = :role, accounts = :accounts WHERE name = :name

-- name: set_password
UPDATE user_accounts SET password_hash = :password_hash WHERE name = :name

-- name: disable_account
UPDATE user_accounts SET disabled = :now WHERE name = :name AND disabled IS NULL

-- name: enable_account
UPDATE user_accounts SET disabled = NULL WHERE name = :name AND disabled IS NOT NULL

-- name: set_last_sign_in
UPDATE user_accounts SET last_sign_in = :now WHERE name = :name

-- name: delete_account
DELETE FROM user_accounts WHERE name = :name

-- name: insert_session
INSERT INTO sessions
    (digest, "user", server_token, created, last_seen, expires, peer_uid, address, user_agent)
VALUES (:digest, :user, :server_token, :now, :now, :expires, :peer_uid, :address, :user_agent)

-- name: find_session
SELECT * FROM sessions WHERE digest = :digest

-- name: list_sessions
SELECT * FROM sessions WHERE "user" = :user ORDER BY last_seen DESC

-- The oldest beyond the limit.
-- name: surplus_sessions
SELECT digest FROM sessions WHERE "user" = :user ORDER BY last_seen DESC LIMIT 1000 OFFSET :kept

-- name: surplus_server_sessions
SELECT digest FROM sessions WHERE "user" IS NULL ORDER BY last_seen DESC LIMIT 1000 OFFSET :kept

-- name: set_session_seen
UPDATE sessions SET last_seen = :now WHERE digest = :digest AND last_seen < :now

-- name: delete_session
DELETE FROM sessions WHERE digest = :digest

-- name: delete_sessions_of
DELETE FROM sessions WHERE "user" = :user

-- name: delete_ended_sessions
DELETE FROM sessions WHERE expires <= :now OR last_seen <= :idle

-- name: insert_token
INSERT INTO user_tokens ("user", digest, label, scope, created, expires)
VALUES (:user, :digest, :label, :scope, :now, :expires)

-- name: find_token
SELECT * FROM user_tokens WHERE digest = :digest

-- name: list_tokens
SELECT * FROM user_tokens WHERE CAST(:user AS TEXT) IS NULL OR "user" = :user ORDER BY id

-- name: get_token
SELECT * FROM user_tokens WHERE id = :id

-- name: count_valid_tokens
SELECT count(*) FROM user_tokens
WHERE "user" = :user AND revoked IS NULL AND expires > :now

-- name: revoke_token
UPDATE user_tokens SET revoked = :now WHERE id = :id AND revoked IS NULL

-- name: set_token_used
UPDATE user_tokens SET used = :now WHERE id = :id AND (used IS NULL OR used < :now)

-- name: delete_tokens_of
DELETE FROM user_tokens WHERE "user" = :user

-- name: delete_old_tokens
DELETE FROM user_tokens WHERE expires <= :before OR revoked <= :before

-- name: get_preferences
SELECT data FROM preferences WHERE "user" = :user

-- name: set_preferences
INSERT INTO preferences ("user", data) VALUES (:user, :data)
ON CONFLICT ("user") DO UPDATE SET data = excluded.data

-- name: delete_preferences
DELETE FROM preferences WHERE "user" = :user

-- name: record_view
INSERT INTO audit_log ("user", day, viewer, subject, first, last, count)
VALUES (:user, :day, :viewer, :subject, :first, :last, :count)
ON CONFLICT ("user", day, viewer, subject) DO UPDATE
SET last = CASE WHEN audit_log.last > excluded.last THEN audit_log.last ELSE excluded.last END,
    count = audit_log.count + excluded.count

-- name: views_of
SELECT * FROM audit_log WHERE "user" IN (:user, :many) ORDER BY last DESC LIMIT :limit

-- name: all_views
SELECT * FROM audit_log ORDER BY last DESC LIMIT :limit

-- name: delete_views_before
DELETE FROM audit_log WHERE day < :day

-- name: open_coordinators
SELECT account, "user" FROM coordinators WHERE cluster = :cluster AND until IS NULL

-- name: begin_coordinator
INSERT INTO coordinators (cluster, account, "user", since)
VALUES (:cluster, :account, :user, :now)
ON CONFLICT (cluster, account, "user", since) DO UPDATE SET until = NULL

-- name: end_coordinator
UPDATE coordinators SET until = :now
WHERE cluster = :cluster AND account = :account AND "user" = :user AND until IS NULL

-- name: coordinated_by
SELECT cluster, account, "user", since, until FROM coordinators WHERE "user" = :user
ORDER BY cluster, account, since

-- name: coordinators_of
SELECT cluster, account, "user", since, until FROM coordinators WHERE account = :account
ORDER BY cluster, since, "user"

-- name: failures_of
SELECT ends, failures FROM sign_in_failures WHERE key = :key

-- name: delete_ended_failures
DELETE FROM sign_in_failures WHERE ends <= :now

-- name: count_failure
INSERT INTO sign_in_failures (key, ends, failures) VALUES (:key, :ends, 1)
ON CONFLICT (key) DO UPDATE SET failures = sign_in_failures.failures + 1

-- name: surplus_failures
SELECT count(*) - :most FROM sign_in_failures

-- name: delete_first_failures
DELETE FROM sign_in_failures WHERE key IN (
    SELECT key FROM sign_in_failures ORDER BY ends, key LIMIT :surplus
)

-- name: take_back_failure
UPDATE sign_in_failures SET failures = failures - 1 WHERE key = :key

-- name: delete_no_failures
DELETE FROM sign_in_failures WHERE failures <= 0

-- name: forget_failures
DELETE FROM sign_in_failures WHERE key = :key
