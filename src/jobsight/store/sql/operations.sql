-- What operators look at: agents, and batches that were never received.

-- name: agents
SELECT cluster, node, version, received, clock_skew FROM agents ORDER BY received LIMIT :limit

-- name: count_agents
SELECT cluster, count(*), min(received), max(received),
    sum(CASE WHEN received < :late THEN 1 ELSE 0 END)
FROM agents GROUP BY cluster ORDER BY cluster

-- A gap between two intervals of sequence numbers was never received.
-- name: lost_batches
SELECT agents.cluster, agents.node, max(batches."last") - min(batches."first") + 1
    - sum(batches."last" - batches."first" + 1) AS lost
FROM agents
JOIN spools ON spools.agent_id = agents.id
JOIN batches ON batches.spool_id = spools.id
GROUP BY agents.cluster, agents.node, spools.id
HAVING count(*) > 1
ORDER BY lost DESC LIMIT :limit
