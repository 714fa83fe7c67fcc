"""What all tests share: markers, Hypothesis profiles, and the list of skipped tests at the end."""

import logging
import os
import resource
import signal
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.examples import load_profile

if TYPE_CHECKING:
    from tests.store.postgresql import Server

load_profile()


def pytest_configure() -> None:
    """Undo that a shell makes background commands and their children ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Append the CPU time and the elapsed time of each test to the file TEST_TIMES, if set.

    CPU time includes children that the test has waited for, and hardly depends on the load of the
    machine; ``--durations`` depends on nothing else.
    """
    file = os.environ.get("TEST_TIMES")
    if not file:
        return (yield)
    cpu, start = _cpu_seconds(), time.monotonic()
    try:
        return (yield)
    finally:
        spent, elapsed = _cpu_seconds() - cpu, time.monotonic() - start
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(f"{spent:.2f}\t{elapsed:.2f}\t{item.nodeid}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what a test has logged or printed: a worker can only send valid UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Restore the logging configuration, which commands under test change."""
    root, own = logging.getLogger(), logging.getLogger("jobsight")
    levels, handlers = (root.level, own.level), list(root.handlers)
    yield
    root.setLevel(levels[0])
    own.setLevel(levels[1])
    logging.captureWarnings(False)
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        if handler not in root.handlers:
            root.addHandler(handler)


@pytest.fixture(scope="session")
def postgresql_server() -> "Iterator[Server]":
    """One server for all tests of a worker: a fixture of a directory would be one for each."""
    from tests.store import postgresql

    try:
        # Autovacuum is a transaction, and changes the revision of a store at a time of its own.
        with postgresql.running(postgresql.memory_directory(), "-c autovacuum=off") as server:
            yield server
    except postgresql.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run all tests of the Slurm bed on one worker: they share one cluster."""
    from xdist.scheduler import LoadScopeScheduling

    class SlurmOnOneWorker(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/slurm" if nodeid.startswith("tests/slurm/") else nodeid

    return SlurmOnOneWorker(config, log)


#: Fixtures that start a program of a Debian package or another real server, and the marker of the
#: tests that use them. A test without such a fixture carries the marker itself.
MARKERS = {
    "browser": "browser",
    "burners": "server",
    "compiled": "server",
    "gateway": "server",
    "kept": "server",
    "postgresql_server": "server",
    "prometheus": "server",
    "sams": "server",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs_root = pytest.mark.skip(reason="needs root; run `make test` as root for it")
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        # The fixture ``location`` starts PostgreSQL for one of its parameters only.
        parameters = getattr(item, "callspec", None)
        if parameters is not None and "postgresql" in parameters.params.values():
            names.add("postgresql_server")
        for marker in sorted({MARKERS[name] for name in names & MARKERS.keys()}):
            item.add_marker(marker)
        if os.geteuid() != 0 and item.get_closest_marker("root"):
            item.add_marker(needs_root)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each skipped test, so that a partial run does not look like a complete one."""
    skipped: dict[str, str] = {}
    for report in terminalreporter.stats.get("skipped", []):
        # Both workers report a module that is skipped as a whole; the node id makes it one line.
        reason = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else "no reason"
        skipped[report.nodeid] = reason.removeprefix("Skipped: ")
    # The workers do not report the number of deselected tests, so only the expression is named.
    option = terminalreporter.config.option
    selected = " and ".join(filter(None, [option.keyword, option.markexpr]))

    terminalreporter.section("Skipped, and why")
    for name, reason in sorted(skipped.items()):
        terminalreporter.write_line(f"{name}: {reason}")
    if selected:
        terminalreporter.write_line(f"Only tests for this expression were run: {selected}")
    elif not skipped:
        terminalreporter.write_line("Nothing was skipped.")
