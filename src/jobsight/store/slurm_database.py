"""The restricted user and the view on Slurm's accounting database.

The view has the user, the id and the name of every job and nothing else of Slurm's database; the
user may select from it. It runs with the permissions of the administrator who created it (SQL
SECURITY DEFINER), so that the user needs none on Slurm's tables. :func:`statements` has the SQL,
:func:`set_up` executes it and :func:`check` verifies it with the permissions of the user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pymysql

from jobsight.errors import ConfigError, JobsightError

#: Stands for the password where the statements are only printed.
PLACEHOLDER: Final = "PASSWORD"
#: Seconds to connect, and to wait for a reply.
_TIMEOUT: Final = 30
_PORT: Final = 3306

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_HOST: Final = re.compile(r"[A-Za-z0-9_.:%/-]{1,60}")
#: The server's error numbers: no such grant, no such table, the table is no view.
_NO_GRANT, _NO_TABLE, _NO_VIEW = 1141, 1146, 1347
#: Characters of a password.
_MAX_PASSWORD: Final = 1024
#: Schemas that every user sees.
_SYSTEM: Final = ("information_schema", "performance_schema")


class Address(msgspec.Struct, frozen=True):
    """A MariaDB or MySQL server: a socket, or host and port."""

    socket: str | None = None
    host: str | None = None
    port: int = _PORT

    @classmethod
    def parse(cls, text: str) -> Address:
        """The path of a socket, or ``HOST[:PORT]``."""
        if text.startswith("/"):
            return cls(socket=text)
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", text)
        if match is None or not 0 < int(match[2] or _PORT) < 65536:
            raise ConfigError(f"expected the path of a socket or HOST:PORT, got {text[:80]!r}")
        return cls(host=match[1].strip("[]"), port=int(match[2] or _PORT))

    def __str__(self) -> str:
        return self.socket or f"{self.host}:{self.port}"


class Restricted(msgspec.Struct, frozen=True, kw_only=True):
    """Names of what is set up."""

    #: Slurm's database: StorageLoc in slurmdbd.conf.
    database: str
    cluster: str
    view: str
    user: str
    #: The host from which the user may connect.
    host: str

    def __post_init__(self) -> None:
        names = {
            "database": self.database, "cluster": self.cluster, "view": self.view, "user": self.user
        }  # fmt: skip
        for what, name in names.items():
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{what} {name[:80]!r} is not valid; expected 1 to 64 letters, digits, _ - ."
                )
        if len(self.table) > 64:
            raise ConfigError(f"the name of the table {self.table} is longer than 64 characters")
        if not _HOST.fullmatch(self.host):
            raise ConfigError(f"{self.host[:80]!r} is not a host name or address")
        if set(self.host) <= {"%", "_"}:
            raise ConfigError("the user must be bound to a host; '%' would permit every host")

    @property
    def table(self) -> str:
        """Slurm's table of jobs."""
        return f"{self.cluster}_job_table"

    @property
    def account(self) -> str:
        return f"'{self.user}'@'{self.host}'"

    @property
    def view_name(self) -> str:
        return f"`{self.database}`.`{self.view}`"


class DatabaseJob(NamedTuple):
    """A job in the view."""

    job_id: int
    #: Text that a user has chosen.
    name: str


def jobs_of_user(
    address: Address,
    restricted: Restricted,
    password: str,
    uid: int,
    *,
    limit: int,
    tls_ca: Path | None = None,
) -> list[DatabaseJob]:
    """The jobs of a user by the view, the newest first."""
    with _connected(address, restricted.user, password, tls_ca) as connection:
        # A requeued job has several rows.
        found = _rows(
            connection,
            f"SELECT DISTINCT id_job, job_name FROM {restricted.view_name} WHERE id_user = %s"
            " ORDER BY id_job DESC LIMIT %s",
            (uid, limit),
        )
    return [DatabaseJob(int(job_id), str(name or "")) for job_id, name in found]


def read_password(file: Path) -> str:
    """The password of the restricted user, from a file that others cannot read."""
    try:
        with file.open(encoding="utf-8") as opened:
            if os.fstat(opened.fileno()).st_mode & 0o077:
                raise ConfigError(f"{file} can be read by others; expected mode 0600")
            password = opened.read(_MAX_PASSWORD + 1).strip()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text") from None
    if not 8 <= len(password) <= _MAX_PASSWORD:
        raise ConfigError(f"{file}: expected a password of 8 to {_MAX_PASSWORD} characters")
    return password


def statements(restricted: Restricted, password: str) -> list[str]:
    """The SQL that sets up view and user; ``password`` is a quoted literal.

    Every statement can be repeated. Names contain no quotation marks.
    """
    return [
        f"CREATE OR REPLACE SQL SECURITY DEFINER VIEW {restricted.view_name}"
        " (id_user, id_job, job_name) AS SELECT id_user, id_job, job_name"
        f" FROM `{restricted.database}`.`{restricted.table}` WHERE deleted = 0",
        f"CREATE USER IF NOT EXISTS {restricted.account} IDENTIFIED BY {password}",
        # The password of an earlier setup may have been another one.
        f"ALTER USER {restricted.account} IDENTIFIED BY {password}",
        f"GRANT SELECT ON {restricted.view_name} TO {restricted.account}",
    ]


def set_up(
    address: Address, admin: str, admin_password: str, restricted: Restricted, password: str,
    *, tls_ca: Path | None = None,
) -> None:  # fmt: skip
    """Create or renew view and user.

    A user with other permissions, and a view of something else, belong to somebody else: nothing
    is changed then.
    """
    with _connected(address, admin, admin_password, tls_ca) as connection:
        _refuse_foreign_view(connection, restricted)
        _refuse_foreign_user(connection, restricted)
        for statement in statements(restricted, connection.escape(password)):
            _rows(connection, statement)


def check(
    address: Address, restricted: Restricted, password: str, *, tls_ca: Path | None = None
) -> list[str]:
    """What is wrong, as the user itself sees it; empty if it may read the view and nothing else."""
    problems = []
    with _connected(address, restricted.user, password, tls_ca) as connection:
        try:
            _rows(
                connection, f"SELECT id_user, id_job, job_name FROM {restricted.view_name} LIMIT 1"
            )
        except pymysql.MySQLError as error:
            problems.append(f"the view {restricted.view_name} cannot be read: {_reason(error)}")
        grants = _rows(connection, "SHOW GRANTS")
        problems += [
            f"{restricted.account} has another permission: {extra}"
            for extra in _extra_grants(grants, restricted)
        ]
        # What it can see includes what roles and PUBLIC permit.
        marks = ", ".join(["%s"] * len(_SYSTEM))
        visible = _rows(
            connection,
            "SELECT table_schema, table_name FROM information_schema.tables"
            f" WHERE table_schema NOT IN ({marks}) ORDER BY 1, 2 LIMIT 20",
            _SYSTEM,
        )
        problems += [
            f"{restricted.account} sees the table `{schema}`.`{name}`"
            for schema, name in visible
            if (schema, name) != (restricted.database, restricted.view)
        ]
    return problems


def _refuse_foreign_view(connection: Any, restricted: Restricted) -> None:
    try:
        [(_, text, *_)] = _rows(connection, f"SHOW CREATE VIEW {restricted.view_name}")
    except pymysql.MySQLError as error:
        if error.args[0] == _NO_TABLE:
            return
        if error.args[0] == _NO_VIEW:
            raise JobsightError(
                f"{restricted.view_name} is a table; choose another name with --view"
            ) from None
        raise
    if f"from `{restricted.database}`.`{restricted.table}` where" not in str(text).replace(
        # The server leaves the database out where it is the current one.
        f"from `{restricted.table}` where",
        f"from `{restricted.database}`.`{restricted.table}` where",
    ):
        raise JobsightError(
            f"the view {restricted.view_name} exists and is not one of {restricted.table}; "
            "choose another name with --view"
        )


def _refuse_foreign_user(connection: Any, restricted: Restricted) -> None:
    try:
        grants = _rows(connection, f"SHOW GRANTS FOR {restricted.account}")
    except pymysql.MySQLError as error:
        if error.args[0] == _NO_GRANT:
            return
        raise
    extra = _extra_grants(grants, restricted)
    if extra:
        raise JobsightError(
            f"the user {restricted.account} exists and has other permissions ({extra[0]}); "
            "choose another name with --user, or drop that user"
        )


def _extra_grants(grants: list[tuple[Any, ...]], restricted: Restricted) -> list[str]:
    """The grants beyond connecting and selecting from the view, without whom they are for: that
    part has the digest of the password."""
    permitted = {"GRANT USAGE ON *.*", f"GRANT SELECT ON {restricted.view_name}"}
    extra = []
    for (text,) in grants:
        granted, _, rest = str(text).partition(" TO ")
        if granted not in permitted or "WITH GRANT OPTION" in rest:
            extra.append(granted)
    return extra


@contextmanager
def _connected(address: Address, user: str, password: str, tls_ca: Path | None) -> Iterator[Any]:
    try:
        connection = pymysql.connect(
            unix_socket=address.socket,
            host=address.host,
            port=address.port,
            user=user,
            # As in the statements: the library encodes a text as latin1.
            password=password.encode(),
            charset="utf8mb4",
            # The statements are written for the server's default quotation marks.
            sql_mode="",
            autocommit=True,
            connect_timeout=_TIMEOUT,
            read_timeout=_TIMEOUT,
            write_timeout=_TIMEOUT,
            ssl_ca=None if tls_ca is None else str(tls_ca),
            ssl_verify_identity=tls_ca is not None,
        )
        with connection:
            yield connection
    except pymysql.MySQLError as error:
        raise JobsightError(f"the database at {address} refused: {_reason(error)}") from None
    except OSError as error:
        raise JobsightError(f"the database at {address} does not answer: {error}") from None


def _rows(
    connection: Any, statement: str, values: tuple[str | int, ...] = ()
) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall())


def _reason(error: pymysql.MySQLError) -> str:
    return str(error.args[-1])[:500] if error.args else type(error).__name__
