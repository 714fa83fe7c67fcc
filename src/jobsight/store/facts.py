"""Reads what the hours of runs are worked out from."""

from __future__ import annotations

from collections.abc import Mapping

from jobsight.store.contributions import NodeFacts, RunFacts, Use
from jobsight.store.database import Transaction

COLUMNS = ", ".join(f'runs."{name}"' for name in RunFacts._fields)
#: The runs that wait in a stretch of ids, and one run.
WAITING = "runs.stale AND runs.id BETWEEN :first AND :last"
ONE = "runs.id = :id"

# Joined in this order and no other: few runs are chosen, whatever a planner takes their number
# to be.
_NODES = """
    SELECT run_nodes.run_id, run_nodes.id, run_nodes.cpu_time FROM runs CROSS JOIN run_nodes
    WHERE {chosen} AND run_nodes.run_id = runs.id ORDER BY run_nodes.id
"""
_USES = """
    SELECT executables.run_node_id, paths.digest, coalesce(paths.software_id, 0),
        executables.cpu_time, executables.executions
    FROM runs CROSS JOIN run_nodes CROSS JOIN executables CROSS JOIN paths
    WHERE {chosen} AND run_nodes.run_id = runs.id AND executables.run_node_id = run_nodes.id
        AND paths.id = executables.path_id
"""


def read_run(transaction: Transaction, run_id: int) -> RunFacts | None:
    """One run, where it is still there."""
    found = transaction.execute(f"SELECT {COLUMNS} FROM runs WHERE {ONE}", {"id": run_id})
    row = found.fetchone()
    return None if row is None else RunFacts(*row)


def read_nodes(
    transaction: Transaction, chosen: str, parameters: Mapping[str, int]
) -> dict[int, dict[int, NodeFacts]]:
    """The nodes of the chosen runs, by the ids of run and node."""
    uses: dict[int, list[Use]] = {}
    for run_node_id, digest, *figures in transaction.execute(
        _USES.format(chosen=chosen), parameters
    ).fetchall():
        # An agent that learned a better name has taken back the row of the first.
        if any(figures[1:]):
            uses.setdefault(run_node_id, []).append(Use(bytes(digest), *figures))
    nodes: dict[int, dict[int, NodeFacts]] = {}
    for run_id, run_node_id, cpu_time in transaction.execute(
        _NODES.format(chosen=chosen), parameters
    ).fetchall():
        facts = NodeFacts(cpu_time, uses.get(run_node_id, ()))
        nodes.setdefault(run_id, {})[run_node_id] = facts
    return nodes
