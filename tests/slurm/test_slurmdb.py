"""The restricted user and the view, on the MariaDB of a real slurmdbd."""

import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

from jobsight.cli.main import main
from jobsight.config.settings import SlurmDatabaseSettings
from jobsight.server.user_jobs import UserJobs
from tests.bed import Cluster
from tests.bed.configuration import DATABASE, Configuration
from tests.waiting import wait_until

VIEW = "user_job_view"


@pytest.fixture
def command(cluster: Cluster, tmp_path: Path) -> Callable[..., int]:
    """`jobsight slurmdb` on the bed's database; as in the settings of a site, by address."""
    password = tmp_path / "password"
    password.write_text("it's \\a 'quoted' pässword\n")
    password.chmod(0o600)

    def run(name: str, *more: str, address: str = "", user: str = "jobsight") -> int:
        socket = str(cluster.settings.path("mysql", "socket"))
        where = address or (socket if name == "setup" else f"127.0.0.1:{port(cluster)}")
        options = ["--cluster", cluster.settings.name, "--database", DATABASE, "--user", user]
        options += ["--host", "127.0.0.1", "--address", where, "--password-file", str(password)]
        return main(["slurmdb", name, *options, *more])

    return run


def port(cluster: Cluster) -> int:
    state = cluster.state
    made = Configuration(state.settings, state.port_base, state.cgroup_version, "")
    return made.ports["mariadb"]


def as_root(cluster: Cluster, statement: str) -> list[tuple[Any, ...]]:
    socket = str(cluster.settings.path("mysql", "socket"))
    with pymysql.connect(unix_socket=socket, user="root", autocommit=True) as connection:
        return rows(connection, statement)


def rows(connection: Any, statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def made(cluster: Cluster) -> list[Any]:
    """Everything that the setup creates, as the server describes it."""
    return [
        as_root(cluster, f"show create view {DATABASE}.{VIEW}"),
        as_root(cluster, "show grants for jobsight@127.0.0.1"),
        as_root(cluster, "select user, host from mysql.user order by 1, 2"),
        as_root(cluster, f"show full tables from {DATABASE}"),
    ]


def test_the_user_can_select_from_the_view_and_do_nothing_else(
    cluster: Cluster,
    command: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command("setup") == 0
    first = made(cluster)
    assert command("setup") == 0
    assert made(cluster) == first

    job = cluster.submit("jobsight-alice", "true", "--job-name", "<b>'; drop table x; --")
    cluster.wait(job)
    password = "it's \\a 'quoted' pässword"
    with pymysql.connect(
        host="127.0.0.1",
        port=port(cluster),
        user="jobsight",
        password=password.encode(),
        autocommit=True,
    ) as connection:
        select = f"select id_user, id_job, job_name from {DATABASE}.{VIEW} where id_job = {job}"
        wait_until(lambda: len(rows(connection, select)) > 0)
        uid = pwd.getpwnam("jobsight-alice").pw_uid
        assert rows(connection, select) == [(uid, job, "<b>'; drop table x; --")]
        assert rows(connection, f"show tables from {DATABASE}") == [(VIEW,)]
        name = cluster.settings.name
        table = f"{DATABASE}.{name}_job_table"
        # A thread of another user, so that the answer is not that there is none.
        ((thread,),) = as_root(
            cluster, "select min(id) from information_schema.processlist where user = 'slurm'"
        )
        for refused, code in (
            (f"select id_job from {table}", ER.TABLEACCESS_DENIED_ERROR),
            (f"select user from {DATABASE}.user_table", ER.TABLEACCESS_DENIED_ERROR),
            (f"insert into {DATABASE}.{VIEW} values (1, 1, 'x')", ER.TABLEACCESS_DENIED_ERROR),
            (f"update {DATABASE}.{VIEW} set job_name = 'x'", ER.TABLEACCESS_DENIED_ERROR),
            (f"delete from {DATABASE}.{VIEW}", ER.TABLEACCESS_DENIED_ERROR),
            (f"drop view {DATABASE}.{VIEW}", ER.TABLEACCESS_DENIED_ERROR),
            (
                f"create or replace view {DATABASE}.{VIEW} as select * from {table}",
                ER.TABLEACCESS_DENIED_ERROR,
            ),
            (f"show create view {DATABASE}.{VIEW}", ER.TABLEACCESS_DENIED_ERROR),
            (f"create table {DATABASE}.mine (a int)", ER.TABLEACCESS_DENIED_ERROR),
            ("create database mine", ER.DBACCESS_DENIED_ERROR),
            ("select user from mysql.user", ER.TABLEACCESS_DENIED_ERROR),
            ("create user other@localhost", ER.SPECIFIC_ACCESS_DENIED_ERROR),
            (
                f"grant select on {DATABASE}.{VIEW} to slurm@127.0.0.1",
                ER.TABLEACCESS_DENIED_ERROR,
            ),
            ("set global max_connections = 1", ER.SPECIFIC_ACCESS_DENIED_ERROR),
            ("select 1 into outfile '/tmp/jobsight-outfile'", ER.SPECIFIC_ACCESS_DENIED_ERROR),
            ("flush tables", ER.SPECIFIC_ACCESS_DENIED_ERROR),
            (f"kill {thread}", ER.KILL_DENIED_ERROR),
            ("call mysql.AddGeometryColumn('a', 'b', 'c', 'd', 1)", ER.PROCACCESS_DENIED_ERROR),
        ):
            with pytest.raises(pymysql.MySQLError) as answer:
                rows(connection, refused)
            assert answer.value.args[0] == code, refused
    capsys.readouterr()
    assert command("check") == 0
    assert "do nothing else" in capsys.readouterr().out
    # The jobs of a user from it.
    assert command("jobs", "jobsight-alice") == 0
    listed = capsys.readouterr().out.splitlines()
    assert f"{job}  <b>'; drop table x; --" in listed
    assert command("jobs", "4294967294") == 0
    assert capsys.readouterr().out == ""
    settings = SlurmDatabaseSettings(
        address=f"127.0.0.1:{port(cluster)}",
        cluster=name,
        database=DATABASE,
        password_file=str(tmp_path / "password"),
    )
    assert job in UserJobs(settings).of(uid)


def test_check_names_every_further_permission(
    cluster: Cluster, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("setup") == 0
    as_root(cluster, f"grant select on {DATABASE}.user_table to jobsight@127.0.0.1")
    try:
        assert command("check") == 1
        out = capsys.readouterr().out
        assert f"another permission: GRANT SELECT ON `{DATABASE}`.`user_table`" in out
        assert f"sees the table `{DATABASE}`.`user_table`" in out
        assert "IDENTIFIED" not in out
        assert command("setup") == 1
        assert "exists and has other permissions" in capsys.readouterr().err
    finally:
        as_root(cluster, f"revoke select on {DATABASE}.user_table from jobsight@127.0.0.1")
    assert command("check") == 0


def test_what_belongs_to_others_is_not_changed(
    cluster: Cluster, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    before = as_root(cluster, "show grants for slurm@127.0.0.1")
    assert command("setup", user="slurm") == 1
    assert "'slurm'@'127.0.0.1' exists and has other permissions" in capsys.readouterr().err
    assert as_root(cluster, "show grants for slurm@127.0.0.1") == before

    assert command("setup", "--view", "user_table") == 1
    assert "is a table" in capsys.readouterr().err
    as_root(cluster, f"create view {DATABASE}.other_view as select name from {DATABASE}.user_table")
    try:
        assert command("setup", "--view", "other_view") == 1
        assert "is not one of" in capsys.readouterr().err
    finally:
        as_root(cluster, f"drop view {DATABASE}.other_view")


def test_a_dry_run_changes_nothing_and_prints_sql_that_works(
    cluster: Cluster, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    as_root(cluster, "drop user if exists printed@127.0.0.1")
    assert command("setup", "--dry-run", "--view", "printed_view", user="printed") == 0
    printed = capsys.readouterr().out
    assert "quoted" not in printed
    assert not as_root(cluster, "select 1 from mysql.user where user = 'printed'")
    try:
        for statement in printed.splitlines()[1:]:
            as_root(cluster, statement)
        [*_, grant] = as_root(cluster, "show grants for printed@127.0.0.1")
        assert grant[0].startswith(f"GRANT SELECT ON `{DATABASE}`.`printed_view` TO")
    finally:
        as_root(cluster, "drop user printed@127.0.0.1")
        as_root(cluster, f"drop view {DATABASE}.printed_view")


def test_errors_are_one_sentence(
    cluster: Cluster,
    command: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert command("setup", "--cluster", "nosuch", "--view", "nosuch_view", user="nosuch") == 1
    assert "nosuch_job_table' doesn't exist" in capsys.readouterr().err
    assert command("setup", address="127.0.0.1:1") == 1
    assert capsys.readouterr().err.startswith("jobsight: the database at 127.0.0.1:1")
    assert command("check", user="nobody-knows") == 1
    assert "Access denied" in capsys.readouterr().err
    monkeypatch.delenv("MYSQL_PWD", raising=False)
    assert command("setup", address=f"127.0.0.1:{port(cluster)}") == 1
    assert "refused" in capsys.readouterr().err
