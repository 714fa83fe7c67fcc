"""Every table of the schema in every kind of maintenance.

A new table fails these tests until it is decided what backup, move, check, retention and the
inventory do with it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from sqlalchemy import func, select

from jobsight.config.settings import RetentionSettings
from jobsight.findings.packed import decode_figures, encode_figures
from jobsight.findings.vocabulary import FigureSet
from jobsight.scheduler.records import JobDetails, JobRecord, NodeInfo
from jobsight.store import chains, dead_letters
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.audit import AuditLog
from jobsight.store.accounts.coordinators import record_coordinators
from jobsight.store.accounts.failures import Limit, count_attempt
from jobsight.store.accounts.preferences import Preferences, write_preferences
from jobsight.store.accounts.privacy import erase_user, export_user
from jobsight.store.accounts.sessions import Sessions
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.findings.shown import Shown, record_shown
from jobsight.store.findings.works import add_script, figures_of_runs
from jobsight.store.findings.write import store_judged
from jobsight.store.maintenance.dump import back_up, copy_store, restore
from jobsight.store.maintenance.inventory import CLASSES, take_inventory
from jobsight.store.maintenance.retention import DAY, prune
from jobsight.store.properties import JobKey, set_properties
from jobsight.store.schema.tables import metadata
from jobsight.store.snapshot import Snapshot
from jobsight.store.sql.load import load_statements
from jobsight.store.store import Store
from jobsight.store.tokens import Tokens
from tests.software.rule_sets import PLAIN
from tests.store.contents import check, rows
from tests.store.findings.sample import KIND, add_findings, finding, judged, work
from tests.store.many import NOW, fill
from tests.store.node_sample import node_batch, node_series
from tests.store.sample import START, find, info
from tests.store.sums import sum_up_everything

TABLES = {str(table.name) for table in metadata.sorted_tables}


def _fill_every_table(store: Store) -> None:
    fill(store, [7], age=100, now=NOW)
    store.record_jobs([info(8, end=START + 10, state="COMPLETED")], [JobDetails()])
    sum_up_everything(store, PLAIN)
    Tokens(store.database).add("c1", "nodes")
    Snapshot(store.database, "c1").replace("node", [("n1", NodeInfo(cluster="c1", name="n1"))])
    with store.database.write() as transaction:
        run_id = find(store, "8").id
        transaction.execute(
            "INSERT INTO software (name, version, local_version, user_provided, ignored) "
            "VALUES ('a', '1', '', false, false)"
        )
        transaction.execute(
            "INSERT INTO exported (name, run_id) VALUES ('all', :id)", {"id": run_id}
        )
        dead_letters.mark(transaction, dead_letters.ROLLUP, str(run_id), "c1", "broken", START)
        transaction.execute(
            "INSERT INTO mail_pauses (recipient, cause, reason, created) "
            "VALUES ('anna', 'digest', '', 1)"
        )
        transaction.execute(
            "INSERT INTO mail_log (day, kind, recipient, outcome, reason, mails, last) "
            "VALUES (20000, 'digest', 'anna', 'sent', '', 1, 1)"
        )
    add_findings(store, find(store, "7"), finding(), work=work())
    record_shown(store.database, {Shown(find(store, "7").id, KIND, "anna", "report"): 1}, NOW)
    job = JobKey("c1", 7, find(store, "7").info.user or "")
    set_properties(store.database, job, {"learning_rate": 0.1}, NOW)
    # So long ago that retention removes it.
    after = chains.Dependency("c1", 10, "anna", START, (9,))
    store.record_dependencies([after], now=NOW - chains.KEPT - 1)
    add_script(store.database, work().key, "#!/bin/sh\nsleep 1\n")
    UserAccounts(store.database).add("anna", "user", password_hash="x")
    # Now, and not at NOW: sessions and tokens end by the clock.
    Sessions(store.database, idle=DAY, lifetime=DAY).open(user="anna")
    UserTokens(store.database).add("anna", "read", DAY)
    write_preferences(store.database, "anna", Preferences(language="fr"))
    audit = AuditLog(store.database)
    audit.record(user="anna", viewer="carol", subject="/users/anna")
    audit.write()
    record_coordinators(store.database, "c1", [("physics", "anna")])
    # So long ago that retention removes it.
    assert store.write(node_batch(node_series(NOW - 100 * DAY, 5)))
    assert count_attempt(store.database, [Limit(b"key", 1)], 1, 1) == 0
    counted = _counts(store)
    assert [name for name in sorted(TABLES) if not counted[name]] == []


@pytest.fixture
def filled(store: Store) -> Store:
    """A store with rows in every table."""
    _fill_every_table(store)
    return store


def _counts(store: Store) -> dict[str, int]:
    with store.database.read() as connection:
        return {
            str(table.name): connection.scalar(select(func.count()).select_from(table)) or 0
            for table in metadata.sorted_tables
        }


def test_a_backup_has_every_table(filled: Store, tmp_path: Path) -> None:
    before = rows(filled)
    back_up(filled.database, tmp_path / "backup")
    restore(tmp_path / "restored.db", tmp_path / "backup")
    with Store.open(tmp_path / "restored.db") as restored:
        assert rows(restored) == before


def test_a_move_has_every_table(filled: Store, location: str, tmp_path: Path) -> None:
    before = rows(filled)
    copy_store(location, str(tmp_path / "moved.db"))
    with Store.open(tmp_path / "moved.db") as moved:
        assert rows(moved) == before


#: The class of the inventory of each table.
CLASS_OF = {
    "agents": "agents",
    "audit_log": "accounts",
    "batches": "agents",
    "checkpoints": "scheduler",
    "chunks": "series",
    "cluster_records": "scheduler",
    "contributions": "rollups",
    "coordinators": "accounts",
    "dead_letters": "dead letters",
    "executables": "executables",
    "findings": "findings",
    "findings_by_day": "findings",
    "findings_shown": "findings",
    "exported": "exports",
    "gpus": "runs",
    "job_chains": "runs",
    "job_properties": "runs",
    "mail_log": "mail",
    "mail_pauses": "mail",
    "node_chunks": "nodes",
    "node_days": "nodes",
    "paths": "executables",
    "preferences": "accounts",
    "run_details": "runs",
    "run_figures": "findings",
    "run_nodes": "runs",
    "runs": "runs",
    "scripts": "findings",
    "sessions": "accounts",
    "sign_in_failures": "accounts",
    "software": "executables",
    "software_by_day": "rollups",
    "software_by_month": "rollups",
    "spools": "agents",
    "steps": "executables",
    "tokens": "agents",
    "usage_by_day": "rollups",
    "usage_by_month": "rollups",
    "user_accounts": "accounts",
    "user_tokens": "accounts",
    "works": "findings",
}


def test_the_inventory_has_every_table(filled: Store) -> None:
    assert CLASS_OF.keys() == TABLES
    assert {
        str(table.name): name for name, tables in CLASSES.items() for table in tables
    } == CLASS_OF
    counted = _counts(filled)
    for name, held in take_inventory(filled.database).classes.items():
        expected = sum(count for table, count in counted.items() if CLASS_OF[table] == name)
        assert held.rows == expected


#: What removes the rows of ended runs: with the run, or never, and why.
REMOVED_WITH_RUN = {
    "chunks",
    "contributions",
    "dead_letters",
    "executables",
    "exported",
    "findings",
    "findings_shown",
    "gpus",
    # With the last run of the job.
    "job_properties",
    "run_details",
    "run_figures",
    "run_nodes",
    "runs",
    "steps",
    # Once no executable refers to them.
    "paths",
    # Once no run is of the work, and no work has the script.
    "works",
    "scripts",
}
#: What retention removes by its own age.
REMOVED_BY_AGE = {
    *("audit_log", "job_chains", "node_chunks", "node_days", "sessions", "sign_in_failures"),
    "user_tokens",
}
KEPT = {
    "agents": "one row per node",
    "batches": "one row per interval of sequence numbers",
    "checkpoints": "the position of background work",
    "cluster_records": "replaced by each scrape",
    "coordinators": "the runs of that time outlive them",
    "findings_by_day": "sums outlive their runs",
    "preferences": "removed with the account by the operator",
    "mail_log": "removed by the mail worker by age",
    "mail_pauses": "removed by the mail worker when they end",
    "software": "names of the rollups",
    "software_by_day": "rollups outlive their runs",
    "software_by_month": "rollups outlive their runs",
    "spools": "one row per spool",
    "tokens": "removed by the operator",
    "usage_by_day": "rollups outlive their runs",
    "usage_by_month": "rollups outlive their runs",
    "user_accounts": "removed by the operator",
}


def test_retention_has_every_table(filled: Store) -> None:
    assert REMOVED_WITH_RUN | REMOVED_BY_AGE | KEPT.keys() == TABLES
    assert not (REMOVED_WITH_RUN | REMOVED_BY_AGE) & KEPT.keys()
    prune(filled.database, RetentionSettings(runs=1), NOW, pause=lambda seconds: None)
    counted = _counts(filled)
    assert {name for name in TABLES if not counted[name]} == REMOVED_WITH_RUN | REMOVED_BY_AGE


#: A fault of each table that the check finds, as the statement that makes it.
FAULTS = {
    "batches": "UPDATE batches SET spool_id = 99",
    "chunks": "UPDATE chunks SET rows = 1",
    "contributions": "UPDATE contributions SET run_id = run_id + 90",
    "dead_letters": "UPDATE dead_letters SET key = '99'",
    "executables": "UPDATE executables SET path_id = path_id + 90",
    "findings": "UPDATE findings SET core_time = core_time + 1",
    "findings_by_day": "DELETE FROM findings_by_day",
    "findings_shown": "UPDATE findings_shown SET run_id = 99",
    "job_properties": "UPDATE job_properties SET size = size + 1",
    "node_chunks": "UPDATE node_chunks SET rows = 1",
    "node_days": "UPDATE node_days SET open_chunks = 5",
    "paths": "UPDATE paths SET digest = path",
    "preferences": "UPDATE preferences SET user = 'nobody'",
    "run_details": "UPDATE run_details SET run_id = 99",
    "run_figures": "UPDATE run_figures SET run_id = 99",
    "run_nodes": "UPDATE run_nodes SET open_chunks = 5",
    "runs": "UPDATE runs SET cpu_time = 5",
    "sessions": "UPDATE sessions SET user = 'nobody'",
    "software_by_day": "UPDATE software_by_day SET executions = executions + 1",
    "software_by_month": "DELETE FROM software_by_month",
    "spools": "UPDATE spools SET agent_id = 99",
    "gpus": "UPDATE gpus SET run_node_id = 99",
    "steps": "UPDATE steps SET run_node_id = 99",
    "usage_by_day": "DELETE FROM usage_by_day",
    "user_accounts": "UPDATE user_accounts SET name = 'nobody'",
    "user_tokens": "UPDATE user_tokens SET user = 'nobody'",
    "works": "UPDATE works SET id = 99",
    "usage_by_month": "UPDATE usage_by_month SET days = days | 1 << 30",
}
#: Nothing else in the store says what their rows should be; the engine's own check reads them.
UNCHECKED = {
    "agents",
    "audit_log",
    "checkpoints",
    "mail_log",
    "mail_pauses",
    "cluster_records",
    "coordinators",
    "exported",
    "job_chains",
    "scripts",
    "sign_in_failures",
    "software",
    "tokens",
}


def test_the_check_has_every_table(filled: Store) -> None:
    assert FAULTS.keys() | UNCHECKED == TABLES
    assert not FAULTS.keys() & UNCHECKED
    assert check(filled).faults == []


@pytest.mark.parametrize("table", sorted(FAULTS))
def test_the_check_finds_a_fault_of(table: str, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        _fill_every_table(store)
        # References are broken, too: the check must find what the engine would have refused.
        with store.database.alone() as connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            connection.execute(FAULTS[table])
        assert not check(store).sound


#: Tables with names of users whose rows no statement has to touch, and why.
NOT_PERSONAL = {
    # The digest of a name, for a quarter of an hour.
    "sign_in_failures",
}
_OF_USERS = {"user", "viewer", "recipient", "reply_user"}


def test_export_and_erase_know_every_table_of_users() -> None:
    statements = load_statements("privacy")
    for table in metadata.sorted_tables:
        if _OF_USERS & set(table.columns.keys()) and table.name not in NOT_PERSONAL:
            for verb in ("export", "erase"):
                words = " ".join(sql for name, sql in statements.items() if name.startswith(verb))
                assert re.search(rf"\b{table.name}\b", words), (verb, table.name)


def _texts(value: Any) -> Iterator[str]:
    """All that a value of a row says, inside documents and compression too."""
    if isinstance(value, (bytes, memoryview)):
        data = bytes(value)
        if data.startswith(zstandard.FRAME_HEADER):
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=2**24)
        yield data.decode("latin-1")
    elif value is not None:
        yield str(value)


def _mentions(store: Store, word: str) -> set[str]:
    return {
        table
        for table, each in rows(store).items()
        for row in each
        for value in row
        if any(word in text for text in _texts(value))
    }


def test_nothing_of_an_erased_user_is_left(filled: Store) -> None:
    """The name, an own job name and the line of submission, in the form of every table."""
    run = find(filled, "7")
    figures = FigureSet()
    figures.values |= {
        "run.user": "anna",
        "run.name": "own-words",
        "run.submit_line": "sbatch own-words.sh",
        "programs.top": "/home/anna/bin/solve",
        "programs.software": ["anna"],
    }
    document = {"title": "t", "figures": {"run.name": "own-words", "run.user": "anna"}}
    data = msgspec.msgpack.encode(document)
    store_judged(
        filled.database,
        [judged(run, finding(data=data))._replace(figures=encode_figures(figures))],
        NOW,
    )
    pending = JobRecord(info=info(20, None, user="anna", name="own-words", state="PENDING"))
    Snapshot(filled.database, "c1").replace("pending", [("20", pending)])
    with filled.database.write() as transaction:
        transaction.execute("UPDATE mail_pauses SET recipient = 'anna@site.example'")
    before = [(run.info.job_id, run.cpu_time) for run in filled.runs()]
    for word in ("anna", "own-words"):
        assert {"run_figures", "findings", "cluster_records"} <= _mentions(filled, word)
    exported = {record["table"] for record in export_user(filled.database, "anna")}
    assert {"run_figures", "mail_pauses", "mail_log", "findings_shown"} <= exported
    erase_user(filled.database, "anna")
    assert _mentions(filled, "anna") == set()
    assert _mentions(filled, "own-words") == set()
    assert [(run.info.job_id, run.cpu_time) for run in filled.runs()] == before
    after = decode_figures(figures_of_runs(filled.database, [run.id])[run.id].data).values
    assert str(after["run.user"]).startswith("erased-")
    assert after["programs.top"] == f"/home/{after['run.user']}/bin/solve"
    check(filled)
