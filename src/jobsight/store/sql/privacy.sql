-- What the store has about a user: queries of an export, and statements that erase.

-- name: export_user_accounts
SELECT * FROM user_accounts WHERE name = :user

-- name: export_sessions
SELECT * FROM sessions WHERE "user" = :user ORDER BY created

-- name: export_user_tokens
SELECT * FROM user_tokens WHERE "user" = :user ORDER BY id

-- name: export_preferences
SELECT * FROM preferences WHERE "user" = :user

-- name: export_audit_log
SELECT * FROM audit_log WHERE "user" = :user OR viewer = :user ORDER BY first

-- name: export_coordinators
SELECT * FROM coordinators WHERE "user" = :user ORDER BY cluster, account, since

-- name: export_runs
SELECT * FROM runs WHERE "user" = :user ORDER BY start, id

-- name: export_properties
SELECT cluster, job_id, name, value, changed FROM job_properties WHERE "user" = :user
ORDER BY cluster, job_id, name

-- name: export_works
SELECT * FROM works WHERE "user" = :user ORDER BY id

-- name: export_findings
SELECT * FROM findings WHERE "user" = :user ORDER BY run_id, kind

-- name: export_executables
SELECT runs.cluster, runs.job_id, runs.start, run_nodes.node, paths.path, executables.cpu_time,
    executables.executions, executables.first_seen, executables.last_seen
FROM runs JOIN run_nodes ON run_nodes.run_id = runs.id
JOIN executables ON executables.run_node_id = run_nodes.id
JOIN paths ON paths.id = executables.path_id
WHERE runs."user" = :user ORDER BY runs.start, runs.id

-- name: export_usage_by_day
SELECT * FROM usage_by_day WHERE "user" = :user ORDER BY day

-- name: export_usage_by_month
SELECT * FROM usage_by_month WHERE "user" = :user ORDER BY month

-- name: export_software_by_day
SELECT * FROM software_by_day WHERE "user" = :user ORDER BY day

-- name: export_software_by_month
SELECT * FROM software_by_month WHERE "user" = :user ORDER BY month

-- name: export_findings_by_day
SELECT * FROM findings_by_day WHERE "user" = :user ORDER BY day

-- name: export_findings_shown
SELECT * FROM findings_shown WHERE viewer = :user ORDER BY run_id, kind

-- name: export_run_figures
SELECT run_figures.run_id, run_figures.data FROM run_figures
JOIN runs ON runs.id = run_figures.run_id WHERE runs."user" = :user ORDER BY run_figures.run_id

-- name: export_run_details
SELECT run_details.run_id, run_details.data FROM run_details
JOIN runs ON runs.id = run_details.run_id WHERE runs."user" = :user ORDER BY run_details.run_id

-- name: export_job_chains
SELECT * FROM job_chains WHERE "user" = :user ORDER BY cluster, job_id

-- Mail goes to a user or to an address of the user.
-- name: export_mail_pauses
SELECT * FROM mail_pauses
WHERE recipient = :user OR substr(recipient, 1, length(:user) + 1) = :user || '@'
ORDER BY recipient, cause

-- name: export_mail_log
SELECT * FROM mail_log
WHERE recipient = :user OR substr(recipient, 1, length(:user) + 1) = :user || '@'
ORDER BY day, kind

-- name: count_runs
SELECT count(*) FROM runs WHERE "user" = :user

-- name: count_accounts
SELECT count(*) FROM user_accounts WHERE name = :user

-- name: contributions
SELECT contributions.run_id, contributions.data FROM contributions
JOIN runs ON runs.id = contributions.run_id WHERE runs."user" = :user

-- name: set_contribution
UPDATE contributions SET data = :data WHERE run_id = :run_id

-- name: findings
SELECT run_id, kind, data FROM findings WHERE "user" = :user

-- name: set_finding
UPDATE findings SET data = :data WHERE run_id = :run_id AND kind = :kind

-- name: figures
SELECT run_figures.run_id, run_figures.data FROM run_figures
JOIN runs ON runs.id = run_figures.run_id WHERE runs."user" = :user

-- name: set_figures
UPDATE run_figures SET data = :data WHERE run_id = :run_id

-- name: scheduler_records
SELECT cluster, kind, name, data FROM cluster_records WHERE kind IN ('pending', 'association')

-- name: remove_scheduler_record
DELETE FROM cluster_records WHERE cluster = :cluster AND kind = :kind AND name = :name

-- name: paths
SELECT DISTINCT paths.id, paths.path FROM runs
JOIN run_nodes ON run_nodes.run_id = runs.id
JOIN executables ON executables.run_node_id = run_nodes.id
JOIN paths ON paths.id = executables.path_id
WHERE runs."user" = :user

-- name: set_path
UPDATE paths SET path = :path, digest = :digest WHERE id = :id

-- Scripts that no work of another user has.
-- name: erase_scripts
DELETE FROM scripts WHERE key IN (SELECT key FROM works WHERE "user" = :user)
    AND key NOT IN (SELECT key FROM works WHERE "user" <> :user)

-- name: erase_details
DELETE FROM run_details WHERE run_id IN (SELECT id FROM runs WHERE "user" = :user)

-- name: erase_properties
DELETE FROM job_properties WHERE "user" = :user

-- name: erase_chains
DELETE FROM job_chains WHERE "user" = :user

-- name: erase_works
UPDATE works SET "user" = :pseudonym, name = '' WHERE "user" = :user

-- name: erase_findings
UPDATE findings SET "user" = :pseudonym WHERE "user" = :user

-- name: erase_replies
UPDATE findings SET reply_user = :pseudonym WHERE reply_user = :user

-- name: erase_findings_by_day
UPDATE findings_by_day SET "user" = :pseudonym WHERE "user" = :user

-- name: erase_findings_shown
UPDATE findings_shown SET viewer = :pseudonym WHERE viewer = :user

-- name: erase_usage_by_day
UPDATE usage_by_day SET "user" = :pseudonym WHERE "user" = :user

-- name: erase_software_by_day
UPDATE software_by_day SET "user" = :pseudonym WHERE "user" = :user

-- name: erase_usage_by_month
UPDATE usage_by_month SET "user" = :pseudonym WHERE "user" = :user

-- name: erase_software_by_month
UPDATE software_by_month SET "user" = :pseudonym WHERE "user" = :user

-- name: erase_coordinators
DELETE FROM coordinators WHERE "user" = :user

-- name: erase_views
DELETE FROM audit_log WHERE "user" = :user

-- name: erase_views_by
UPDATE audit_log SET viewer = :pseudonym WHERE viewer = :user

-- name: erase_mail_pauses
DELETE FROM mail_pauses
WHERE recipient = :user OR substr(recipient, 1, length(:user) + 1) = :user || '@'

-- name: erase_mail_log
DELETE FROM mail_log
WHERE recipient = :user OR substr(recipient, 1, length(:user) + 1) = :user || '@'

-- name: erase_sessions
DELETE FROM sessions WHERE "user" = :user

-- name: erase_tokens
DELETE FROM user_tokens WHERE "user" = :user

-- name: erase_preferences
DELETE FROM preferences WHERE "user" = :user

-- name: erase_account
DELETE FROM user_accounts WHERE name = :user

-- The archived state is no longer that of the run. Last, since the others find runs by the name.
-- name: erase_runs
UPDATE runs SET "user" = :pseudonym, uid = NULL, name = NULL, command = NULL, script = NULL,
    archived_updated = NULL
WHERE "user" = :user
