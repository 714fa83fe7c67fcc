"""The GPUs of runs: rows of several nodes, agent epochs and late batches, and their sums."""

import itertools
from pathlib import Path

import pytest

from jobsight.archive.reader import Reader
from jobsight.archive.restore import restore
from jobsight.archive.storage import open_storage
from jobsight.archive.writer import write_archive
from jobsight.config.settings import ArchiveSettings
from jobsight.model import SECOND, Coverage, GpuFault, GpuUse
from jobsight.store.maintenance.dump import back_up, copy_store
from jobsight.store.maintenance.dump import restore as restore_backup
from jobsight.store.store import Store
from jobsight.store.write import gpus
from jobsight.store.write.gpus import GpuSums, merge_epochs, sum_gpus
from tests.store.contents import answers, assert_sound, check
from tests.store.gpu_sample import GIB, gpu, idle_gpu, old_gpu
from tests.store.sample import START, batch, find, info, part, sighting, totals, use


def _sent(store: Store, node: str, *uses: GpuUse, epoch: str = "life 1", sequence: int) -> None:
    seen = part(sighting(node=node), epoch, gpus=list(uses))
    assert store.write(batch(seen, node=node, spool=f"spool of {node}", sequence=sequence))


def test_the_sums_of_a_run_are_those_of_its_gpus(store: Store) -> None:
    store.write(batch(info(gpus=4)))
    _sent(store, "n1", gpu("0"), idle_gpu("1"), sequence=1)
    _sent(store, "n2", gpu("0"), old_gpu("1"), sequence=1)
    run = find(store)
    assert run.gpus == GpuSums(
        gpu_count=4,
        gpu_unused_count=1,
        gpu_held_time=4000 * SECOND,
        gpu_measured_time=4000 * SECOND,
        gpu_profiled_time=3000 * SECOND,
        # Of the multiprocessors, and of the older GPU the active time.
        gpu_used_time=(400 + 0 + 400 + 900) * SECOND,
        gpu_memory_peak=300 * GIB,
        gpu_energy=(500 + 80 + 500 + 500) * 1000 * 10**6,
    )
    found = store.gpus(run.id)
    assert [(each.node, each.use.key) for each in found] == [
        *(("n1", "0"), ("n1", "1"), ("n2", "0"), ("n2", "1")),
    ]
    assert [each.use for each in found] == [gpu("0"), idle_gpu("1"), gpu("0"), old_gpu("1")]
    assert_sound(store)


def test_a_run_without_gpus_has_no_sums(store: Store) -> None:
    store.write(batch(info(), part(totals=totals(1, 5))))
    assert find(store).gpus == GpuSums()
    assert store.gpus(find(store).id) == []
    assert_sound(store)


def test_figures_grow_within_an_epoch_and_add_up_over_epochs(store: Store) -> None:
    store.write(batch(info()))
    _sent(store, "n1", gpu("0", 10), sequence=1)
    _sent(store, "n1", gpu("0", 100), sequence=2)
    assert find(store).gpus.gpu_held_time == 100 * SECOND
    _sent(store, "n1", gpu("0", 50), epoch="life 2", sequence=3)
    run = find(store)
    assert run.gpus.gpu_held_time == 150 * SECOND
    assert run.gpus.gpu_used_time == 60 * SECOND
    assert (run.gpus.gpu_count, run.gpus.gpu_memory_peak) == (1, 100 * GIB)
    (found,) = store.gpus(run.id)
    assert (found.use.held_time, found.use.energy) == (150 * SECOND, 150 * 500 * 10**6)
    assert found.use.coverage == {}
    assert_sound(store)


def test_the_order_of_arrival_does_not_matter(tmp_path: Path) -> None:
    """A late batch of an epoch neither wins nor is added; its peak counts."""
    batches = [
        (1, "life 1", gpu("0", 10, memory_peak=120 * GIB)),
        (2, "life 1", gpu("0", 100)),
        (3, "life 2", idle_gpu("0", 30)),
    ]
    said = []
    for number, order in enumerate(itertools.permutations(batches)):
        with Store.open(tmp_path / f"{number}.db") as store:
            store.write(batch(info()))
            for sequence, epoch, sent in order:
                _sent(store, "n1", sent, epoch=epoch, sequence=sequence)
            run = find(store)
            said.append((run.gpus, store.gpus(run.id)))
            assert_sound(store)
    assert all(each == said[0] for each in said)
    sums, (found,) = said[0]
    assert (sums.gpu_held_time, sums.gpu_memory_peak) == (130 * SECOND, 120 * GIB)
    # It was used in one of its epochs.
    assert (sums.gpu_unused_count, found.use.used) == (0, True)


def test_a_gpu_of_two_sightings_of_a_node_is_one_gpu(store: Store) -> None:
    """The node was booted again while the run held its GPUs."""
    store.write(batch(info()))
    for boot, (sequence, uses) in {
        "boot 1": (1, [gpu("0", 100), idle_gpu("1", 100)]),
        "boot 2": (2, [idle_gpu("0", 50), idle_gpu("1", 50)]),
    }.items():
        seen = sighting(birth=START + sequence)
        seen = type(seen)(seen.cluster, seen.job_id, seen.node, boot, seen.birth)
        assert store.write(batch(part(seen, gpus=uses), sequence=sequence))
    sums = find(store).gpus
    assert (sums.gpu_count, sums.gpu_unused_count) == (2, 1)
    assert sums.gpu_held_time == 300 * SECOND
    assert sums.gpu_memory_peak == 100 * GIB
    assert len(store.gpus(find(store).id)) == 2
    assert_sound(store)


def test_gpus_move_with_the_sighting_of_a_provisional_run(store: Store) -> None:
    """The scheduler reports the run after the node has, and another run of the same job."""
    _sent(store, "n1", gpu("0"), sequence=1)
    assert find(store).provisional
    store.write(batch(info()))
    run = find(store)
    assert (run.provisional, run.gpus.gpu_count) == (False, 1)
    assert_sound(store)


def test_a_part_of_the_time_is_measured(store: Store) -> None:
    coverage = {"profile": Coverage(quality="exact", time_share=0.25, reason="the driver hung")}
    store.write(batch(info()))
    _sent(store, "n1", gpu("0", multiprocessor_time=200 * SECOND, coverage=coverage), sequence=1)
    sums = find(store).gpus
    assert (sums.gpu_held_time, sums.gpu_measured_time) == (1000 * SECOND, 250 * SECOND)
    assert sums.gpu_profiled_time == 250 * SECOND


def test_a_use_that_nobody_knows_is_not_zero(store: Store) -> None:
    store.write(batch(info()))
    unknown = old_gpu("0", active_time=None, used=None)
    _sent(store, "n1", unknown, sequence=1)
    sums = find(store).gpus
    assert (sums.gpu_used_time, sums.gpu_measured_time) == (None, 0)
    assert sums.gpu_unused_count == 0


def test_the_epochs_of_a_gpu_are_merged_with_their_coverage() -> None:
    first = gpu(
        "0",
        100,
        throttled_time={"power": 5},
        faults=[GpuFault(kind="xid", count=1, last=7, code=79)],
    )
    second = old_gpu(
        "0",
        300,
        throttled_time={"power": 1, "temperature": 2},
        faults=[GpuFault(kind="xid", count=2, last=9, code=79)],
        shared=True,
    )
    merged = merge_epochs([second, first])
    assert merged.held_time == 400 * SECOND
    assert merged.active_time == (100 + 270) * SECOND
    assert merged.multiprocessor_time == 40 * SECOND
    profile = merged.coverage["profile"]
    assert (profile.quality, profile.time_share) == ("estimate", 0.25)
    assert "Hopper" in profile.reason
    assert merged.throttled_time == {"power": 6, "temperature": 2}
    assert merged.faults == [GpuFault(kind="xid", count=3, last=9, code=79)]
    assert merged.shared
    # What lists show is the same.
    assert sum_gpus([("n", first), ("n", second)]).gpu_used_time == (40 + 270) * SECOND


def test_the_rows_of_a_sighting_are_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpus, "MAX_NODE_GPUS", 3)
    store.write(batch(info()))
    _sent(store, "n1", gpu("0"), gpu("1"), sequence=1)
    _sent(store, "n1", gpu("0"), gpu("1"), epoch="life 2", sequence=2)
    assert find(store).gpus.gpu_held_time == 3000 * SECOND
    assert "1 GPUs are left out" in caplog.text
    assert_sound(store)


def test_the_check_finds_and_repairs_a_wrong_sum(store: Store) -> None:
    store.write(batch(info()))
    _sent(store, "n1", gpu("0"), sequence=1)
    with store.database.write() as transaction:
        transaction.execute("UPDATE runs SET gpu_used_time = 1, gpu_unused_count = 1")
    (fault,) = check(store, repair=True).faults
    assert "gpu_unused_count is 1, that of its nodes 0" in str(fault)
    assert find(store).gpus.gpu_used_time == 400 * SECOND
    assert_sound(store)


def test_lists_find_runs_with_gpus_that_were_never_used(store: Store) -> None:
    for job in (7, 8, 9):
        store.write(batch(info(job), part(sighting(job), gpus=[gpu("0")])))
    store.write(batch(part(sighting(8), gpus=[idle_gpu("1")])))
    assert [run.info.job_id for run in store.runs(unused_gpus=True)] == [8]
    assert store.count_runs(unused_gpus=True) == 1
    assert store.count_runs() == 3


def test_executables_carry_their_gpu_time(store: Store) -> None:
    store.write(batch(info()))
    for sequence, epoch, seconds in ((1, "life 1", 5), (2, "life 1", 10), (3, "life 2", 4)):
        uses = [use(b"/bin/train", 1, gpu_time=seconds * SECOND, gpu_memory_peak=seconds)]
        store.write(batch(part(epoch=epoch, executables=uses), sequence=sequence))
    (found,) = store.executables(find(store).id)
    assert (found.use.gpu_time, found.use.gpu_memory_peak) == (14 * SECOND, 10)


@pytest.fixture
def with_gpus(store: Store) -> Store:
    """A finished run with GPUs on two nodes and in two epochs."""
    store.write(batch(info(end=START + 1000 * SECOND, state="COMPLETED", gpus=4)))
    fault = GpuFault(kind="ecc corrected", count=2, last=START)
    _sent(store, "n1", gpu("0", faults=[fault], throttled_time={"power": 4}), sequence=1)
    _sent(store, "n1", idle_gpu("1"), epoch="life 2", sequence=2)
    _sent(store, "n2", old_gpu("0"), gpu("1:0", parent="1"), sequence=1)
    uses = [use(b"/bin/train", 1, gpu_time=5, gpu_memory_peak=6)]
    store.write(batch(part(executables=uses, final=True)))
    return store


def test_backup_and_copy_keep_gpus(with_gpus: Store, location: str, tmp_path: Path) -> None:
    before = answers(with_gpus)
    back_up(with_gpus.database, tmp_path / "backup")
    restore_backup(tmp_path / "restored.db", tmp_path / "backup")
    with Store.open(tmp_path / "restored.db") as restored:
        assert answers(restored) == before
        assert restored.gpus(find(restored).id) == with_gpus.gpus(find(with_gpus).id)
    copy_store(location, str(tmp_path / "copy.db"))
    with Store.open(tmp_path / "copy.db") as copy:
        assert answers(copy) == before


def test_the_archive_has_gpus_and_gives_them_back(with_gpus: Store, tmp_path: Path) -> None:
    place = open_storage(ArchiveSettings(location=str(tmp_path / "archive")))
    run = find(with_gpus)
    before = run.gpus, with_gpus.gpus(run.id), with_gpus.executables(run.id)
    write_archive(with_gpus, place, START + 2000 * SECOND)
    reader = Reader(place)
    (archived,) = reader.versions()
    with Store.open(tmp_path / "other.db") as other:
        assert restore(other, reader, archived)
        found = find(other)
        assert (found.gpus, other.gpus(found.id), other.executables(found.id)) == before
        assert_sound(other)


def test_a_gpu_is_never_used_more_than_it_was_held(store: Store) -> None:
    _sent(store, "n1", gpu("0", multiprocessor_time=1001 * SECOND), sequence=1)
    absurd = old_gpu("1", active_time=2**62)
    half = {"activity": Coverage(quality="estimate", time_share=0.5, reason="late")}
    _sent(store, "n2", absurd, old_gpu("2", active_time=600 * SECOND, coverage=half), sequence=1)
    sums = find(store).gpus
    assert sums.gpu_measured_time == 2500 * SECOND
    assert sums.gpu_used_time == 2500 * SECOND
    assert_sound(store)
