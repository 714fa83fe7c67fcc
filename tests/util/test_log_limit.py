"""A client cannot fill the log."""

import logging

import pytest

from jobsight.util.log_limit import LogLimit


def test_messages_of_a_call_site_are_limited_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    logger = logging.getLogger("jobsight.tests.log_limit")
    limit = LogLimit(2, 60, lambda: now[0])
    logger.addFilter(limit)
    try:
        caplog.set_level("INFO", logger.name)
        for number in range(7):
            # The time of one call passes, and the text of the client differs.
            now[0] += 60 * (number == 6)
            logger.warning("refused %d", number)
        logger.warning("another call site")
    finally:
        logger.removeFilter(limit)
    assert [record.getMessage() for record in caplog.records] == [
        "refused 0",
        "refused 1",
        "refused 6 (4 similar messages were suppressed)",
        "another call site",
    ]
