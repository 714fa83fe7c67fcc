"""Every batch once: which sequence numbers of a spool have come, and what the clocks say."""

from __future__ import annotations

from jobsight.model import SECOND, Batch
from jobsight.store import statements
from jobsight.store.database import Transaction

#: A skew older than this is found anew.
_SKEW_LASTS = 3600 * SECOND


def take(transaction: Transaction, batch: Batch, received: int) -> bool:
    """Note a batch as received; False where it was already."""
    transaction.lock("agent", [f"{batch.cluster} {batch.node}"])
    agent_id = _agent(transaction, batch, received)
    spool = {"agent_id": agent_id, "name": batch.spool}
    found = transaction.execute(statements.FIND_SPOOL, spool).fetchone()
    if found is None:
        transaction.execute(statements.INSERT_SPOOL, spool)
        found = transaction.execute(statements.FIND_SPOOL, spool).fetchone()
    return _note(transaction, found[0], batch.sequence)


def _note(transaction: Transaction, spool_id: int, sequence: int) -> bool:
    place = {"spool_id": spool_id, "sequence": sequence}
    before = transaction.execute(statements.STRETCH_BEFORE, place).fetchone()
    if before is not None and sequence <= before[1]:
        return False
    after = transaction.execute(statements.STRETCH_AFTER, place).fetchone()
    last = sequence if after is None else after[0]
    if after is not None:
        follower = {"spool_id": spool_id, "first": sequence + 1}
        transaction.execute(statements.DELETE_STRETCH, follower)
    continues = before is not None and before[1] == sequence - 1
    first = before[0] if continues else sequence
    statement = statements.EXTEND_STRETCH if continues else statements.INSERT_STRETCH
    transaction.execute(statement, {"spool_id": spool_id, "first": first, "last": last})
    return True


def _agent(transaction: Transaction, batch: Batch, received: int) -> int:
    ahead = batch.written - received
    values = {
        "cluster": batch.cluster,
        "node": batch.node,
        "version": batch.agent,
        "written": batch.written,
        "received": received,
        "clock_skew": ahead,
        "skew_found": received,
    }
    found = transaction.execute(statements.FIND_AGENT, values).fetchone()
    if found is None:
        transaction.execute(statements.INSERT_AGENT, values)
        return int(transaction.execute(statements.FIND_AGENT, values).fetchone()[0])
    id, skew, skew_found = found
    # Waiting in the spool makes a clock look late, never early: the highest of the last hour is
    # nearest to the truth.
    if ahead < skew and abs(received - skew_found) < _SKEW_LASTS:
        values["clock_skew"], values["skew_found"] = skew, skew_found
    transaction.execute(statements.UPDATE_AGENT, values | {"id": id})
    return int(id)
