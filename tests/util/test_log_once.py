from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobsight.util.log_once import OTHER, LogOnce

logger = logging.getLogger("jobsight.tests.log_once")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"))))
def test_changes_are_logged_and_everything_is_counted(
    caplog: pytest.LogCaptureFixture, reports: list[tuple[str, str]]
) -> None:
    caplog.clear()
    log = LogOnce(logger)
    last: dict[str, str] = {}
    expected = []
    for cause, message in reports:
        if last.get(cause) != message:
            expected.append(message)
        assert log.report(cause, message) is (last.get(cause) != message)
        last[cause] = message
    assert [record.message for record in caplog.records] == expected
    assert log.total == len(reports)
    assert log.messages == last


def test_a_resolved_cause_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = LogOnce(logger)
    assert not log.resolve("sink", "the sink accepts jobs again")
    for _ in range(2):
        log.report("sink", "the sink is unreachable")
    assert log.resolve("sink", "the sink accepts jobs again")
    log.report("sink", "the sink is unreachable")
    assert [record.message for record in caplog.records] == [
        "the sink is unreachable",
        "the sink accepts jobs again",
        "the sink is unreachable",
    ]
    assert log.counts == {"sink": 3}


def test_the_number_of_causes_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = LogOnce(logger, max_causes=2)
    for number in range(10):
        log.report(f"cause {number}", "failed")
    assert log.counts == {"cause 0": 1, "cause 1": 1, OTHER: 8}
    assert len(caplog.records) == 3


def test_a_bug_has_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = LogOnce(logger)
    log.report("bug", "KeyError: 'x'", level=logging.ERROR, error=KeyError("x"))
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None


def test_causes_beyond_the_bound_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = LogOnce(logger, max_causes=1)
    for number in range(10):
        log.report(f"cause {number}", f"failed {number}")
    assert [record.message for record in caplog.records] == [
        "failed 0",
        "further causes are counted but not logged",
    ]
