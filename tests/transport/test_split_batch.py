"""Batches that are too large for one message: nothing of them is lost on the way."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from jobsight.model import Batch, ExecutableUse, JobPart, StepUse
from jobsight.server.receiver import EmbeddedTarget, Receiver
from jobsight.store.store import Store
from jobsight.transport.delivery import Delivery
from jobsight.transport.spool import Spool, SpoolWriter, split_batch
from jobsight.transport.wire import MAX_HEADER, WireError, decode, encode
from tests.server.batches import batch
from tests.store.node_sample import node_series


def crowded(counts: list[tuple[int, int]]) -> Batch:
    """A batch with a part for each pair of a number of executables and of steps."""
    made = batch()
    first = made.parts[0]
    made.parts = [
        JobPart(
            sighting=first.sighting,
            epoch=str(number),
            series=first.series,
            executables=[ExecutableUse(path=b"p%d" % one) for one in range(programs)],
            steps=[StepUse(step=str(one)) for one in range(steps)],
            final=True,
        )
        for number, (programs, steps) in enumerate(counts)
    ]
    return made


@given(some.lists(some.tuples(some.integers(0, 60), some.integers(0, 60)), max_size=6))
def test_the_pieces_hold_what_the_batch_held(counts: list[tuple[int, int]]) -> None:
    whole = crowded(counts)
    whole.node_series = node_series(0, 3)
    pieces = list(split_batch(whole, largest=10_000))
    assert [one.jobs for one in pieces] == [whole.jobs] + [[]] * (len(pieces) - 1)
    assert [one.node_series for one in pieces] == [whole.node_series] + [None] * (len(pieces) - 1)
    parts = [part for one in pieces for part in one.parts]
    for number, part in enumerate(whole.parts):
        mine = [one for one in parts if one.epoch == str(number)]
        assert [use for one in mine for use in one.executables] == part.executables
        assert [use for one in mine for use in one.steps] == part.steps
        # The last word is the last, and time series come once.
        assert [one.final for one in mine] == [False] * (len(mine) - 1) + [True]
        assert [one.series for one in mine] == [None] * (len(mine) - 1) + [part.series]
    sizes = [sum(len(part.executables) + len(part.steps) for part in one.parts) for one in pieces]
    assert max(sizes) < 100


def test_a_usual_batch_is_left_as_it_is() -> None:
    usual = batch()
    (piece,) = split_batch(usual)
    assert piece == usual
    assert piece.parts[0] is usual.parts[0]


def test_thousands_of_programs_in_long_paths_arrive(tmp_path: Path) -> None:
    paths = {b"/home/user/%05d/" % number + b"x" * 4000 for number in range(5000)}
    made = batch()
    made.parts[0].executables = [ExecutableUse(path=path, executions=1) for path in paths]
    with pytest.raises(WireError, match=f"{MAX_HEADER} are allowed"):
        decode(encode(made))
    spool = Spool(tmp_path / "spool")
    writer = SpoolWriter(spool)
    writer.put(made)
    writer.end()
    assert len(spool) > 1
    with Store.open(tmp_path / "store.db") as store:
        assert Delivery(spool, EmbeddedTarget(Receiver(store))).deliver()
        (run,) = store.runs()
        found = store.executables(run.id)
        assert {one.use.path for one in found} == paths
        assert len(store.series(run.id)[0].times) == 11
    assert spool.refused == 0
    spool.close()
