"""What is read of a run: on both engines, one node after the other, from the archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.archive.reader import attach
from jobsight.archive.storage import open_storage
from jobsight.archive.writer import write_archive
from jobsight.config.settings import ArchiveSettings
from jobsight.findings.data import read_run
from jobsight.findings.figures import compute_figures
from jobsight.findings.surroundings import Surroundings, shape_of
from jobsight.scheduler.records import NodeInfo
from jobsight.store.read import queries
from jobsight.store.store import Store
from tests.archive import months
from tests.findings.measured import HOUR, at, figures_of, node_info, program, write_nodes, write_run
from tests.store.conftest import location
from tests.store.conftest import store as engine

__all__ = ["engine", "location"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "store.db")) as store:
        yield store


def test_both_engines_give_the_same(engine: Store) -> None:
    write_nodes(engine, node_info("n1", 64, 2**38))
    programs = [
        program("/apps/solve", 3 * HOUR, 0, HOUR, executions=30, failures=3),
        program("/usr/bin/sleep", 0.1, 0, HOUR),
    ]
    for job_id, user in ((8, "grace"), (9, "alan")):
        write_run(engine, job_id=job_id, programs=programs, user=user)
    figures = figures_of(engine, programs=programs, nodes=("n1", "n2"), cpus=8)
    assert figures.values["programs.failed_habit"] == 0.1
    assert figures.values["node.cores"] == 64
    assert figures.values["cpu.share"] == pytest.approx(1, rel=0.01)


def test_software_names_are_those_of_the_rules(engine: Store) -> None:
    stored = write_run(
        engine, programs=[program("/apps/a/solve", 9, 0, 9), program("/apps/b/view", 90, 0, 9)]
    )
    assert engine.software_of(stored.id) == []
    with engine.database.write() as transaction:
        for number, name in ((1, "Solver of %(user)s"), (2, "Viewer"), (3, "Hidden")):
            transaction.execute(
                "INSERT INTO software (id, name, version, local_version, user_provided, ignored) "
                "VALUES (:id, :name, '', '', :no, :hidden)",
                {"id": number, "name": name, "no": False, "hidden": number == 3},
            )
        for place, path in enumerate((b"/apps/a/solve", b"/apps/b/view"), 1):
            transaction.execute(
                "UPDATE paths SET software_id = :id WHERE path = :path", {"id": place, "path": path}
            )
    figures = compute_figures(read_run(engine, stored, at(HOUR)))
    assert figures.values["programs.software"] == ["Viewer", "Solver of ada"]


def test_a_run_of_a_list_is_read_with_its_nodes(store: Store) -> None:
    write_nodes(store, node_info("n1", 64, 2**38), node_info("n2", 64, 2**38))
    write_run(store, nodes=("n1", "n2"), tres={"node": 2})
    (listed,) = store.runs()
    assert listed.info.nodes is None
    data = read_run(store, listed, at(HOUR))
    assert data.node_names == ["n1", "n2"]
    assert len(data.shapes) == 2


def test_more_values_than_one_query_may_return(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory is that of one node; a node that is too large has no time series."""
    stored = write_run(store, nodes=[f"n{number}" for number in range(8)], cpus=32)
    rows = HOUR / 30 + 1
    monkeypatch.setattr(queries, "MAX_READ_VALUES", int(rows * 2 * 3))
    with pytest.raises(queries.TooLarge):
        store.series(stored.id, ["cpu.time"])
    figures = compute_figures(read_run(store, stored, at(HOUR)))
    assert figures.values["cpu.peak_cores"] == pytest.approx(32, rel=0.01)
    assert queries.read_budget.used == 0
    monkeypatch.setattr(queries, "MAX_READ_VALUES", 100)
    figures = compute_figures(read_run(store, stored, at(HOUR)))
    assert "cpu.peak_cores" not in figures.values
    assert "more than 100 values" in figures.reason("cpu.peak_cores")
    assert figures.values["cpu.share"] == pytest.approx(1, rel=0.01)


def test_an_archived_run_has_the_same_figures(store: Store, tmp_path: Path) -> None:
    programs = [program("/apps/solve", 2 * HOUR, 0, HOUR), program("/bin/sleep", 0, HOUR, HOUR)]
    stored = write_run(store, programs=programs, columns={"memory.used": lambda moment: 2**30})
    before = compute_figures(read_run(store, stored, at(HOUR)))
    settings = ArchiveSettings(location=str(tmp_path / "archive"))
    write_archive(store, open_storage(settings), at(400 * 24 * HOUR))
    months.prune(store)
    pruned = compute_figures(read_run(store, stored, at(HOUR)))
    assert pruned.reason("idle.since") == "no time series are stored"
    attach(store, settings)
    after = compute_figures(read_run(store, stored, at(HOUR)))
    assert after.values == before.values


def test_what_many_runs_share_is_read_again_after_some_time(store: Store) -> None:
    surroundings = Surroundings(store)
    assert surroundings.cluster("c1", at(0)).nodes == {}
    write_nodes(store, node_info("n1", 64, 2**38, gres={"gpu:h200": 4}))
    assert surroundings.cluster("c1", at(10)).nodes == {}
    assert surroundings.cluster("c1", at(1000)).nodes["n1"].gpus == 4
    assert shape_of(NodeInfo(cluster="c1", name="n", tres={"gres/gpu:a100": 2})).gpus == 2
    empty = shape_of(NodeInfo(cluster="c1", name="n"))
    assert (empty.cpus, empty.memory_per_core, empty.gpus) == (None, None, 0)
