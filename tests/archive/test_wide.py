"""Time series as wide rows: what goes in comes out, whatever the metrics are called."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from jobsight.archive.schema import (
    Metric,
    Segment,
    columns_of,
    metrics_of,
    pieces,
    series_of,
    wide_schema,
    wide_table,
)
from jobsight.store.series.blocks import SeriesBlock
from tests.examples import examples
from tests.store.series.test_codec import curves, same


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(curves(), min_size=1, max_size=4))
def test_what_goes_in_comes_out(
    given: list[tuple[np.ndarray, dict[str, np.ndarray]]],
) -> None:
    segments = [
        Segment(7, 1, "part", number, "n1", SeriesBlock(times, columns))
        for number, (times, columns) in enumerate(given)
    ]
    kinds = [metrics_of(segment.block) for segment in segments]
    schema = wide_schema({Metric(*item) for found in kinds for item in found.items()})
    sink = pa.BufferOutputStream()
    pq.write_table(wide_table(segments, schema), sink)
    table = pq.read_table(sink.getvalue())
    names = [name.casefold() for name in table.schema.names]
    assert len(set(names)) == len(names)
    columns = columns_of(table.schema)
    for segment, found in zip(segments, kinds, strict=True):
        mine = table.filter(pc.equal(table.column("sighting"), segment.sighting))
        wanted = {Metric(*item): columns[Metric(*item)] for item in found.items()}
        again = series_of(mine, wanted)
        assert same(again.times, segment.block.times)
        assert list(again.columns) == list(segment.block.columns)
        for name, values in segment.block.columns.items():
            assert same(again.columns[name], values)


@given(curves(), st.integers(1, 20))
def test_pieces_are_the_whole(given: tuple[np.ndarray, dict[str, np.ndarray]], values: int) -> None:
    whole = Segment(7, 1, "part", 0, "n1", SeriesBlock(*given))
    found = list(pieces(whole, values))
    assert sum(len(piece.block.times) for piece in found) == len(given[0])
    for piece in found:
        rows = len(piece.block.times)
        assert rows == 1 or rows * len(piece.block.columns) <= values
        assert all(len(column) == rows for column in piece.block.columns.values())
