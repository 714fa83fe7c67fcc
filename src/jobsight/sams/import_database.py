"""Import of SAMS's databases: the SQLite shards, and the second schema on any of its servers.

The records have the same keys as those of the aggregator: a site that imports its database and
aggregates its archived records again has every run once. The import is idempotent.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import SECOND
from jobsight.sams.aggregator import Aggregator
from jobsight.sams.convert import interval_of
from jobsight.sams.reader import MAX_PROGRAMS, MAX_RECORDS, Entry
from jobsight.sams.record import EARLIEST, LATEST, SamsRecord, SlurmInfo
from jobsight.store.store import Store
from jobsight.util.urls import without_credentials

_MAGIC: Final = b"SQLite format 3\x00"
_MYSQL: Final = ("mysql://", "mariadb://")
#: CPU seconds above this are invalid.
_MAX_SECONDS: Final = 4 * 10**9
UNKNOWN: Final = "unknown"


class _Schema(NamedTuple):
    """One of the two schemas."""

    tables: frozenset[str]
    rows: str
    counting: str
    #: Jobs that SAMS has not reported since ``last_sent``, or could not name.
    unreported: str


_COLUMNS: Final = """
    SELECT j.jobid, j.recordid, u.{user}, p.{project}, j.ncpus, n.{node}, s.path,
        c.start_time, c.end_time, c.{user_time}, c.{system_time}, j.id, c.{node_id}
    FROM {commands} AS c
    JOIN jobs AS j ON j.id = c.{job_id}
    LEFT JOIN users AS u ON u.id = j.{user_id}
    LEFT JOIN projects AS p ON p.id = j.{project_id}
    LEFT JOIN {nodes} AS n ON n.id = c.{node_id}
    LEFT JOIN {softwares} AS s ON s.id = c.{software_id}
    ORDER BY c.{job_id}, c.{node_id}, c.start_time
"""

_UNREPORTED: Final = """
    SELECT max(j.jobid), max(j.recordid), min(c.start_time)
    FROM jobs AS j
    JOIN {commands} AS c ON c.{job_id} = j.id
    LEFT JOIN {softwares} AS s ON s.id = c.{software_id}
    CROSS JOIN (SELECT max(timestamp) AS time FROM last_sent) AS sent
    GROUP BY j.id
    HAVING max(CASE WHEN sent.time IS NULL OR c.{updated} > sent.time THEN 1 ELSE 0 END) = 1
        OR max(CASE WHEN s.last_updated > sent.time AND NOT s."ignore" THEN 1 ELSE 0 END) = 1
        OR max(CASE WHEN s.software IS NOT NULL AND NOT s."ignore" THEN 1 ELSE 0 END) = 0
"""

_SHARDS: Final = _Schema(
    frozenset(("jobs", "users", "projects", "node", "software", "command")),
    _COLUMNS.format(
        user="user",
        project="project",
        node="node",
        user_time="user",
        system_time="sys",
        commands="command",
        nodes="node",
        softwares="software",
        job_id="jobid",
        user_id="user",
        project_id="project",
        node_id="node",
        software_id="software",
    ),
    "SELECT count(*) FROM command",
    _UNREPORTED.format(
        commands="command",
        job_id="jobid",
        softwares="software",
        software_id="software",
        updated="updated",
    ),
)
_SECOND: Final = _Schema(
    frozenset(("jobs", "users", "projects", "nodes", "softwares", "commands")),
    _COLUMNS.format(
        user="name",
        project="name",
        node="name",
        user_time="user_time",
        system_time="system_time",
        commands="commands",
        nodes="nodes",
        softwares="softwares",
        job_id="job_id",
        user_id="user_id",
        project_id="project_id",
        node_id="node_id",
        software_id="software_id",
    ),
    "SELECT count(*) FROM commands",
    _UNREPORTED.format(
        commands="commands",
        job_id="job_id",
        softwares="softwares",
        software_id="software_id",
        updated="last_updated",
    ),
)


class DatabaseRecord(NamedTuple):
    """One job on one node."""

    cluster: str | None
    record: SamsRecord


class SamsDatabase:
    """A database file, or the ``postgresql://`` or ``mysql://`` URL of the second schema.

    ``problems`` is filled while it is read.
    """

    def __init__(self, location: Path | str, zone: tzinfo | None = None) -> None:
        #: In messages, without the password.
        self.name = database_name(location)
        self._zone = zone
        #: Rows that could not be imported, by reason.
        self.problems: dict[str, int] = {}
        self.rows = 0
        self._errors = _errors(location)
        try:
            if isinstance(location, Path):
                self._connection: Any = _open_sqlite(location)
                listing = "SELECT name FROM sqlite_master WHERE type = 'table'"
            elif location.startswith(_MYSQL):
                self._connection = _open_mysql(location)
                listing = (
                    "SELECT table_name FROM information_schema.tables "
                    "WHERE table_schema = database()"
                )
            else:
                self._connection = _open_postgresql(location)
                listing = (
                    "SELECT tablename FROM pg_tables "
                    "WHERE schemaname = ANY (current_schemas(false))"
                )
            tables = {str(name) for (name,) in self._select(listing)}
        except ValueError:
            raise JobsightError(
                f"{self.name}: is not the URL of a database; expected postgresql://user@host/name "
                "or mysql://user@host/name"
            ) from None
        except self._errors as error:
            raise self._unreadable(error) from None
        for schema in (_SHARDS, _SECOND):
            if schema.tables <= tables:
                self._schema = schema
                return
        self._connection.close()
        raise JobsightError(f"{self.name}: is not a SAMS database: its tables are missing")

    def close(self) -> None:
        self._connection.close()

    def count(self) -> int:
        """The number of rows: one for each job, node and program."""
        ((count,),) = self._select(self._schema.counting)
        return int(count)

    def records(self) -> Iterator[DatabaseRecord]:
        """All records, by job."""
        key: tuple[Any, ...] | None = None
        gathered: list[tuple[Any, ...]] = []
        try:
            for row in self._select(self._schema.rows):
                self.rows += 1
                # A collector restarted within a job wrote rows with another start.
                row_key = (row[11], row[12], row[7])
                if row_key != key and gathered:
                    yield from self._record(gathered)
                    gathered = []
                key = row_key
                gathered.append(row)
            if gathered:
                yield from self._record(gathered)
        except self._errors as error:
            raise self._unreadable(error) from None

    def unreported(self) -> Iterator[tuple[int, int]]:
        """Job id and start (seconds) of the jobs that SAMS has not reported."""
        try:
            for job, recordid, first in self._select(self._schema.unreported):
                _, start = self._recordid(recordid)
                start = start if start is not None else self._moment(first)
                if str(job).isascii() and str(job).isdigit() and start is not None:
                    yield int(job), start // SECOND
        except self._errors as error:
            raise self._unreadable(error) from None

    def _select(self, statement: str) -> Iterator[tuple[Any, ...]]:
        with closing(self._cursor()) as rows:
            rows.execute(statement)
            yield from rows

    def _cursor(self) -> Any:
        if type(self._connection).__module__.startswith("psycopg"):
            # On the server: the client's cursor would hold all rows in memory.
            return self._connection.cursor("jobsight_import")
        return self._connection.cursor()

    def _unreadable(self, error: BaseException) -> JobsightError:
        return JobsightError(f"{self.name}: cannot be read: {' '.join(str(error).split())}")

    def _record(self, rows: list[tuple[Any, ...]]) -> Iterator[DatabaseRecord]:
        job, recordid, user, project, cpus, node, _, first, _, _, _, *_ = rows[0]
        if not (str(job).isascii() and str(job).isdigit() and 0 < int(job) < 2**63):
            self._problem(f"the job id {str(job)[:40]!r} is not a number", len(rows))
            return
        cluster, start = self._recordid(recordid)
        began = self._moment(first)
        if start is None and began is None:
            self._problem("a row has no time", len(rows))
            return
        executables: dict[bytes, tuple[int, int]] = {}
        for row in rows:
            path = _bytes(row[6])
            user_time, system_time = self._cpu(row[9]), self._cpu(row[10])
            before = executables.get(path, (0, 0))
            executables[path] = (before[0] + user_time, before[1] + system_time)
        ends = [moment for row in rows if (moment := self._moment(row[8])) is not None]
        record = SamsRecord(
            job_id=int(job),
            # Nodes without a name must not be merged into one.
            node=_text(node) or f"{UNKNOWN}-{rows[0][12]}",
            info=SlurmInfo(
                user=_text(user),
                account=_text(project),
                cpus=int(cpus) if str(cpus).isdigit() and len(str(cpus)) < 10 else None,
                # Without a start from Slurm, the first process is the best estimate.
                start=start if start is not None else began,
            ),
            # Sorted, so that the digest does not depend on the order of rows.
            executables=dict(sorted(executables.items())),
            first=began,
            last=max(ends, default=began),
        )
        yield DatabaseRecord(cluster, record)

    def _recordid(self, text: object) -> tuple[str | None, int | None]:
        """``cluster:job:YYYYMMDDHHMMSS``, in local time."""
        cluster, _, rest = str(text or "").partition(":")
        digits = rest.partition(":")[2]
        start = None
        if len(digits) == 14 and digits.isascii() and digits.isdigit():
            try:
                wall = datetime.strptime(digits, "%Y%m%d%H%M%S")
                start = int(wall.replace(tzinfo=self._zone).timestamp()) * SECOND
            except (ValueError, OverflowError, OSError):
                start = None
        return (cluster if cluster not in ("", "None") else None), start

    def _moment(self, value: object) -> int | None:
        """Seconds since 1970 in the shards, local time in the second schema."""
        try:
            if isinstance(value, str):
                value = datetime.fromisoformat(value)
            if isinstance(value, datetime):
                moment = value
                moment = moment if moment.tzinfo else moment.replace(tzinfo=self._zone)
                value = moment.timestamp()
            seconds = int(value)  # type: ignore[call-overload]
        except (TypeError, ValueError, OverflowError, OSError):
            return None
        return seconds * SECOND if EARLIEST <= seconds < LATEST else None

    def _cpu(self, value: object) -> int:
        if isinstance(value, int | float) and 0 <= value < _MAX_SECONDS:
            return round(value * SECOND)
        if value is not None:
            self._problem(f"a CPU time is {str(value)[:40]}", 1)
        return 0

    def _problem(self, reason: str, rows: int) -> None:
        self.problems[reason] = self.problems.get(reason, 0) + rows


def _open_sqlite(file: Path) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(os.path.abspath(file)))}?mode=ro"
    connection = sqlite3.connect(uri, uri=True)
    # Paths need not be UTF-8.
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return connection


def _open_postgresql(url: str) -> Any:
    # Imported only where it is used.
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The library's message contains the URL with its password.
        raise ValueError from None
    connection = psycopg.connect(url)
    connection.read_only = True
    return connection


def _open_mysql(url: str) -> Any:
    import pymysql
    from pymysql.cursors import SSCursor

    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname or "localhost",
        port=parts.port or 3306,
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password or os.environ.get("MYSQL_PWD", "")),
        database=unquote(parts.path.strip("/")),
        charset="utf8mb4",
        # The rows stay on the server until they are read.
        cursorclass=SSCursor,
        init_command="SET SESSION sql_mode = 'ANSI_QUOTES'",
    )


def _errors(location: Path | str) -> type[Exception]:
    if isinstance(location, Path):
        return sqlite3.Error
    if location.startswith(_MYSQL):
        import pymysql

        error: type[Exception] = pymysql.MySQLError
        return error
    import psycopg

    return psycopg.Error


def database_name(location: Path | str) -> str:
    """The location of a database without its password."""
    if isinstance(location, Path):
        return str(location)
    return without_credentials(location)


def _text(value: object) -> str | None:
    text = "" if value is None else str(value)[:255]
    return text.encode("utf-8", "backslashreplace").decode() or None


def _bytes(path: object) -> bytes:
    """A row whose path SAMS has lost (a fault of its caches) keeps its CPU time as "unknown"."""
    text = UNKNOWN if path is None or path == "" else str(path)
    return text.encode("utf-8", "surrogateescape")[: 64 * 1024]


def find_databases(location: Path | str) -> list[Path | str]:
    """The database file or URL, or all databases in a directory."""
    if str(location).startswith(("postgresql://", "postgres://", *_MYSQL)):
        return [str(location)]
    path = Path(location)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and _is_sqlite(file))
        if not files:
            raise JobsightError(f"{path}: contains no SQLite database")
        return [*files]
    if not path.exists():
        raise JobsightError(f"{path}: does not exist")
    if not _is_sqlite(path):
        raise JobsightError(f"{path}: is not an SQLite database")
    return [path]


def _is_sqlite(file: Path) -> bool:
    try:
        with open(file, "rb") as opened:
            return opened.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise JobsightError(f"{file}: cannot be read: {error.strerror}") from None


class Imported(msgspec.Struct):
    """The result of an import."""

    #: Rows of SAMS, one for each job, node and program.
    rows: int = 0
    jobs: int = 0
    records: int = 0
    #: Nanoseconds.
    cpu_time: int = 0
    problems: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, other: Imported) -> None:
        self.rows += other.rows
        self.jobs += other.jobs
        self.records += other.records
        self.cpu_time += other.cpu_time
        for reason, count in other.problems.items():
            self.problems[reason] = self.problems.get(reason, 0) + count


def import_database(
    location: Path | str,
    store: Store | None,
    *,
    cluster: str | None,
    default_cluster: str,
    zone: tzinfo | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Imported:
    """Store all records of a database; without a store they are only counted."""
    result = Imported()
    with closing(SamsDatabase(location, zone)) as database:
        total = database.count()
        jobs: set[tuple[str, int]] = set()
        named = (
            (cluster or row.cluster or default_cluster, row.record) for row in database.records()
        )
        for name, group in _groups(named):
            if store is not None:
                entries = [_entry(record) for record in group]
                for reason in Aggregator(store, name).store(entries).values():
                    result.problems[reason] = result.problems.get(reason, 0) + 1
            result.records += len(group)
            jobs |= {(name, record.job_id) for record in group}
            result.cpu_time += sum(sum(record.cpu()) for record in group)
            progress(database.rows, total)
        result.rows, result.jobs = database.rows, len(jobs)
        for reason, count in database.problems.items():
            result.problems[reason] = result.problems.get(reason, 0) + count
        progress(total, total)
    return result


def _groups(records: Iterable[tuple[str, SamsRecord]]) -> Iterator[tuple[str, list[SamsRecord]]]:
    """Records of one cluster that are stored together."""
    name = ""
    group: list[SamsRecord] = []
    programs = 0
    for cluster, record in records:
        full = len(group) >= MAX_RECORDS or programs >= MAX_PROGRAMS
        if group and (full or cluster != name):
            yield name, group
            group, programs = [], 0
        name = cluster
        group.append(record)
        programs += len(record.executables)
    if group:
        yield name, group


_encode = msgspec.msgpack.Encoder().encode


def _entry(record: SamsRecord) -> Entry:
    return Entry(
        hashlib.blake2b(_encode(record), digest_size=16).digest(), record, interval_of(record)
    )
