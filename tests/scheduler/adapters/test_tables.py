"""The tables: every column that a command is requested is read, and every field exists."""

import pytest

from jobsight.model import JobInfo
from jobsight.scheduler.adapters import sacct, sinfo, squeue, tables
from jobsight.scheduler.fields import RecordReader
from jobsight.scheduler.records import JobRecord, NodeInfo, PartitionInfo, StepInfo


@pytest.mark.parametrize(
    ("columns", "format", "read", "unread"),
    [
        (sacct.COLUMNS, "sacct", (tables.JOB, tables.STEP), {"State"}),
        (squeue.COLUMNS, "squeue", (tables.JOB,), {"State"}),
        (sinfo.NODE_COLUMNS, "sinfo", (tables.NODE,), {"PartitionName"}),
        (sinfo.PARTITION_COLUMNS, "sinfo", (tables.PARTITION,), {"Nodes"}),
    ],
)
def test_columns_and_tables_agree(
    columns: tuple[str, ...], format: str, read: tuple[tables.Table, ...], unread: set[str]
) -> None:
    paths = set().union(*(table.paths(format) for table in read))
    assert paths <= set(columns)
    assert set(columns) - paths <= unread


@pytest.mark.parametrize(
    ("table", "fields", "inputs"),
    [
        (
            tables.JOB,
            {*JobInfo.__struct_fields__, *JobRecord.__struct_fields__},
            {"memory_per_cpu", "memory_per_node", "exit", "derived_exit"},
        ),
        (tables.STEP, set(StepInfo.__struct_fields__), {"exit"}),
        (tables.NODE, set(NodeInfo.__struct_fields__), set()),
        (tables.PARTITION, set(PartitionInfo.__struct_fields__), set()),
    ],
)
def test_every_row_is_a_field(table: tables.Table, fields: set[str], inputs: set[str]) -> None:
    names = [row.name for row in table.rows]
    assert len(names) == len(set(names))
    assert set(names) - fields == inputs


@pytest.mark.parametrize("format", ["queue", "accounting", "sacct", "squeue", "pyslurm"])
def test_a_job_without_an_id_is_not_a_job(format: str) -> None:
    with pytest.raises(ValueError, match="no job id"):
        tables.read_job(RecordReader({"name": "x"}, "job"), format, "c", "test")
