"""Accounts of people: the viewer that an account is, and roles by the groups of other systems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from jobsight.access.viewer import Role, Viewer
from jobsight.store.accounts.accounts import AccountError, UserAccount
from jobsight.store.accounts.coordinators import coordinated_by
from jobsight.store.accounts.preferences import read_preferences
from jobsight.store.database import Database
from jobsight.store.read.visibility import EVERYTHING, Visibility, VisibleAccount, VisibleUser

#: If several groups of a user have a role, the first of these counts.
_PRECEDENCE: Final = (Role.STAFF, Role.AUDITOR, Role.MENTOR, Role.COORDINATOR, Role.USER)
_SEES_EVERYTHING: Final = frozenset({Role.STAFF, Role.AUDITOR})


def role_of(account: UserAccount) -> Role:
    """The role of an account; a role of a newer release sees the own runs only."""
    try:
        return Role(account.role)
    except ValueError:
        return Role.USER


def check_role(role: str, accounts: Iterable[str]) -> None:
    """Refuse accounts of the scheduler for a role that cannot have any."""
    named = list(accounts)
    if named and Role(role) not in (Role.MENTOR, Role.COORDINATOR):
        raise AccountError(f"--account: the role {role} has no accounts; mentor and coordinator do")
    if Role(role) is Role.MENTOR and not named:
        raise AccountError("--account: is required for a mentor; it names an account they support")


def viewer_of_account(
    database: Database,
    account: UserAccount,
    *,
    slurm_coordinators: bool = True,
    may_write: bool = False,
    csrf: str = "",
) -> Viewer:
    """The viewer that an account is now."""
    role = role_of(account)
    visibility = EVERYTHING
    if role not in _SEES_EVERYTHING:
        seen = [VisibleAccount(name) for name in account.accounts]
        if slurm_coordinators:
            seen += [
                VisibleAccount(one.account, one.cluster, one.since or None, one.until)
                for one in coordinated_by(database, account.name)
            ]
        visibility = Visibility(users=(VisibleUser(account.name),), accounts=tuple(seen))
        if seen and role is Role.USER:
            role = Role.COORDINATOR
    return Viewer(
        name=account.name,
        role=role,
        visibility=visibility,
        pseudonyms=role is Role.AUDITOR,
        may_write=may_write and role is not Role.AUDITOR,
        csrf=csrf,
        preferences=read_preferences(database, account.name),
    )


def role_by_groups(
    groups: Iterable[str], roles: Mapping[str, str], *, only_groups: bool
) -> tuple[bool, str | None]:
    """Whether a user with these groups may sign in, and with which role.

    Without any configured role, None: the stored role of the account stays.
    """
    if not roles:
        return True, None
    found = {Role(roles[group]) for group in groups if group in roles}
    if not found:
        return not only_groups, Role.USER.value
    return True, next(role for role in _PRECEDENCE if role in found).value
