"""Curves as rows with a column for each metric: the smallest layout, and the quickest to ask.

A column is named after its metric. Where that name is taken (by a key, by the same metric of the
other type, or by one that differs in case only, which SQL does not tell apart) the type is added;
the field's metadata has the metric's own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from jobsight.archive.schemas import SERIES
from jobsight.metrics import find_metric
from jobsight.model import MISSING
from jobsight.store.series.curves import SeriesBlock, present
from jobsight.store.series.packing import Values

#: Values (rows times metrics) of one row group. A run's curves are read in such pieces.
GROUP_VALUES = 1 << 20
#: Metrics in one file. Where there are more, another file begins.
MAX_METRICS = 2000

INTEGER, FLOAT = "int64", "double"
_TYPES = {INTEGER: pa.int64(), FLOAT: pa.float64()}
_TAKEN = frozenset({*SERIES.names, "cluster", "month"})


class Metric(NamedTuple):
    """A metric as one type of numbers."""

    name: str
    kind: str


class Stretch(NamedTuple):
    """Some curves of one sighting, and whose they are."""

    job_id: int
    start: int
    part: str
    sighting: int
    node: str
    curves: SeriesBlock


def metrics_of(curves: SeriesBlock) -> dict[str, str]:
    """The types of the curves."""
    return {
        name: INTEGER if values.dtype.kind == "i" else FLOAT
        for name, values in curves.columns.items()
    }


def wide_schema(metrics: Iterable[Metric]) -> pa.Schema:
    """The keys, and a column for each metric."""
    taken = set(_TAKEN)
    fields = list(SERIES)
    for metric in sorted(metrics):
        name = next(name for name in _names(metric) if name.casefold() not in taken)
        taken.add(name.casefold())
        known = find_metric(metric.name)
        metadata = {"metric": metric.name, "meaning": known.help if known else ""}
        fields.append(pa.field(name, _TYPES[metric.kind], metadata=metadata))
    return pa.schema(fields)


def _names(metric: Metric) -> Iterator[str]:
    yield metric.name
    number = 1
    while True:
        yield f"{metric.name} ({metric.kind})" + (f" {number}" if number > 1 else "")
        number += 1


def columns_of(schema: pa.Schema) -> dict[Metric, str]:
    """Which column holds a metric."""
    found = {}
    for field in schema:
        name = (field.metadata or {}).get(b"metric")
        if name is not None:
            kind = INTEGER if field.type == pa.int64() else FLOAT
            found[Metric(name.decode(), kind)] = field.name
    return found


def wide_table(stretches: list[Stretch], schema: pa.Schema) -> pa.Table:
    """The stretches as rows, in their order."""
    lengths = [len(stretch.curves.times) for stretch in stretches]
    arrays: list[pa.Array] = [
        _repeated([getattr(stretch, field.name) for stretch in stretches], lengths, field.type)
        for field in schema
        if field.name in Stretch._fields
    ]
    times = np.concatenate([stretch.curves.times for stretch in stretches])
    arrays.append(pa.array(times).cast(schema.field("time").type))
    for metric in columns_of(schema):
        arrays.append(_column(stretches, metric))
    return pa.Table.from_arrays(arrays, schema=schema)


def _repeated(values: list[Any], lengths: list[int], kind: pa.DataType) -> pa.Array:
    places = np.repeat(np.arange(len(values)), lengths)
    return pa.array(values, kind).take(pa.array(places))


def _column(stretches: list[Stretch], metric: Metric) -> pa.Array:
    parts, masks = [], []
    for stretch in stretches:
        rows = len(stretch.curves.times)
        values = stretch.curves.columns.get(metric.name)
        if values is None or metrics_of(stretch.curves)[metric.name] != metric.kind:
            parts.append(np.zeros(rows, np.int64 if metric.kind == INTEGER else np.float64))
            masks.append(np.ones(rows, np.bool_))
        else:
            parts.append(values)
            # NaN stays what it is: infinities and the bits of a NaN are values, too.
            floating = metric.kind == FLOAT
            masks.append(np.zeros(rows, np.bool_) if floating else ~present(values))
    return pa.array(np.concatenate(parts), mask=np.concatenate(masks), from_pandas=False)


def curves_of(table: pa.Table, metrics: dict[Metric, str]) -> SeriesBlock:
    """The rows of one sighting as curves again, bit for bit."""
    times = table.column("time").cast(pa.int64()).to_numpy()
    return SeriesBlock(times, {metric.name: _values(table, metrics[metric]) for metric in metrics})


def _values(table: pa.Table, column: str) -> Values:
    # Of one sighting a column of floats is either there in every row or not at all.
    found = table.column(column)
    if found.null_count:
        found = found.fill_null(MISSING)
    values: Values = found.to_numpy()
    return values


def pieces(stretch: Stretch, values: int = GROUP_VALUES) -> Iterator[Stretch]:
    """A long stretch in slices of so many values."""
    curves = stretch.curves
    rows = max(values // max(len(curves.columns), 1), 1)
    for first in range(0, len(curves.times), rows):
        part = {name: column[first : first + rows] for name, column in curves.columns.items()}
        yield stretch._replace(curves=SeriesBlock(curves.times[first : first + rows], part))
