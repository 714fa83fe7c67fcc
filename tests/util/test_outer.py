"""Outer units: RFC 3339, seconds and bytes by declaration, both ways."""

import tracemalloc
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.reports.report import JobReport
from jobsight.server.api import health, jobs, usage
from jobsight.util.outer import (
    Duration,
    Size,
    Time,
    decode_outer,
    format_rfc3339,
    from_outer,
    outer_names,
    outer_schemas,
    parse_rfc3339,
    to_outer,
)
from tests.reports.samples import report


class Inner(msgspec.Struct):
    wait: Duration | None = msgspec.field(name="wait_seconds")
    disk: Size


class Outer(msgspec.Struct):
    name: str
    start: Time | None
    took: Duration
    parts: list[Inner]
    by_name: dict[str, Inner]


VALUE = Outer("a", 1_794_721_386_313_222_990, 2_284_276_267, [Inner(None, 7)], {"b": Inner(1, 8)})
DOCUMENT: dict[str, Any] = {
    "name": "a",
    "start": "2026-11-15T05:43:06.313222990Z",
    "took_seconds": 2.284276267,
    "parts": [{"wait_seconds": None, "disk_bytes": 7}],
    "by_name": {"b": {"wait_seconds": 1e-9, "disk_bytes": 8}},
}


def test_both_ways() -> None:
    assert to_outer(VALUE) == DOCUMENT
    assert from_outer(DOCUMENT, Outer) == VALUE
    assert to_outer([{"x": VALUE}]) == [{"x": DOCUMENT}]
    assert outer_names(Outer)["took"] == "took_seconds"


def test_a_wrong_document_is_refused() -> None:
    for change in ({"start": "soon"}, {"took_seconds": "long"}, {"parts": [3]}, {"name": 4}):
        with pytest.raises(msgspec.ValidationError):
            from_outer(DOCUMENT | change, Outer)


@pytest.mark.parametrize(
    "reply",
    [
        b"[" * 100_000,
        b'{"name": "\xff"}',
        b'{"took_seconds": 1e308}',
        b'{"start": 1e308}',
        b"",
        b"3",
    ],
)
def test_a_reply_that_is_none(reply: bytes) -> None:
    """Nested too deeply, not UTF-8, or of more nanoseconds than there are."""
    with pytest.raises(msgspec.DecodeError):
        decode_outer(reply, Outer)


def test_a_text_in_place_of_seconds_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(msgspec.ValidationError, match="expected a number of seconds"):
            from_outer(DOCUMENT | {"took_seconds": "x"}, Outer)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@given(st.integers(min_value=-(2**62), max_value=2**63 - 1))
def test_times_keep_every_nanosecond(time: int) -> None:
    assert parse_rfc3339(format_rfc3339(time)) == time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t01:00:00+01:00", 0),
        ("1969-12-31T20:30:00-03:30", 0),
        ("0001-01-01T00:00:00+23:59", -62_135_596_800 - 86_340),
        ("9999-12-31T23:59:59-23:59", 253_402_300_799 + 86_340),
        ("1970-01-01 00:00:01.5Z", 1.5),
        ("1970-01-01T00:00:01.1234567899Z", 1.123456789),
    ],
)
def test_forms_of_rfc_3339(text: str, seconds: float) -> None:
    assert parse_rfc3339(text) == int(Decimal(str(seconds)) * 10**9)


@pytest.mark.parametrize("text", ["", "2026-11-15", "2026-11-15T00:00:00", "x" * 40, "9" * 99])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_rfc3339(text)


def test_a_report_survives_the_way_to_a_client() -> None:
    made = report()
    document = msgspec.json.decode(msgspec.json.encode(to_outer(made)))
    assert from_outer(document, JobReport) == made


def test_the_schemas_describe_the_documents() -> None:
    replies = (*jobs.REPLIES, *usage.REPLIES, health.Health)
    schemas = outer_schemas(replies, "{name}")
    report_schema = schemas["JobReport"]["properties"]
    assert report_schema["start"]["anyOf"][0] == {"type": "string", "format": "date-time"}
    assert schemas["CpuUse"]["properties"]["cpu_seconds"]["anyOf"][0] == {"type": "number"}
    document = msgspec.json.decode(msgspec.json.encode(to_outer(report())))
    assert set(document) == set(report_schema)
    for part, name in (("cpu", "CpuUse"), ("memory", "MemoryUse"), ("time", "TimeUse")):
        assert set(document[part]) == set(schemas[name]["properties"])
    # No schema is left with a name that the documents do not use.
    for kind in replies:
        for field in msgspec.structs.fields(kind):
            assert outer_names(kind)[field.name] == field.encode_name
