"""A store of an older release, opened by this one."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy import Connection, inspect, text

from jobsight.model import SECOND
from jobsight.store.database import open_database
from jobsight.store.maintenance import dump
from jobsight.store.schema import tables, versions
from jobsight.store.series import codec
from jobsight.store.store import Store
from tests.store.contents import assert_sound, rows
from tests.store.many import count
from tests.store.sample import (
    EXACT,
    START,
    batch,
    find,
    info,
    part,
    seconds,
    series,
    sighting,
    step,
    totals,
)


def _insert(connection: Connection, table: str, **values: Any) -> None:
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join(f":{name}" for name in values)
    connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), values)


PATH = b"/bin/old"


def _old_store(location: str, revision: str = "0001") -> None:
    """A store as a revision left it: statements written out, since today's code knows more."""
    database = open_database(location)
    versions.migrate(database, revision)
    with database.migration() as connection:
        agent = {"cluster": "c1", "node": "n1", "version": "0.1", "clock_skew": 0}
        _insert(
            connection, "agents", **agent, id=1, written=START, received=START, skew_found=START
        )
        _insert(connection, "spools", id=1, agent_id=1, name="old spool")
        _insert(connection, "batches", spool_id=1, first=1, last=5)
        run = {"cluster": "c1", "job_id": 7, "source": "slurm", "user": "anna", "cpus": 4}
        _insert(
            connection, "runs", **run, id=1, start=START, provisional=False, updated=START,
            state="RUNNING", cpu_time=500, memory_peak=900, first_seen=START,
            last_seen=START + 2 * SECOND,
        )  # fmt: skip
        seen = msgspec.structs.asdict(sighting())
        _insert(
            connection, "run_nodes", **seen, id=1, run_id=1, epoch="life 1", written=START,
            totals=msgspec.msgpack.encode(totals(2, 500, memory_peak=900)), cpu_time=500,
            memory_peak=900, coverage=msgspec.msgpack.encode(EXACT), first_sample=START,
            last_sample=START + 2 * SECOND, open_chunks=1,
        )  # fmt: skip
        times = START + np.arange(3) * SECOND
        data = codec.encode_plain(times, {"cpu.time": np.array([0, 1000, 2000])})
        _insert(
            connection, "chunks", id=1, run_node_id=1, first=START, last=START + 2 * SECOND,
            rows=3, level=0, data=data,
        )  # fmt: skip
        digest = hashlib.blake2b(PATH, digest_size=16).digest()
        _insert(connection, "paths", id=1, digest=digest, path=PATH)
        figures = dict.fromkeys(tables.SUMMED_FIGURES, 3)
        _insert(
            connection, "executables", **figures, run_node_id=1, path_id=1, path_known=True,
            epoch=1, sequence=5, peak_memory=4, first_seen=START, last_seen=START,
        )  # fmt: skip
        if revision >= "0002":
            columns = msgspec.structs.asdict(step("batch", 40))
            _insert(connection, "steps", **columns, run_node_id=1)
        if database.postgresql:
            for table in ("agents", "spools", "runs", "run_nodes", "chunks", "paths"):
                connection.execute(
                    text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), 1)")
                )
    database.close()


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_a_store_of_an_older_release(location: str, revision: str) -> None:
    _old_store(location, revision)
    with Store.open(location) as store:
        assert store.info().version == tables.VERSION
        assert_sound(store)
        run = find(store)
        assert (run.info.user, run.info.cpus, run.cpu_time, run.memory_peak) == (
            "anna", 4, 500, 900,
        )  # fmt: skip
        (node,) = store.nodes(run.id)
        assert (node.totals, node.coverage) == (totals(2, 500, memory_peak=900), EXACT)
        (found,) = store.executables(run.id)
        assert (found.use.path, found.use.cpu_time) == (PATH, 3)
        assert seconds(store, run.id) == [0, 1, 2]
        steps = [] if revision == "0001" else [step("batch", 40)]
        assert [found.use for found in store.steps(run.id)] == steps
        # Nothing of it is archived, thinned or summed up, and no path has a name.
        assert count(store, "runs", "stale AND pruned = 0 AND archived IS NULL") == 1
        assert count(store, "chunks", "resolution IS NULL") == 1
        assert count(store, "paths", "software_id IS NULL") == 1
        # What was stored then is stored still, and the run goes on.
        assert not store.write(batch(part(), sequence=3, spool="old spool"))
        news = part(series=series([3]), totals=totals(3, 600), steps=[step("batch", 50)])
        assert store.write(batch(news, info(state="COMPLETED"), sequence=6, spool="old spool"))
        run = find(store)
        assert (run.cpu_time, run.memory_peak, run.info.state) == (600, 900, "COMPLETED")
        assert seconds(store, run.id) == [0, 1, 2, 3]
        assert [found.use for found in store.steps(run.id)] == [step("batch", 50)]
        assert_sound(store)
    with Store.open(location) as store:
        assert len(store.steps(find(store).id)) == 1


def test_a_migration_that_fails_leaves_the_store_as_it_was(location: str) -> None:
    _old_store(location)
    database = open_database(location)
    with database.migration() as connection:
        # In the way of the table that the second revision makes.
        connection.execute(text("CREATE TABLE steps (id INTEGER)"))
    with pytest.raises(Exception, match="steps"):
        Store.open(location)
    with database.migration() as connection:
        assert versions.version(connection) == "0001"
        connection.execute(text("DROP TABLE steps"))
    database.close()
    with Store.open(location) as store:
        assert store.info().version == tables.VERSION
        assert find(store).cpu_time == 500


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_a_backup_of_an_older_release(location: str, tmp_path: Path, revision: str) -> None:
    """The rows of older tables, loaded as they are and brought up then."""
    _old_store(location, revision)
    database = open_database(location)
    with database.read() as connection:
        there = inspect(connection)
        names = [table.name for table in dump.TABLES if there.has_table(table.name)]
        columns = {name: [one["name"] for one in there.get_columns(name)] for name in names}
        blocks = []
        for name in names:
            quoted = ", ".join(f'"{column}"' for column in columns[name])
            found = connection.execute(text(f"SELECT {quoted} FROM {name}"))
            blocks.append(dump.Block(name, [list(row) for row in found]))
    database.close()
    opening = dump.Opening(
        version=revision,
        jobsight="0.1",
        engine="any",
        created=START,
        columns=columns,
        counts={block.table: len(block.rows) for block in blocks},
    )
    target = open_database(tmp_path / "restored.db")
    dump.load(target, opening, blocks)
    target.close()
    with Store.open(tmp_path / "restored.db") as restored, Store.open(location) as store:
        assert restored.info().version == tables.VERSION
        assert_sound(restored)
        assert rows(restored) == rows(store)
