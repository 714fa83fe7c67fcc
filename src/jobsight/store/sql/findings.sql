-- Findings: what the rules see, what they find, the daily rollups, and what was shown.

-- Ended runs that changed since they were judged, in the order in which they were stored: the
-- figures of a run include those of earlier runs of the same work.
-- name: unjudged_runs
SELECT :columns FROM runs
WHERE unjudged AND id > :after
    AND ("end" >= :since
        OR ("end" IS NULL AND open_nodes = 0 AND coalesce(last_seen, start) >= :since))
    AND NOT EXISTS (
        SELECT 1 FROM dead_letters WHERE kind = 'finding' AND key = CAST(runs.id AS TEXT))
ORDER BY id LIMIT :limit

-- Running runs that a node has reported lately, that changed, or that no node reports.
-- name: running_runs
SELECT :columns FROM runs
WHERE shown_state = 'RUNNING' AND id > :after
    AND (unjudged OR last_seen IS NULL OR last_seen >= :seen) AND NOT EXISTS (
    SELECT 1 FROM dead_letters WHERE kind = 'finding' AND key = CAST(runs.id AS TEXT))
ORDER BY id LIMIT :limit

-- name: arrays_of_runs
SELECT DISTINCT cluster, array_job_id FROM runs WHERE id IN (:keys) AND array_job_id IS NOT NULL

-- name: recent_arrays
SELECT DISTINCT cluster, array_job_id FROM runs
WHERE "end" >= :since AND array_job_id IS NOT NULL
ORDER BY array_job_id DESC, cluster LIMIT :limit

-- A task is pending, runs, or has not been judged since it ended.
-- name: is_array_open
SELECT CASE WHEN EXISTS (
        SELECT 1 FROM runs WHERE array_job_id = :array_job_id AND cluster = :cluster
            AND ("end" IS NULL OR unjudged) AND NOT EXISTS (
            SELECT 1 FROM dead_letters WHERE kind = 'finding' AND key = CAST(runs.id AS TEXT)))
    OR EXISTS (
        SELECT 1 FROM cluster_records WHERE cluster = :cluster AND kind = 'pending'
            AND (name = :name OR name LIKE :tasks ESCAPE '!'))
    THEN 1 ELSE 0 END

-- A run of a job, array or heterogeneous job has changed since it was judged.
-- name: is_job_unjudged
SELECT CASE WHEN EXISTS (
        SELECT 1 FROM runs
        WHERE unjudged AND cluster = :cluster
            AND (job_id = :job_id OR array_job_id = :job_id OR het_job_id = :job_id)
            AND NOT EXISTS (
                SELECT 1 FROM dead_letters WHERE kind = 'finding' AND key = CAST(runs.id AS TEXT)))
    THEN 1 ELSE 0 END

-- name: judged_tasks
SELECT :columns, run_figures.data FROM runs JOIN run_figures ON run_figures.run_id = runs.id
WHERE runs.array_job_id = :array_job_id AND runs.cluster = :cluster AND runs."end" IS NOT NULL
ORDER BY runs.id LIMIT :limit

-- name: run_to_judge
SELECT :columns FROM runs WHERE id = :id

-- Runs that can be judged again without their time series.
-- name: runs_with_figures
SELECT :columns FROM run_figures
JOIN runs ON runs.id = run_figures.run_id
WHERE run_figures.run_id > :after ORDER BY run_figures.run_id LIMIT :limit

-- name: count_runs_with_figures
SELECT count(*) FROM run_figures WHERE run_id > :after

-- name: count_unjudged
SELECT count(*) FROM runs WHERE unjudged AND ("end" IS NOT NULL OR open_nodes = 0)

-- name: dead_letters_of_runs
SELECT key FROM dead_letters WHERE kind = 'finding' AND key IN (:keys)

-- name: changes_of_runs
SELECT id, changes FROM runs WHERE id IN (:keys)

-- name: set_judged
UPDATE runs SET unjudged = false WHERE id = :id AND changes = :changes

-- Sinks are fed by changes of the details; running runs are sent each time.
-- name: feed_again
UPDATE run_details SET changed = :now WHERE run_id = :run_id AND changed < :now
    AND EXISTS (SELECT 1 FROM runs WHERE id = :run_id AND "end" IS NOT NULL)

-- name: set_figures
INSERT INTO run_figures (run_id, work_id, revision, data)
VALUES (:run_id, :work_id, :revision, :data)
ON CONFLICT (run_id) DO UPDATE SET work_id = excluded.work_id, revision = excluded.revision,
    data = excluded.data

-- name: figures_of_runs
SELECT run_id, work_id, data FROM run_figures WHERE run_id IN (:keys)

-- The latest runs of a work before one of them.
-- name: figures_of_work
SELECT run_figures.run_id, run_figures.data
FROM run_figures JOIN runs ON runs.id = run_figures.run_id
WHERE run_figures.work_id = :work_id AND runs.start < :before
ORDER BY runs.start DESC, run_figures.run_id DESC LIMIT :limit

-- name: insert_work
INSERT INTO works (cluster, "user", account, kind, key, name)
VALUES (:cluster, :user, :account, :kind, :key, :name)
ON CONFLICT (cluster, "user", account, kind, key) DO NOTHING

-- name: find_work
SELECT id FROM works WHERE cluster = :cluster AND "user" = :user AND account = :account
    AND kind = :kind AND key = :key

-- name: insert_script
INSERT INTO scripts (key, text) VALUES (:key, :text) ON CONFLICT (key) DO NOTHING

-- name: find_script
SELECT text FROM scripts WHERE key = :key

-- name: findings_of_runs
SELECT :columns FROM findings WHERE run_id IN (:keys)

-- name: shown_of_runs
SELECT DISTINCT run_id, kind FROM findings_shown WHERE run_id IN (:keys)

-- name: delete_finding
DELETE FROM findings WHERE run_id = :run_id AND kind = :kind

-- name: add_to_day
INSERT INTO findings_by_day (day, cluster, "user", account, "partition", kind, runs, acknowledged,
    not_helpful, core_time, gpu_time, memory_time, energy)
VALUES (:day, :cluster, :user, :account, :partition, :kind, :runs, :acknowledged,
    :not_helpful, :core_time, :gpu_time, :memory_time, :energy)
ON CONFLICT (day, cluster, "user", account, "partition", kind) DO UPDATE SET
    runs = findings_by_day.runs + excluded.runs,
    acknowledged = findings_by_day.acknowledged + excluded.acknowledged,
    not_helpful = findings_by_day.not_helpful + excluded.not_helpful,
    core_time = findings_by_day.core_time + excluded.core_time,
    gpu_time = findings_by_day.gpu_time + excluded.gpu_time,
    memory_time = findings_by_day.memory_time + excluded.memory_time,
    energy = findings_by_day.energy + excluded.energy

-- name: remove_empty_day
DELETE FROM findings_by_day WHERE day = :day AND cluster = :cluster AND "user" = :user
    AND account = :account AND "partition" = :partition AND kind = :kind AND runs = 0

-- The worst severity and the number of the findings that hold, for a list of runs.
-- name: worst_of_runs
SELECT run_id, max(severity), count(*) FROM findings
WHERE run_id IN (:keys) AND state IN ('open', 'acknowledged') AND audience = 'user'
GROUP BY run_id

-- name: kinds
SELECT kind, sum(runs) FROM findings_by_day WHERE day >= :since GROUP BY kind ORDER BY kind

-- The last day of which a run has a finding of the kind.
-- name: last_days
SELECT kind, max(day) FROM findings_by_day WHERE runs > 0 GROUP BY kind ORDER BY kind

-- Of findings that still hold; totals of all days.
-- name: totals_by_kind
SELECT cluster, kind, sum(runs), sum(core_time), sum(gpu_time), sum(memory_time), sum(energy)
FROM findings_by_day GROUP BY cluster, kind ORDER BY cluster, kind LIMIT :limit

-- name: add_shown
INSERT INTO findings_shown (run_id, kind, viewer, place, first, last, count)
SELECT :run_id, :kind, :viewer, :place, :time, :time, :count
WHERE EXISTS (SELECT 1 FROM findings WHERE run_id = :run_id AND kind = :kind)
ON CONFLICT (run_id, kind, viewer, place) DO UPDATE SET
    last = CASE WHEN excluded.last > findings_shown.last THEN excluded.last
        ELSE findings_shown.last END,
    count = findings_shown.count + excluded.count

-- Whether a user was shown a finding of a run.
-- name: was_shown
SELECT 1 FROM findings_shown JOIN runs ON runs.id = findings_shown.run_id
WHERE runs.cluster = :cluster AND runs.job_id = :job_id AND runs.start BETWEEN :first AND :last
    AND findings_shown.kind = :kind AND findings_shown.viewer = :viewer LIMIT 1

-- name: count_viewers
SELECT run_id, kind, count(*) FROM findings_shown WHERE run_id IN (:keys) GROUP BY run_id, kind

-- Works for whose findings a kind was shown: when first, and how often.
-- name: shown_works
SELECT findings.work_id, findings.kind, min(findings_shown.first), sum(findings_shown.count)
FROM findings_shown
JOIN findings ON findings.run_id = findings_shown.run_id AND findings.kind = findings_shown.kind
WHERE findings.work_id IS NOT NULL AND (:kind = '' OR findings_shown.kind = :kind)
    AND findings_shown.first >= :since
    AND (:user = '' OR findings."user" = :user) AND (:account = '' OR findings.account = :account)
    AND (:cluster = '' OR findings.cluster = :cluster)
GROUP BY findings.work_id, findings.kind
ORDER BY min(findings_shown.first) DESC, findings.work_id, findings.kind LIMIT :limit

-- The ended runs of a work with their requests and what a kind of finding cost them.
-- name: runs_of_work
SELECT runs.id, runs.start, runs.shown_state, runs.cpus, runs.gpus, runs.memory, runs.time_limit,
    findings.state, findings.core_time, findings.gpu_time, findings.memory_time, findings.energy
FROM run_figures JOIN runs ON runs.id = run_figures.run_id
LEFT JOIN findings ON findings.run_id = runs.id AND findings.kind = :kind
WHERE run_figures.work_id = :work_id AND runs."end" IS NOT NULL
ORDER BY runs.start DESC, runs.id DESC LIMIT :limit

-- The same of the runs that were stored up to one of them.
-- name: runs_of_work_until
SELECT runs.id, runs.start, runs.shown_state, runs.cpus, runs.gpus, runs.memory, runs.time_limit,
    findings.state, findings.core_time, findings.gpu_time, findings.memory_time, findings.energy
FROM (
    SELECT run_id FROM run_figures WHERE work_id = :work_id AND run_id <= :run_id
    ORDER BY run_id DESC LIMIT :limit
) AS latest
JOIN runs ON runs.id = latest.run_id
LEFT JOIN findings ON findings.run_id = runs.id AND findings.kind = :kind
WHERE runs."end" IS NOT NULL

-- When the kinds of findings of a work were first shown, and how often they were.
-- name: shown_kinds_of_work
SELECT findings.kind, min(findings_shown.first), sum(findings_shown.count)
FROM findings
JOIN findings_shown ON findings_shown.run_id = findings.run_id
    AND findings_shown.kind = findings.kind
WHERE findings.work_id = :work_id
GROUP BY findings.kind ORDER BY findings.kind

-- name: describe_work
SELECT cluster, "user", account, kind, name FROM works WHERE id = :id

-- name: insert_lease
INSERT INTO checkpoints (name, value) VALUES ('findings lease', 0) ON CONFLICT (name) DO NOTHING

-- name: read_lease
SELECT value, text FROM checkpoints WHERE name = 'findings lease'

-- name: take_lease
UPDATE checkpoints SET value = :until, text = :owner
WHERE name = 'findings lease' AND value = :value AND coalesce(text, '') = :before

-- name: delete_findings_of_run
DELETE FROM findings WHERE run_id = :id

-- name: delete_shown_of_run
DELETE FROM findings_shown WHERE run_id = :id

-- name: delete_figures_of_run
DELETE FROM run_figures WHERE run_id = :id

-- name: latest_day_of_runs
SELECT max(day) FROM findings WHERE run_id IN (:keys)

-- name: unused_works
SELECT id FROM works WHERE id > :after
    AND NOT EXISTS (SELECT 1 FROM run_figures WHERE work_id = works.id)
    AND NOT EXISTS (SELECT 1 FROM findings WHERE work_id = works.id)
ORDER BY id LIMIT :limit

-- name: delete_work
DELETE FROM works WHERE id = :id
    AND NOT EXISTS (SELECT 1 FROM run_figures WHERE work_id = works.id)
    AND NOT EXISTS (SELECT 1 FROM findings WHERE work_id = works.id)

-- name: delete_unused_scripts
DELETE FROM scripts WHERE NOT EXISTS (SELECT 1 FROM works WHERE works.key = scripts.key)

-- The days of which all findings are still there, and whose sums are not those of the findings.
-- name: differing_days
SELECT day FROM (
    SELECT day, cluster, "user", account, "partition", kind, 1 AS runs,
        CASE WHEN state = 'acknowledged' THEN 1 ELSE 0 END AS acknowledged,
        CASE WHEN state = 'not helpful' THEN 1 ELSE 0 END AS not_helpful,
        coalesce(core_time, 0) AS core_time, coalesce(gpu_time, 0) AS gpu_time,
        coalesce(memory_time, 0) AS memory_time, coalesce(energy, 0) AS energy
    FROM findings WHERE state IN ('open', 'acknowledged', 'not helpful')
    UNION ALL
    SELECT day, cluster, "user", account, "partition", kind, -runs, -acknowledged, -not_helpful,
        -core_time, -gpu_time, -memory_time, -energy
    FROM findings_by_day
) AS parts
WHERE day > :after
GROUP BY day, cluster, "user", account, "partition", kind
HAVING sum(runs) <> 0 OR sum(acknowledged) <> 0 OR sum(not_helpful) <> 0 OR sum(core_time) <> 0
    OR sum(gpu_time) <> 0 OR sum(memory_time) <> 0 OR sum(energy) <> 0
ORDER BY day

-- name: delete_day
DELETE FROM findings_by_day WHERE day = :day

-- name: rebuild_day
INSERT INTO findings_by_day (day, cluster, "user", account, "partition", kind, runs, acknowledged,
    not_helpful, core_time, gpu_time, memory_time, energy)
SELECT day, cluster, "user", account, "partition", kind, count(*),
    sum(CASE WHEN state = 'acknowledged' THEN 1 ELSE 0 END),
    sum(CASE WHEN state = 'not helpful' THEN 1 ELSE 0 END),
    sum(coalesce(core_time, 0)), sum(coalesce(gpu_time, 0)), sum(coalesce(memory_time, 0)),
    sum(coalesce(energy, 0))
FROM findings WHERE day = :day AND state IN ('open', 'acknowledged', 'not helpful')
GROUP BY day, cluster, "user", account, "partition", kind
