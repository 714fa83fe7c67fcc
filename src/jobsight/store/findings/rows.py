"""The rows of the tables of findings, and the names of their columns."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from jobsight.model import SECOND
from jobsight.store.read import pseudonyms, viewed
from jobsight.store.schema.statements import quoted
from jobsight.store.sql.load import load_statements

SQL: Final = load_statements("findings")

#: Bytes of a name: all names of a key together must fit into a row of an index.
MAX_NAME: Final = 255
_DAY: Final = 86400 * SECOND

State: TypeAlias = Literal["open", "gone", "withheld", "acknowledged", "not helpful"]
#: The states of a finding whose rule holds: these are in the daily rollups.
HOLDING: Final = frozenset({"open", "acknowledged", "not helpful"})


class Owner(NamedTuple):
    """Whose run it was, and the day of its start; unknown names are empty."""

    cluster: str
    user: str
    account: str
    partition: str
    day: int


def owner_of(
    cluster: str, user: str | None, account: str | None, partition: str | None, start: int
) -> Owner:
    """The key of the sums of a run."""
    names = [(name or "").encode()[:MAX_NAME] for name in (cluster, user, account, partition)]
    cut = [name.decode(errors="ignore") for name in names]
    return Owner(cut[0], cut[1], cut[2], cut[3], start // _DAY)


class StoredCost(NamedTuple):
    """Microseconds of cores and GPUs, MiB seconds and millijoules; None is not known."""

    core_time: int | None = None
    gpu_time: int | None = None
    memory_time: int | None = None
    energy: int | None = None


#: Units of StoredCost in an hour of a core or GPU, in 10^9 bytes for an hour, and in a kWh.
HOUR: Final = 3_600_000_000
GB_HOUR: Final = 1e9 / 2**20 * 3600
KWH: Final = 3_600_000_000
#: The outer names of the costs, and their units.
HOURS: Final = {
    "core_time": ("core_hours", HOUR),
    "gpu_time": ("gpu_hours", HOUR),
    "memory_time": ("memory_gb_hours", GB_HOUR),
    "energy": ("energy_kwh", KWH),
}
#: By the number in the column.
SEVERITIES: Final = ("info", "warning", "critical")


class FindingRow(NamedTuple):
    """A row of ``findings``."""

    run_id: int
    kind: str
    #: 0 info, 1 warning, 2 critical.
    severity: int
    audience: str
    state: State
    first: int
    last: int
    core_time: int | None
    gpu_time: int | None
    memory_time: int | None
    energy: int | None
    weight: int
    cluster: str
    user: str
    account: str
    partition: str
    day: int
    work_id: int | None
    data: bytes
    reply_user: str | None = None
    reply_time: int | None = None

    @property
    def owner(self) -> Owner:
        return Owner(self.cluster, self.user, self.account, self.partition, self.day)

    @property
    def cost(self) -> StoredCost:
        return StoredCost(self.core_time, self.gpu_time, self.memory_time, self.energy)

    @property
    def holds(self) -> bool:
        return self.state in HOLDING

    def hours(self) -> dict[str, float | None]:
        """The costs by their outer names."""
        costs = self.cost._asdict()
        return {
            name: None if costs[inner] is None else costs[inner] / unit
            for inner, (name, unit) in HOURS.items()
        }

    def document(self) -> dict[str, object]:
        """The finding for other databases: plain values in outer units."""
        finding = msgspec.msgpack.decode(self.data)
        return {
            "kind": self.kind,
            "severity": SEVERITIES[self.severity],
            "audience": self.audience,
            "state": self.state,
            **{name: finding.get(name, "") for name in ("title", "text", "change")},
            "cost": self.hours(),
        }


def row_of(values: tuple[object, ...]) -> FindingRow:
    """A row as a query of :data:`COLUMNS` returns it."""
    row = FindingRow(*values)  # type: ignore[arg-type]
    viewed.note(row.user)
    data = bytes(row.data)
    if not pseudonyms.is_active():
        return row._replace(data=data)
    document = pseudonyms.finding(msgspec.msgpack.decode(data))
    return row._replace(
        data=msgspec.msgpack.encode(document),
        user=pseudonyms.pseudonym("user", row.user) or "",
        account=pseudonyms.pseudonym("account", row.account) or "",
        reply_user=pseudonyms.pseudonym("user", row.reply_user),
    )


#: The columns of a :class:`FindingRow`, in its order.
COLUMNS: Final = ", ".join(quoted(name) for name in FindingRow._fields)
FINDINGS_OF_RUNS: Final = SQL["findings_of_runs"].replace(":columns", COLUMNS)
_NAMES: Final = FindingRow._fields
UPSERT: Final = (
    f"INSERT INTO findings ({COLUMNS}) VALUES ({', '.join(f':{name}' for name in _NAMES)}) "
    "ON CONFLICT (run_id, kind) DO UPDATE SET "
    + ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in _NAMES[2:])
)
