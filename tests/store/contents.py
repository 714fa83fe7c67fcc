"""All that a store says, to be compared with what another one says."""

from typing import Any

import msgspec
import numpy as np
from sqlalchemy import select

from jobsight.store.maintenance.check import Checker, CheckResult
from jobsight.store.maintenance.dump import TABLES
from jobsight.store.store import Store


def rows(store: Store) -> dict[str, list[Any]]:
    """Every row of every table."""
    with store.database.read() as connection:
        return {
            table.name: [
                tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))
            ]
            for table in TABLES
        }


def answers(store: Store) -> list[Any]:
    """What each query of the store says of each run."""
    info = msgspec.to_builtins(store.info())
    for name in ("location", "engine", "size"):
        del info[name]
    said: list[Any] = [info, store.count_runs(), store.open_runs("c1")]
    for run in store.runs(limit=10**6):
        said += [run, store.nodes(run.id), store.executables(run.id), store.steps(run.id)]
        said.append(store.gpus(run.id))
        said.append([list(map(repr, summary)) for summary in store.summaries(run.id)])
        for found in store.series(run.id):
            columns = {
                name: (values.dtype.kind, np.asarray(values).tobytes())
                for name, values in found.columns.items()
            }
            said.append((found.node, found.times.tolist(), columns))
    return said


def check(store: Store, **more: bool) -> CheckResult:
    return Checker(store.database, **more).run()


def assert_sound(store: Store) -> None:
    found = check(store)
    assert found.faults == []
