"""How the use of one user compares with that of all: anonymous, and only among enough users."""

from __future__ import annotations

from statistics import quantiles
from typing import Final

import msgspec

from jobsight.store.read.viewed import not_shown
from jobsight.store.rollups.usage import Question, UsageRow, usage
from jobsight.store.store import Store

#: Fewer users are not compared: each of them could be recognised.
FEWEST_USERS: Final = 5
#: A user with less is not among those who are compared.
_LEAST_HOURS: Final = 1.0


class Standing(msgspec.Struct, kw_only=True):
    """A share of one user among the shares of all users, without anybody's name."""

    users: int
    own: float
    quartile: float
    median: float
    upper_quartile: float
    #: The share of the other users whose own is lower.
    above: float


class Standings(msgspec.Struct, kw_only=True):
    """The standing by what was used of the held core hours, and of the measured GPU hours."""

    cpu: Standing | None
    gpu: Standing | None


def compare_user(store: Store, user: str, since: int, until: int) -> Standings:
    """Compare the shares of a user in an interval of days with those of all users."""
    with store.database.read() as connection, not_shown():
        rows = usage(connection, Question(by=("user",), since=since, until=until))
    return Standings(
        cpu=_standing(user, {row.user or "": share for row in rows if (share := _cpu(row))}),
        gpu=_standing(user, {row.user or "": share for row in rows if (share := _gpu(row))}),
    )


def _cpu(row: UsageRow) -> float | None:
    held = row.core_hours or 0.0
    # Without any CPU time, nothing was measured.
    return row.cpu_hours / held if held >= _LEAST_HOURS and row.cpu_hours else None


def _gpu(row: UsageRow) -> float | None:
    measured = row.gpu_measured_hours or 0.0
    return (row.gpu_used_hours or 0.0) / measured if measured >= _LEAST_HOURS else None


def _standing(user: str, shares: dict[str, float]) -> Standing | None:
    own = shares.get(user)
    if own is None or len(shares) < FEWEST_USERS:
        return None
    low, middle, high = quantiles(shares.values(), n=4, method="inclusive")
    others = [share for name, share in shares.items() if name != user]
    return Standing(
        users=len(shares),
        own=own,
        quartile=low,
        median=middle,
        upper_quartile=high,
        above=sum(share < own for share in others) / len(others),
    )
