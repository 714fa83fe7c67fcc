"""``python -m tests.drill``: all faults, or those named, and the page."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from jobsight.server.authority import Authority
from jobsight.simulation.check import Checked
from tests.drill.faults import FAULTS, Drill, Fault
from tests.drill.site import Cluster, Front, Site, small_disk
from tests.server.processes import Spawner
from tests.waiting import wait_until

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "drill.md"
#: Faults of parts that need more than batches: tests that exist, each with its own real parts.
TESTS = {
    "SMTP server away": (
        "three mails are queued while no mail server listens; a test server of SMTP "
        "(aiosmtpd) is reached later",
        "tests/mail/test_mail.py::test_a_mail_server_that_is_away_loses_nothing",
    ),
    "MongoDB away": (
        "no server listens at the sink's address; then SecantusDB, which speaks MongoDB's "
        "protocol, is started",
        "tests/scheduler/sinks/test_mongodb.py::"
        "test_a_server_that_is_away_is_one_line_and_nothing_is_lost",
    ),
    "MongoDB feed killed": (
        "the process that feeds SecantusDB is killed in the middle",
        "tests/scheduler/sinks/test_mongodb.py::test_killed_in_the_middle_and_repeated",
    ),
    "OpenSearch away": (
        "osmem, which speaks OpenSearch's protocol, is unreachable, refuses, or is busy",
        "tests/scheduler/sinks/test_opensearch.py::test_away_refused_or_busy_is_one_line",
    ),
    "OpenSearch feed killed": (
        "the process that feeds osmem is killed in the middle",
        "tests/scheduler/sinks/test_opensearch.py::test_killed_in_the_middle_and_repeated",
    ),
    "Slurm away": (
        "the source of the scraper, with made-up records, raises that nothing answers",
        "tests/scheduler/test_scraper.py::test_slurm_away_leaves_what_is_stored",
    ),
    "slurmdbd away": (
        "the source with made-up records has a controller that answers and an accounting "
        "that does not",
        "tests/scheduler/test_scraper.py::test_the_queue_alone_serves_while_the_accounting_is_away",
    ),
    "accounting lost on the way": (
        "the source with made-up records fails in the middle of the accounting's reply",
        "tests/scheduler/test_scraper.py::"
        "test_progress_is_kept_when_the_accounting_goes_away_on_the_way",
    ),
    "scheduler answers garbage": (
        "scripts in place of Slurm's commands print no JSON, half of it, a page, nothing or "
        "other columns",
        "tests/scheduler/sources/test_commands.py::"
        "test_garbage_of_the_commands_is_one_line_and_changes_nothing",
    ),
    "OIDC provider away": (
        "oidc-provider (npm) ends during a sign-in and is started again",
        "tests/server/auth/test_oidc.py::test_a_provider_that_goes_away_and_comes_back",
    ),
    "token rotated": (
        "a test server refuses the token of a spool with three batches; then the token file "
        "is replaced",
        "tests/transport/test_delivery.py::test_a_rotated_token_is_taken_up_without_a_restart",
    ),
    "killed in a write": (
        "kill -9 of a process that writes batches, three times, on SQLite and on PostgreSQL",
        "tests/store/test_faults.py::test_what_was_acknowledged_survives_a_kill",
    ),
}


class Row(NamedTuple):
    """What became of a fault."""

    name: str
    injected: str
    happened: str
    lost: str
    passed: bool
    seconds: float


@contextmanager
def site_of(kind: str, spawner: Spawner) -> Iterator[tuple[Site, Front | None, Cluster | None]]:
    """A site of one kind, with its servers running."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="jobsight-drill-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        front, cluster = None, None
        if kind == "postgresql":
            database = folder / "postgresql"
            database.mkdir()
            # The socket's directory is entered by another user.
            folder.chmod(0o711)
            cluster = Cluster(database)
            stack.callback(cluster.close)
            cluster.create()
            site = Site(spawner, folder, cluster.url())
        elif kind == "disk":
            disk = stack.enter_context(small_disk(folder / "disk"))
            site = Site(spawner, folder, str(disk / "store.db"))
        elif kind == "tls":
            authority = Authority(folder / "ca")
            authority.create("drill")
            site = Site(spawner, folder, str(folder / "store.db"), authority)
        else:
            site = Site(spawner, folder, str(folder / "store.db"))
        stack.callback(site.close)
        site.add_server()
        if kind == "postgresql":
            second = site.add_server()
            # Both accept the token of the first.
            second.end(15)
            shutil.copy(site.server.token_file, second.token_file)
            second.start()
            front = Front(folder / "nginx", site.servers)
            stack.callback(front.end)
        yield site, front, cluster


def run_fault(fault: Fault, site: Site, front: Front | None, cluster: Cluster | None) -> Row:
    """Inject a fault under load, and compare both ends."""
    begun = time.monotonic()
    with site.relay() as relay:
        if front is not None:
            relay.target = front.port
        # The relay speaks plain HTTP.
        agents = site.agents(relay.url if site.authority is None else None)
        try:
            wait_until(lambda: agents.accepted >= 10)
            happened = fault.inject(Drill(site, agents, relay, front, cluster))
        except BaseException:
            agents.stop()
            raise
        checked = site.check(agents)
    lost, passed = _verdict(fault, checked, site)
    return Row(fault.name, fault.injected, happened, lost, passed, time.monotonic() - begun)


def _verdict(fault: Fault, checked: Checked, site: Site) -> tuple[str, bool]:
    counted = checked.dropped + checked.refused - site.counted
    site.counted = checked.dropped + checked.refused
    if checked.differences:
        return "; ".join(f"{n} {kind}" for kind, n in checked.differences.items()), False
    if counted and not fault.counted:
        return f"{counted} batches, counted", False
    if fault.counted and not counted:
        return "nothing, though it should have been", False
    return (f"{counted} batches, each counted" if counted else "nothing"), True


def run_test(name: str) -> Row:
    injected, node = TESTS[name]
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", node],
        cwd=PROJECT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    passed = done.returncode == 0 and " passed" in done.stdout
    happened = "the test passed" if passed else done.stdout[-300:].replace("\n", " ")
    lost = "nothing" if passed else "see the test"
    return Row(name, injected, happened, lost, passed, time.monotonic() - begun)


def run(names: Sequence[str]) -> Iterator[Row]:
    """All faults of these names, on one site of each kind."""
    spawner = Spawner()
    try:
        for kind in ("sqlite", "disk", "tls", "postgresql"):
            wanted = [
                FAULTS[name] for name in names if name in FAULTS and FAULTS[name].kind == kind
            ]
            while wanted:
                with site_of(kind, spawner) as (site, front, cluster):
                    yield from _on_site(wanted, site, front, cluster)
    finally:
        spawner.close()
    for name in names:
        if name in TESTS:
            yield run_test(name)


def _on_site(
    wanted: list[Fault], site: Site, front: Front | None, cluster: Cluster | None
) -> Iterator[Row]:
    """Take faults from the list until one cannot be judged: then the others need a new site."""
    while wanted:
        fault = wanted.pop(0)
        try:
            yield run_fault(fault, site, front, cluster)
        except Exception as error:
            traceback.print_exc()
            said = str(error).partition("\n")[0] or type(error).__name__
            yield Row(fault.name, fault.injected, said, "not known", False, 0.0)
            return


def page(rows: Sequence[Row]) -> str:
    """The report as Markdown."""
    passed = sum(row.passed for row in rows)
    lines = [
        "# The drill",
        "",
        "`make drill` breaks the parts of a running site under the load of simulated agents, one",
        "fault after the other, and then compares what the agents wrote with what the store has:",
        "sequence numbers, samples, CPU time and executions of every job (as",
        "[`jobsight simulate check`](simulation.md) does). A batch may be lost only where the",
        'documents say so, and then its spool has counted it. Rows with "the test passed" are',
        "tests of their own, without that load, of other services. `make test-long` runs a part",
        "of the drill.",
        "",
        f"The last run was on {datetime.now(UTC):%Y-%m-%d}: {len(rows)} faults, {passed} as "
        "documented.",
        "",
        "| # | fault | injected | what happened | lost or doubled |",
        "|---|---|---|---|---|",
    ]
    for number, row in enumerate(rows, 1):
        cells = (
            row.name,
            row.injected,
            row.happened,
            row.lost if row.passed else f"**{row.lost}**",
        )
        lines.append(f"| {number} | " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    lines += [
        "",
        "The faults are in `tests/drill/faults.py`. The sites: one server on SQLite; the same on a",
        "file system of 24 MB; the same with TLS and certificates of nodes by `jobsight ca`; two",
        "servers behind nginx on PostgreSQL, to which a synchronous standby is added before it is",
        "promoted. The link that goes down is a pair of virtual Ethernet devices between two",
        "network namespaces. The tests of the last rows use aiosmtpd, SecantusDB for MongoDB,",
        "osmem for OpenSearch, oidc-provider, scripts with recorded replies or a source with",
        "made-up records for Slurm, and a test server for the token; the databases of the last",
        "row are real.",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make drill")
    parser.add_argument("names", nargs="*", help="faults (default: all)")
    parser.add_argument("--list", action="store_true", help="list the faults")
    parser.add_argument("--page", type=Path, help="write the page to this file")
    options = parser.parse_args(arguments)
    every = [*FAULTS, *TESTS]
    if options.list:
        print("\n".join(every))
        return 0
    if unknown := set(options.names) - set(every):
        print(f"no such fault: {', '.join(sorted(unknown))}; --list names all")
        return 2
    rows = []
    for row in run(options.names or every):
        rows.append(row)
        mark = "ok  " if row.passed else "FAIL"
        print(
            f"{mark} {row.seconds:5.1f} s  {row.name}: {row.happened}; lost: {row.lost}", flush=True
        )
    if options.page:
        options.page.write_text(page(rows))
    elif not options.names:
        PAGE.write_text(page(rows))
    failed = [row.name for row in rows if not row.passed]
    print(
        f"{len(rows)} faults, {len(failed)} not as documented" + "".join(f"\n  {n}" for n in failed)
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
