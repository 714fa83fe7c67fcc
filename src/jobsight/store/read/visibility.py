"""Which runs a query may return: the restriction that the access policy puts on a viewer.

:class:`Visibility` is one more condition of a query of runs, and the same decision for a record
that is in memory. It is data; :mod:`jobsight.access` decides which one a viewer has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec


class VisibleUser(msgspec.Struct, frozen=True):
    """All runs of a user, on one cluster or on all."""

    name: str
    cluster: str | None = None


class VisibleAccount(msgspec.Struct, frozen=True):
    """The runs of an account that started within an interval, on one cluster or on all."""

    name: str
    cluster: str | None = None
    since: int | None = None
    until: int | None = None


class Visibility(msgspec.Struct, frozen=True):
    """The runs that a viewer may see: those of any of its users and accounts, or everything."""

    everything: bool = False
    users: tuple[VisibleUser, ...] = ()
    accounts: tuple[VisibleAccount, ...] = ()

    def includes(
        self, *, cluster: str | None, user: str | None, account: str | None, start: int | None
    ) -> bool:
        """Whether a run with these properties may be seen. A job that waits has no start; the
        interval of an account must then have no end."""
        if self.everything:
            return True
        if any(own.name == user and own.cluster in (None, cluster) for own in self.users):
            return True
        return any(
            visible.name == account
            and visible.cluster in (None, cluster)
            and _is_within(visible, start)
            for visible in self.accounts
        )

    def condition(self) -> tuple[str, dict[str, Any]]:
        """The same as a condition on ``runs``, with its parameters; ``true`` for everything."""
        if self.everything:
            return "true", {}
        alternatives, parameters = self.alternatives()
        return " OR ".join(alternatives).join("()") if alternatives else "false", parameters

    def alternatives(self) -> tuple[list[str], dict[str, Any]]:
        """Conditions of which one must hold, with their parameters: one of each owner."""
        parameters: dict[str, Any] = {}
        alternatives = []
        terms: dict[str, str | int | None]
        for number, own in enumerate(self.users):
            terms = {'"user" =': own.name, "cluster =": own.cluster}
            alternatives.append(_all_of(terms, f"seen_user{number}", parameters))
        for number, account in enumerate(self.accounts):
            terms = {
                "account =": account.name,
                "cluster =": account.cluster,
                "start >=": account.since,
                "start <": account.until,
            }
            alternatives.append(_all_of(terms, f"seen_account{number}", parameters))
        return alternatives, parameters


#: What the server's token, staff and the command line on the server see.
EVERYTHING: Final = Visibility(everything=True)
NOTHING: Final = Visibility()


def _is_within(account: VisibleAccount, start: int | None) -> bool:
    if start is None:
        return account.until is None
    return (account.since is None or start >= account.since) and (
        account.until is None or start < account.until
    )


def _all_of(terms: Mapping[str, str | int | None], prefix: str, parameters: dict[str, Any]) -> str:
    """The conjunction of the terms that have a value; the values are added to the parameters."""
    conditions = []
    for number, (term, value) in enumerate(terms.items()):
        if value is not None:
            parameters[f"{prefix}_{number}"] = value
            conditions.append(f"{term} :{prefix}_{number}")
    return " AND ".join(conditions).join("()")
