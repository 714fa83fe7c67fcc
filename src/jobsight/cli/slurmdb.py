"""``jobsight slurmdb``: a restricted user and a view on Slurm's accounting database."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobsight.cli.arguments import CommandParser, Subcommand, UsageError, run_group
from jobsight.errors import StoreError

if TYPE_CHECKING:
    from jobsight.store.slurm_database import Restricted

#: Where Debian's and Red Hat's servers listen.
_SOCKETS = ("/run/mysqld/mysqld.sock", "/var/lib/mysql/mysql.sock")
#: Jobs that are listed.
_MAX_JOBS = 10_000


def setup(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    address: str | None,
    database: str,
    cluster: str,
    view: str,
    user: str,
    host: str,
    password_file: Path | None,
    tls_ca: Path | None,
    admin: str,
    dry_run: bool,
) -> None:
    """Create the restricted user and the view on Slurm's accounting database.

    The view has user id, job id and name of every job of the cluster; the user may select from it
    and do nothing else. Repeating the command changes nothing but the password, if the file has
    another one. A user that has other permissions is refused. The administrator's password is
    read from the environment variable MYSQL_PWD; root needs none on a socket.
    """
    from jobsight.store.slurm_database import PLACEHOLDER, Address, set_up, statements

    restricted = _restricted(database, cluster, view, user, host)
    if dry_run:
        print(f"-- {PLACEHOLDER} stands for the password of {restricted.account}.")
        for statement in statements(restricted, f"'{PLACEHOLDER}'"):
            print(f"{statement};")
        return
    set_up(
        Address.parse(address or _socket()),
        admin,
        os.environ.get("MYSQL_PWD", ""),
        restricted,
        _password(password_file),
        tls_ca=tls_ca,
    )
    print(f"{restricted.account} may select from {restricted.view_name}")


def check(
    *,
    address: str | None,
    database: str,
    cluster: str,
    view: str,
    user: str,
    host: str,
    password_file: Path | None,
    tls_ca: Path | None,
) -> int:
    """Verify that the restricted user can read the view and nothing else."""
    from jobsight.store import slurm_database

    restricted = _restricted(database, cluster, view, user, host)
    problems = slurm_database.check(
        slurm_database.Address.parse(address or _socket()),
        restricted,
        _password(password_file),
        tls_ca=tls_ca,
    )
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{restricted.account} can select from {restricted.view_name} and do nothing else")
    return 1 if problems else 0


def jobs(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    name: str,
    address: str | None,
    database: str,
    cluster: str,
    view: str,
    user: str,
    host: str,
    password_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """List the jobs of a user that Slurm's accounting database knows, by the view.

    NAME is a user of this machine or a number. The newest 10,000 are listed, the newest first.
    """
    from jobsight.store.slurm_database import Address, jobs_of_user
    from jobsight.text import readable_text

    found = jobs_of_user(
        Address.parse(address or _socket()),
        _restricted(database, cluster, view, user, host),
        _password(password_file),
        _uid(name),
        limit=_MAX_JOBS,
        tls_ca=tls_ca,
    )
    for job in found:
        print(f"{job.job_id}  {readable_text(job.name)}")


def _uid(name: str) -> int:
    if name.isascii() and name.isdecimal() and len(name) <= 10:
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise StoreError(
            f"there is no user {name[:80]!r} on this machine; expected a name or a number"
        ) from None


def _restricted(database: str, cluster: str, view: str, user: str, host: str) -> Restricted:
    from jobsight.store.slurm_database import Restricted

    return Restricted(database=database, cluster=cluster, view=view, user=user, host=host)


def _socket() -> str:
    return next((path for path in _SOCKETS if os.path.exists(path)), _SOCKETS[0])


def _password(file: Path | None) -> str:
    from jobsight.store.slurm_database import read_password

    if file is None:
        raise UsageError("expected --password-file FILE with the password of the restricted user")
    return read_password(file)


def _add_options(parser: CommandParser) -> None:
    parser.add_argument("--cluster", required=True, metavar="NAME", help="Slurm's ClusterName")
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="Socket or HOST:PORT of MariaDB or MySQL (default: the local socket)",
    )
    parser.add_argument(
        "--database",
        default="slurm_acct_db",
        metavar="NAME",
        help="Slurm's database, StorageLoc of slurmdbd.conf (default: slurm_acct_db)",
    )
    parser.add_argument(
        "--view", default="user_job_view", metavar="NAME", help="Default: user_job_view"
    )
    parser.add_argument(
        "--user", default="jobsight", metavar="NAME", help="Restricted user (default: jobsight)"
    )
    parser.add_argument(
        "--host",
        default="localhost",
        metavar="HOST",
        help="Host from which the restricted user connects (default: localhost)",
    )
    parser.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="Password of the restricted user; the file has mode 0600",
    )
    parser.add_argument(
        "--tls-ca", type=Path, metavar="FILE", help="Connect with TLS; certificate authority"
    )


def _add_setup_options(parser: CommandParser) -> None:
    _add_options(parser)
    parser.add_argument(
        "--admin", default="root", metavar="NAME", help="Administrator (default: root)"
    )
    parser.add_argument("--dry-run", action="store_true", help="Print the SQL and change nothing")


def _add_jobs_options(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name or number of the user")
    _add_options(parser)


def main(arguments: Sequence[str]) -> int:
    commands = {
        "setup": Subcommand(setup, _add_setup_options),
        "check": Subcommand(check, _add_options),
        "jobs": Subcommand(jobs, _add_jobs_options),
    }
    description = "A restricted user and a view on Slurm's accounting database."
    return run_group(commands, "slurmdb", description, arguments)
