"""The policy of a cluster: reservations, qualities of service, associations with fair share.

It is queried rarely, and a source that cannot report it is used nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from jobsight.scheduler import fields
from jobsight.scheduler.fields import (
    RecordReader,
    amount,
    parse_duration,
    parse_tres,
    read_tres,
    real,
    text_or_none,
    words,
)
from jobsight.scheduler.hostlist import expand_hosts
from jobsight.scheduler.records import AdaptError, NodeInfo, Problem


class ReservationInfo(msgspec.Struct, kw_only=True):
    """Nodes that are reserved for some users or accounts for an interval."""

    cluster: str
    name: str
    start: int | None = None
    end: int | None = None
    nodes: tuple[str, ...] = ()
    partition: str | None = None
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    tres: dict[str, int] = msgspec.field(default_factory=dict)


class QosInfo(msgspec.Struct, kw_only=True):
    """A quality of service."""

    cluster: str
    name: str
    priority: int | None = None
    usage_factor: float | None = None
    flags: tuple[str, ...] = ()
    #: The maximum time limit of a job.
    time_limit: int | None = None
    #: What one user may have allocated at a time.
    tres_per_user: dict[str, int] = msgspec.field(default_factory=dict)


class AssociationInfo(msgspec.Struct, kw_only=True):
    """A user in an account, and the share of the cluster that is assigned to both."""

    cluster: str
    account: str
    user: str | None = None
    partition: str | None = None
    parent: str | None = None
    shares: int | None = None
    #: The part of all shares, and of all usage, 0 to 1.
    share: float | None = None
    usage_share: float | None = None
    #: From 1 without usage down to 0.
    fair_share: float | None = None
    qos: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        parts = (self.account, self.user or "", self.partition or "")
        return "/".join(parts).rstrip("/")


class CoordinatorInfo(msgspec.Struct, kw_only=True, frozen=True):
    """A user who coordinates an account, by Slurm's own record of that account."""

    account: str
    user: str


class Policy(msgspec.Struct, kw_only=True):
    """All parts of the policy, and what was not understood."""

    reservations: list[ReservationInfo] = msgspec.field(default_factory=list)
    qos: list[QosInfo] = msgspec.field(default_factory=list)
    associations: list[AssociationInfo] = msgspec.field(default_factory=list)
    #: None if the source does not report them: nobody's rights end by that.
    coordinators: list[CoordinatorInfo] | None = None
    problems: list[Problem] = msgspec.field(default_factory=list)


Record = TypeVar("Record")
Documents = Iterable[Mapping[str, Any]]


def read_reservations(documents: Documents, cluster: str, problems: list[Problem]) -> list[Any]:
    """Reservations of slurmrestd or of ``scontrol show reservation``."""
    return _read(documents, "name", "ReservationName", problems, lambda r: _reservation(r, cluster))


def read_qos(documents: Documents, cluster: str, problems: list[Problem]) -> list[Any]:
    """Qualities of service of slurmrestd or of ``sacctmgr show qos``."""
    return _read(documents, "name", "Name", problems, lambda r: _qos(r, cluster))


def read_associations(documents: Documents, cluster: str, problems: list[Problem]) -> list[Any]:
    """Associations of slurmrestd or of ``sacctmgr show associations``."""
    return _read(documents, "account", "Account", problems, lambda r: _association(r, cluster))


def read_coordinators(
    documents: Documents, associations: Iterable[AssociationInfo], problems: list[Problem]
) -> list[CoordinatorInfo]:
    """Coordinators of accounts of slurmrestd or of ``sacctmgr show account withcoord``.

    In Slurm, who coordinates an account coordinates the accounts below it; older versions list
    only those who were named for the account itself.
    """
    named: dict[str, set[str]] = {}
    for document in documents:
        label = document.get("name") or document.get("Account")
        reader = RecordReader(document, f"Account {label}")
        account = reader.read(text_or_none, "name", "Account") or ""
        users = reader.read(_coordinator_names, "coordinators", "Coordinators") or ()
        named.setdefault(account, set()).update(users)
        problems += reader.problems
    parents = {a.account: a.parent for a in associations if a.user is None and a.parent}
    found = set()
    for account in named:
        above: str | None = account
        # A damaged tree may have a cycle.
        passed: set[str] = set()
        while above and above not in passed:
            passed.add(above)
            found |= {(account, user) for user in named.get(above, ())}
            above = parents.get(above)
    return [CoordinatorInfo(account=account, user=user) for account, user in sorted(found)]


def _coordinator_names(value: Any) -> tuple[str, ...]:
    """Names separated by commas, or the documents of slurmrestd."""
    if isinstance(value, list):
        return tuple(
            str(each["name"] if isinstance(each, Mapping) else each) for each in value if each
        )
    return tuple(name.strip() for name in str(value).split(",") if name.strip())


def add_shares(associations: Iterable[AssociationInfo], rows: Documents) -> None:
    """Add the fair share of each association, from ``sshare``."""
    known = {(a.account, a.user or ""): a for a in associations if a.partition is None}
    for row in rows:
        found = known.get((str(row["Account"]).strip(), str(row["User"]).strip()))
        if found is not None:
            found.share = real(row.get("NormShares"))
            found.usage_share = real(row.get("EffectvUsage"))
            found.fair_share = real(row.get("FairShare"))


def mark_reserved(
    nodes: Iterable[NodeInfo], reservations: Iterable[ReservationInfo], now: int
) -> None:
    """Set the active reservation of each node for which the reply about nodes has none."""
    held = {
        name: reservation.name
        for reservation in reservations
        if (reservation.start or 0) <= now < (reservation.end or now + 1)
        for name in reservation.nodes
    }
    for node in nodes:
        if node.reservation is None:
            node.reservation = held.get(node.name)


def parse_scontrol(text: str) -> list[dict[str, str]]:
    """The lines of ``scontrol show reservation --oneliner``; users cannot write into them."""
    found = []
    for line in text.splitlines():
        pairs = (word.partition("=") for word in line.split(" ") if "=" in word)
        row = {name: value for name, _, value in pairs}
        if "ReservationName" in row:
            found.append(row)
        elif line.strip() and "No reservations" not in line:
            raise AdaptError(f"scontrol gave {line[:60]!r}, which is not a reservation")
    return found


def parse_columns(text: str, columns: Sequence[str], what: str) -> list[dict[str, str]]:
    """The rows of sacctmgr or sshare with ``--parsable2``; users cannot write into them."""
    rows = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != len(columns):
            raise AdaptError(f"{what} gave {len(fields)} fields, expected {len(columns)}")
        rows.append(dict(zip(columns, fields, strict=True)))
    return rows


def _reservation(reader: RecordReader, cluster: str) -> ReservationInfo:
    read = reader.read
    return ReservationInfo(
        cluster=cluster,
        name=read(text_or_none, "name", "ReservationName") or "",
        start=read(fields.time, "start_time", "StartTime"),
        end=read(fields.time, "end_time", "EndTime"),
        nodes=read(expand_hosts, "node_list", "Nodes") or (),
        partition=read(text_or_none, "partition", "PartitionName"),
        users=tuple(dict.fromkeys(read(words, "users", "Users") or ())),
        accounts=read(words, "accounts", "Accounts") or (),
        flags=read(words, "flags", "Flags") or (),
        tres=read(read_tres, "tres", "TRES") or {},
    )


def _qos(reader: RecordReader, cluster: str) -> QosInfo:
    read = reader.read
    return QosInfo(
        cluster=cluster,
        name=read(text_or_none, "name", "Name") or "",
        priority=read(amount, "priority", "Priority"),
        usage_factor=read(real, "usage_factor", "UsageFactor"),
        flags=read(words, "flags", "Flags") or (),
        time_limit=read(fields.minutes, "limits.max.wall_clock.per.job")
        or read(_duration, "MaxWall"),
        tres_per_user=read(read_tres, "limits.max.tres.per.user")
        or read(parse_tres, "MaxTRESPU")
        or {},
    )


def _association(reader: RecordReader, cluster: str) -> AssociationInfo:
    read = reader.read
    return AssociationInfo(
        cluster=cluster,
        account=read(text_or_none, "account", "Account") or "",
        user=read(text_or_none, "user", "User"),
        partition=read(text_or_none, "partition", "Partition"),
        parent=read(text_or_none, "parent_account", "ParentName"),
        shares=read(_shares, "shares_raw", "Share"),
        qos=read(words, "qos", "QOS") or (),
    )


def _read(
    documents: Documents,
    json_name: str,
    text_name: str,
    problems: list[Problem],
    read: Callable[[RecordReader], Record],
) -> list[Record]:
    found = []
    for document in documents:
        label = document.get(json_name) or document.get(text_name)
        reader = RecordReader(document, f"{text_name} {label}")
        found.append(read(reader))
        problems += reader.problems
    return found


def _duration(text: str) -> int | None:
    return parse_duration(text) if text else None


def _shares(value: Any) -> int | None:
    """A number; "parent" means that there is no share of its own."""
    return None if value == "parent" else amount(value)
