"""Time series that arrive after the end of their run."""

from __future__ import annotations

from typing import Any

from jobsight.store.maintenance.compact import compact
from jobsight.store.store import Store
from jobsight.store.write.parts import MAX_OPEN_CHUNKS
from tests.store.contents import assert_sound
from tests.store.sample import START, batch, find, info, part, series


def chunks(store: Store) -> list[Any]:
    with store.database.query() as transaction:
        return transaction.execute("SELECT id, level FROM chunks ORDER BY id").fetchall()


def samples(store: Store) -> int:
    (found,) = store.series(find(store).id)
    return len(found.times)


def test_late_parts_by_hundreds_do_not_write_the_series_of_a_run_again(store: Store) -> None:
    sent = part(series=series([*range(500)]), final=True)
    assert store.write(batch(info(end=START + 1000), sent, spool="one"))
    ((id, level),) = chunks(store)
    assert level == 2
    number = 3 * MAX_OPEN_CHUNKS + 5
    for row in range(number):
        late = part(series=series([600 + row]), final=True)
        assert store.write(batch(late, spool="late", sequence=row + 1))
    (first, *others) = chunks(store)
    assert tuple(first) == (id, 2)
    assert sorted(level for _, level in others) == [0] * 5 + [1] * 3
    # They are read all the same, and joined by compaction.
    assert samples(store) == 500 + number
    assert_sound(store)
    compact(store.database, vacuum=False)
    assert [level for _, level in chunks(store)] == [2]
    assert samples(store) == 500 + number
    assert_sound(store)
