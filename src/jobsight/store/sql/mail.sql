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

-- name: remove_ended_pauses
DELETE FROM mail_pauses WHERE until IS NOT NULL AND until <= :now

-- name: add_to_log
INSERT INTO mail_log (day, kind, recipient, outcome, reason, mails, last)
VALUES (:day, :kind, :recipient, :outcome, :reason, :mails, :last)
ON CONFLICT (day, kind, recipient, outcome) DO UPDATE SET reason = excluded.reason,
    mails = mail_log.mails + excluded.mails, last = excluded.last

-- name: read_log
SELECT day, kind, recipient, outcome, reason, mails, last FROM mail_log
WHERE day >= :since ORDER BY day DESC, kind, recipient, outcome LIMIT :limit

-- The last mails of a kind to a recipient, of which it is known what became of them.
-- name: last_outcomes
SELECT outcome FROM mail_log
WHERE recipient = :recipient AND kind = :kind AND outcome IN ('sent', 'refused')
ORDER BY last DESC LIMIT :limit

-- name: forget_refusals
DELETE FROM mail_log WHERE recipient = :recipient AND outcome = 'refused'

-- name: prune_log
DELETE FROM mail_log WHERE day < :before
