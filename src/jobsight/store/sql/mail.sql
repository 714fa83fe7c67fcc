-- Mail: who gets none of what, and what was and would have been sent.

-- name: set_pause
INSERT INTO mail_pauses (recipient, cause, until, reason, created)
VALUES (:recipient, :cause, :until, :reason, :created)
ON CONFLICT (recipient, cause) DO UPDATE SET until = excluded.until, reason = excluded.reason,
    created = excluded.created

-- name: remove_pause
DELETE FROM mail_pauses WHERE recipient = :recipient AND cause = :cause

-- name: list_pauses
SELECT recipient, cause, until, reason, created FROM mail_pauses
WHERE until IS NULL OR until > :now
ORDER BY recipient, cause LIMIT :limit

-- A pause of nobody in particular is one of everybody.
-- name: pauses_of
SELECT cause FROM mail_pauses
WHERE recipient IN (:recipient, '') AND (until IS NULL OR until > :now)

-- name: find_pause
SELECT recipient, cause, until, reason, created FROM mail_pauses
WHERE recipient = :recipient AND cause = :cause

-- name: remove_ended_pauses
DELETE FROM mail_pauses
WHERE until IS NOT NULL AND until <= :now AND (cause <> :refused OR until <= :remembered)

-- name: add_to_log
INSERT INTO mail_log (day, kind, recipient, outcome, reason, mails, last)
VALUES (:day, :kind, :recipient, :outcome, :reason, :mails, :last)
ON CONFLICT (day, kind, recipient, outcome) DO UPDATE SET reason = excluded.reason,
    mails = mail_log.mails + excluded.mails, last = excluded.last

-- name: read_log
SELECT day, kind, recipient, outcome, reason, mails, last FROM mail_log
WHERE day >= :since ORDER BY day DESC, kind, recipient, outcome LIMIT :limit

-- name: prune_log
DELETE FROM mail_log WHERE day < :before
