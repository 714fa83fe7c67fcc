import logging
import threading

import pytest

from jobsight.errors import JobsightError
from jobsight.util.workers import repeating

logger = logging.getLogger("jobsight.tests")


def test_errors_and_faults_do_not_end_the_work(caplog: pytest.LogCaptureFixture) -> None:
    rounds: list[threading.Event] = []
    done = threading.Event()

    def work(stopped: threading.Event) -> None:
        rounds.append(stopped)
        if len(rounds) == 1:
            raise JobsightError("no room")
        if len(rounds) == 2:
            raise KeyError("a fault")
        done.set()
        stopped.wait()

    with repeating("test", work, 0.001, logger, "the work waits"):
        assert done.wait(30)
        assert any(thread.name == "jobsight-test" for thread in threading.enumerate())
    assert not any(thread.name == "jobsight-test" for thread in threading.enumerate())
    assert len(rounds) == 3
    said = [(record.levelname, record.message) for record in caplog.records]
    assert said == [
        ("WARNING", "the work waits: no room"),
        ("ERROR", "the work waits: a fault of jobsight"),
    ]
