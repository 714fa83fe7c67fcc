"""Any bytes: a clear reason or a correct recording, never a crash and never half of it."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobsight.model import SECOND
from jobsight.sams.convert import check_complete, info_of, interval_of, part_of
from jobsight.sams.record import EARLIEST, LATEST, RecordError, parse_record
from jobsight.store.write import validation
from jobsight.text import readable_path
from tests.agent.outputs.conftest import HOSTILE
from tests.examples import examples
from tests.sams.documents import START, document, encode

YEAR = 365 * 86400


def changed(**software: Any) -> bytes:
    made = document()
    made["sams.sampler.Software"] |= software
    return encode(made)


def test_a_record_is_read_as_it_stands() -> None:
    record = parse_record(encode(document()))
    assert (record.job_id, record.node) == (100, "n1")
    assert record.info is not None
    assert (record.info.user, record.info.uid, record.info.account) == ("u1", 1001, "p1")
    assert (record.info.cpus, record.info.partition, record.info.name) == (4, "batch", "j")
    assert record.info.start == START * SECOND
    assert record.executables[b"/usr/bin/bash"] == (SECOND // 10, SECOND // 10)
    assert record.last == (START + 3600) * SECOND


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_path_keeps_its_bytes(text: str) -> None:
    path = f"/home/{text}".encode("utf-8", "surrogateescape")
    # As SAMS writes it, and as our collector does.
    theirs = document(execs={f"/home/{text}": {"user": 1.5, "system": 0.5}})
    assert list(parse_record(encode(theirs)).executables) == [path]
    ours = document(execs={readable_path(path): {"user": 1.5, "system": 0.5}})
    ours["sams.sampler.Software"]["current"] = {"total_user": 2.0, "total_system": 1.0}
    record = parse_record(encode(ours))
    assert list(record.executables) == [path]
    assert record.counter == (2 * SECOND, SECOND)


@pytest.mark.parametrize(
    "value", [-1, -0.5, math.nan, math.inf, 1e300, "1", None, True, [], 10**25]
)
def test_a_time_that_no_program_has_is_refused(value: Any) -> None:
    with pytest.raises(RecordError):
        parse_record(changed(execs={"/bin/x": {"user": value, "system": 0}}))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a SAMS record"),
        (b"{", "not a SAMS record"),
        (encode(document())[:-7], "not a SAMS record"),
        (b"\xff\xfe", "not a SAMS record"),
        (b'{"x":' + b"[" * 100_000, "nested too deep"),
        (b"[]", "Expected `object`"),
        (b"{}", "sams.sampler.Core"),
        (encode({"sams.sampler.Core": {"jobid": "12_3", "node": "n"}}), "is not a job id"),
        (encode({"sams.sampler.Core": {"jobid": 0, "node": "n"}}), "is not a job id"),
        (encode({"sams.sampler.Core": {"jobid": 10**18, "node": "n"}}), "is not a job id"),
        (encode({"sams.sampler.Core": {"jobid": 1, "node": "n\n"}}), "not a name"),
        (encode({"sams.sampler.Core": {"jobid": 1, "node": ""}}), "not a name"),
        (changed(execs={"": {"user": 1, "system": 1}}), "bytes"),
        (changed(execs={"/" + "x" * 70_000: {"user": 1, "system": 1}}), "bytes"),
    ],
)
def test_what_is_no_record_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=reason) as caught:
        parse_record(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("years", [-1, 1, -30])
def test_a_clock_that_is_off_does_not_move_the_run(years: int) -> None:
    made = document()
    for key in ("start_time", "end_time"):
        made["sams.sampler.Software"][key] += years * YEAR
    record = parse_record(encode(made))
    interval = interval_of(record)
    assert interval.start == START * SECOND
    assert interval.end == (START + 3600) * SECOND
    part = part_of(record, interval, "c")
    assert part.sighting.birth == START * SECOND
    assert "clock" in part.coverage["cpu"].reason


def test_a_record_without_any_time_is_refused() -> None:
    made = document(info={"username": "u1"})
    made["sams.sampler.Software"] |= {"start_time": 0, "end_time": 1e30}
    with pytest.raises(RecordError, match="start"):
        interval_of(parse_record(encode(made)))


def test_a_record_over_centuries_is_refused() -> None:
    """Each of its times can be; the end that they give together cannot be stored."""
    made = document(12, start=EARLIEST)
    made["sams.sampler.Software"]["end_time"] = LATEST - 1
    made["sams.sampler.SlurmInfo"]["starttimestamp"] = LATEST - YEAR
    with pytest.raises(
        RecordError, match=r"job 12 on n1 .* over 210 years, to beyond the year 2200"
    ):
        interval_of(parse_record(encode(made)))


def test_a_users_own_words_cannot_make_a_record_that_is_refused() -> None:
    info = {"username": "u1", "starttimestamp": START, "jobname": "x\x00\n\ud800" * 9999}
    record = parse_record(encode(document(info=info)))
    check_complete(record)
    assert record.info is not None
    assert len(record.info.name or "") == 1024


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_NUMBER = st.floats() | st.integers() | _JSON
_EXECS = st.dictionaries(
    st.text(),
    st.fixed_dictionaries({"user": _NUMBER, "system": _NUMBER})
    | st.fixed_dictionaries({"user": st.floats(0, 1e6), "system": st.floats(0, 1e6)})
    | _JSON,
    max_size=5,
)
_TIME = (
    _NUMBER
    | st.integers(START - 2 * YEAR, START + 2 * YEAR)
    | st.integers(EARLIEST - YEAR, LATEST + YEAR)
    | st.sampled_from([EARLIEST, LATEST - 1])
)
_INFO = st.fixed_dictionaries(
    {},
    optional={
        "account": _JSON,
        "username": st.text() | _JSON,
        "uid": st.integers().map(str) | _JSON,
        "cpus": st.integers().map(str) | _JSON,
        "jobname": st.text(),
        "starttime": st.datetimes().map(lambda moment: moment.isoformat()) | _JSON,
        "starttimestamp": _TIME,
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "sams.sampler.Core": st.fixed_dictionaries(
            {"jobid": st.integers(1, 10**6) | _NUMBER, "node": st.text(min_size=1) | _JSON}
        ),
        "sams.sampler.Software": st.fixed_dictionaries(
            {"execs": _EXECS, "start_time": _TIME, "end_time": _TIME},
            optional={"current": _JSON},
        ),
    },
    optional={"sams.sampler.SlurmInfo": _INFO | _JSON, "sams.sampler.Other": _JSON},
)


@settings(max_examples=examples(1500), deadline=None)
@given(DOCUMENTS | _JSON)
def test_any_document_is_booked_right_or_refused(made: Any) -> None:
    data = json.dumps(made).encode()
    try:
        record = parse_record(data)
        check_complete(record)
        interval = interval_of(record)
    except RecordError:
        return
    part = part_of(record, interval, "c")
    execs = made["sams.sampler.Software"]["execs"]
    said = sum(use["user"] + use["system"] for use in execs.values())
    total = sum(use.cpu_time for use in part.executables) / SECOND
    assert total == pytest.approx(said, abs=1e-8 * len(execs), rel=1e-9)
    # And the store takes it.
    validation.check_jobs("c", [info_of(record, "c", interval.end)], [part])


@settings(max_examples=examples(500), deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        parse_record(data)
