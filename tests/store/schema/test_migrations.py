"""The migration of a store, with a further revision that only these tests have."""

import shutil
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from jobsight.store.chains import Dependency
from jobsight.store.database import open_database
from jobsight.store.maintenance import dump
from jobsight.store.read.node_days import series_of_node
from jobsight.store.schema import create, versions
from jobsight.store.schema.statements import VERSION as LATEST
from jobsight.store.store import Store
from tests.store.contents import assert_sound, rows
from tests.store.node_sample import node_batch, node_series
from tests.store.sample import START, batch, find, info, part, seconds, series, step, totals

NEXT = f"{int(LATEST) + 1:04}"
_REVISION = """
import sqlalchemy as sa
from alembic import op

revision = "NEXT"
down_revision = "LATEST"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("added", sa.BigInteger()))
    op.create_table("later", sa.Column("id", sa.BigInteger(), nullable=False))
"""


@pytest.fixture
def migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that has one more revision."""
    copied = tmp_path / "migrations"
    shutil.copytree(versions.MIGRATIONS, copied)
    text = _REVISION.replace("NEXT", NEXT).replace("LATEST", LATEST)
    (copied / f"versions/{NEXT}_later.py").write_text(text)
    monkeypatch.setattr(versions, "MIGRATIONS", copied)
    for module in (versions, create, dump):
        monkeypatch.setattr(module, "VERSION", NEXT)


def _old_store(location: str) -> None:
    database = open_database(location)
    versions.migrate(database, LATEST)
    with Store(database) as store:
        news = part(series=series([0, 1, 2]), totals=totals(2, 500), steps=[step("batch", 40)])
        assert store.write(batch(news, info(), sequence=1))


@pytest.mark.usefixtures("migrations")
def test_a_store_of_an_older_release(location: str) -> None:
    _old_store(location)
    with Store.open(location) as store:
        assert store.info().version == NEXT
        with store.database.read() as connection:
            assert inspect(connection).has_table("later")
            assert connection.scalar(text("SELECT count(*) FROM runs WHERE added IS NULL")) == 1
        assert_sound(store)
        run = find(store)
        assert (run.cpu_time, seconds(store, run.id)) == (500, [0, 1, 2])
        # What was stored then is stored still, and the run goes on.
        assert not store.write(batch(part(), sequence=1))
        news = part(series=series([3]), totals=totals(3, 600), steps=[step("batch", 50)])
        assert store.write(batch(news, info(state="COMPLETED"), sequence=2))
        run = find(store)
        assert (run.cpu_time, run.info.state) == (600, "COMPLETED")
        assert seconds(store, run.id) == [0, 1, 2, 3]
        assert [found.use for found in store.steps(run.id)] == [step("batch", 50)]
        assert_sound(store)
    with Store.open(location) as store:
        assert len(store.steps(find(store).id)) == 1


@pytest.mark.usefixtures("migrations")
def test_a_migration_that_fails_leaves_the_store_as_it_was(location: str) -> None:
    _old_store(location)
    database = open_database(location)
    with database.migration() as connection:
        # In the way of the table that the further revision creates.
        connection.execute(text("CREATE TABLE later (id INTEGER)"))
    with pytest.raises(Exception, match="later"):
        Store.open(location)
    with database.migration() as connection:
        assert versions.stored_version(connection) == LATEST
        assert "added" not in {column["name"] for column in inspect(connection).get_columns("runs")}
        connection.execute(text("DROP TABLE later"))
    database.close()
    with Store.open(location) as store:
        assert store.info().version == NEXT
        assert find(store).cpu_time == 500


@pytest.mark.usefixtures("migrations")
def test_a_backup_of_an_older_release(location: str, tmp_path: Path) -> None:
    """The rows of older tables are loaded as they are and migrated then."""
    _old_store(location)
    database = open_database(location)
    with dump.snapshot(database) as connection:
        opening, blocks = dump.read(connection)
        opening.version = LATEST
        target = open_database(tmp_path / "restored.db")
        dump.load(target, opening, list(blocks))
    target.close()
    database.close()
    with Store.open(tmp_path / "restored.db") as restored, Store.open(location) as store:
        assert restored.info().version == NEXT
        assert_sound(restored)
        assert rows(restored) == rows(store)


def test_the_runs_of_a_store_without_chains_get_theirs(location: str) -> None:
    """A store of 0.2.0, whose schema is that of revision 0001, with data."""
    with Store.open(location) as store:
        news = part(series=series([0, 1, 2]), totals=totals(2, 500), steps=[step("batch", 40)])
        assert store.write(batch(news, info(user="anna"), sequence=1))
        job_id = find(store).info.job_id
    database = open_database(location)
    with database.migration() as connection:
        for statement in (
            "DROP INDEX ix_runs_chain",
            "DROP TABLE sign_in_failures",
            "DROP TABLE node_chunks",
            "DROP TABLE node_days",
            "DROP TABLE job_chains",
            "ALTER TABLE runs DROP COLUMN chain_job_id",
            "UPDATE alembic_version SET version_num = '0001'",
        ):
            connection.execute(text(statement))
    database.close()
    with Store.open(location) as store:
        assert store.info().version == LATEST
        assert_sound(store)
        run = find(store)
        assert (run.cpu_time, seconds(store, run.id), run.chain_job_id) == (500, [0, 1, 2], None)
        after = Dependency("c1", job_id + 1, "anna", run.info.start or 0, (job_id,))
        assert store.record_dependencies([after], now=run.info.start or 0) == 1
        assert find(store).chain_job_id == job_id + 1


def test_a_store_without_days_of_nodes_gets_them(location: str) -> None:
    """A store of revision 0002, with data."""
    database = open_database(location)
    versions.migrate(database, "0002")
    with Store(database) as store:
        assert store.write(batch(part(series=series([0, 1, 2])), info(), sequence=1))
    with Store.open(location) as store:
        assert store.info().version == LATEST
        assert_sound(store)
        assert seconds(store, find(store).id) == [0, 1, 2]
        assert store.write(node_batch(node_series(START, 5), sequence=2))
        found = series_of_node(store.database, "c1", "n1", ("node.load.1m",), START, 2**62)
        assert found is not None
        assert len(found.times) == 5
        assert_sound(store)
