"""Reads what the hours of runs are worked out from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from jobsight.store.contributions import UNDETERMINED, NodeFacts, RowName, RunFacts, Use
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
    SELECT run_nodes.run_id, executables.run_node_id, paths.digest, paths.software_id,
        executables.cpu_time, executables.executions
    FROM runs CROSS JOIN run_nodes CROSS JOIN executables CROSS JOIN paths
    WHERE {chosen} AND run_nodes.run_id = runs.id AND executables.run_node_id = run_nodes.id
        AND paths.id = executables.path_id
"""
_NAMES = """
    WITH wanted(id) AS (VALUES :keys)
    SELECT software.id, ignored, name, version, local_version, user_provided
    FROM wanted CROSS JOIN software WHERE software.id = wanted.id
"""


def read_run(transaction: Transaction, run_id: int) -> RunFacts | None:
    """One run, where it is still there."""
    found = transaction.execute(f"SELECT {COLUMNS} FROM runs WHERE {ONE}", {"id": run_id})
    row = found.fetchone()
    return None if row is None else RunFacts(*row)


class RunNodes(NamedTuple):
    #: By the ids of run and node.
    nodes: dict[int, dict[int, NodeFacts]]
    #: Runs with a path that no rule was asked for yet.
    unnamed: set[int]
    #: The ids of their rows of software.
    software: set[int]


def read_nodes(transaction: Transaction, chosen: str, parameters: Mapping[str, int]) -> RunNodes:
    """The nodes of the chosen runs."""
    uses: dict[int, list[Use]] = {}
    unnamed, software = set(), set()
    found = transaction.execute(_USES.format(chosen=chosen), parameters).fetchall()
    for run_id, run_node_id, digest, software_id, *figures in found:
        # An agent that learned a better name has taken back the row of the first.
        if not any(figures):
            continue
        if software_id is None:
            unnamed.add(run_id)
        elif software_id != UNDETERMINED:
            software.add(software_id)
        use = Use(bytes(digest), software_id or UNDETERMINED, *figures)
        uses.setdefault(run_node_id, []).append(use)
    nodes: dict[int, dict[int, NodeFacts]] = {}
    found = transaction.execute(_NODES.format(chosen=chosen), parameters).fetchall()
    for run_id, run_node_id, cpu_time in found:
        facts = NodeFacts(cpu_time, uses.get(run_node_id, ()))
        nodes.setdefault(run_id, {})[run_node_id] = facts
    return RunNodes(nodes, unnamed, software)


def read_names(transaction: Transaction, ids: Collection[int]) -> dict[int, RowName]:
    """What rows of software are called."""
    found = transaction.look_up(_NAMES, [(id,) for id in ids])
    return {id: RowName(*columns) for id, *columns in found}
