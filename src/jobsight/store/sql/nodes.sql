-- What a node ran and reported.

-- name: runs_on_node
SELECT run_id FROM run_nodes
WHERE cluster = :cluster AND node = :node AND birth >= :since AND birth < :until
ORDER BY birth DESC LIMIT :limit

-- name: agent_of_node
SELECT version, received, clock_skew FROM agents
WHERE cluster = :cluster AND node = :node

-- name: agents_of_cluster
SELECT node, version, received, clock_skew FROM agents WHERE cluster = :cluster ORDER BY node

-- name: agents_since
SELECT cluster, node, version FROM agents
WHERE received >= :since AND (CAST(:cluster AS TEXT) IS NULL OR cluster = :cluster)
ORDER BY cluster, node

-- The GPUs of a node that reported faults to its runs, the newest first.
-- name: gpu_faults
SELECT run_nodes.run_id, gpus.key, gpus.name, gpus.last_seen, gpus.faults
FROM run_nodes
JOIN gpus ON gpus.run_node_id = run_nodes.id
WHERE run_nodes.cluster = :cluster AND run_nodes.node = :node AND run_nodes.birth >= :since
    AND gpus.faults IS NOT NULL
ORDER BY gpus.last_seen DESC LIMIT :limit

-- name: gpus_of_node
SELECT DISTINCT gpus.key, gpus.name, gpus.uuid, gpus.memory_total
FROM run_nodes
JOIN gpus ON gpus.run_node_id = run_nodes.id
WHERE run_nodes.cluster = :cluster AND run_nodes.node = :node AND run_nodes.birth >= :since
ORDER BY gpus.key LIMIT :limit
