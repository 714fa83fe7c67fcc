"""The columns are those of the store's records, and the document names them all."""

from pathlib import Path

import pytest

from jobsight.archive.schema import OUTER_NAMES, SCHEMAS, TABLES, field_table
from jobsight.model import ExecutableUse, GpuUse, JobInfo, JobTotals, Sighting, StepUse

DOCUMENT = Path(__file__).parents[2] / "docs" / "archive.md"


@pytest.mark.parametrize(
    ("table", "record", "elsewhere"),
    [
        ("runs", JobInfo, {"cluster"}),
        ("nodes", Sighting, {"cluster"}),
        ("nodes", JobTotals, {"time"}),
        ("executables", ExecutableUse, set()),
        ("steps", StepUse, set()),
        ("gpus", GpuUse, set()),
    ],
)
def test_every_field_has_its_column(table: str, record: type, elsewhere: set[str]) -> None:
    fields = set(record.__struct_fields__) - elsewhere
    assert {OUTER_NAMES.get(name, name) for name in fields} <= set(SCHEMAS[table].names)


@pytest.mark.parametrize("table", TABLES)
def test_the_document_has_the_columns(table: str) -> None:
    assert SCHEMAS[table].names[0] == "job_id", "readers look for it there"
    assert field_table(table) in DOCUMENT.read_text(), "type: make docs"
