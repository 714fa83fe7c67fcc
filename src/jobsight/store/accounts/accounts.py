"""The accounts of people: name, role, password hash, and whether they are disabled."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from jobsight.errors import JobsightError
from jobsight.store.database import Database
from jobsight.store.sql.load import load_statements

SQL: Final = load_statements("accounts")

Origin: TypeAlias = Literal["local", "oidc", "ldap", "proxy"]

#: Names as Slurm and the systems of user accounts allow them, also with a domain.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")
#: Accounts of the scheduler that one mentor or coordinator may be given.
MAX_ACCOUNTS: Final = 1000
#: Bytes of the name of such an account.
_MAX_ACCOUNT_NAME: Final = 255
#: The class below has a method named list.
_Accounts: TypeAlias = list["UserAccount"]


class AccountError(JobsightError):
    """An account cannot be created or changed as requested."""

    exit_code = 2


class UserAccount(msgspec.Struct, kw_only=True, frozen=True):
    """The account of a person."""

    name: str
    role: str
    #: Accounts of the scheduler that a mentor or coordinator was given.
    accounts: tuple[str, ...] = ()
    password_hash: str | None = None
    origin: Origin = "local"
    created: int = 0
    disabled: int | None = None
    last_sign_in: int | None = None


def check_user_name(name: str) -> None:
    """Refuse a name that no user of a cluster can have."""
    if not _NAME.fullmatch(name):
        raise AccountError(
            f"{name[:100]!r} is not a user name; expected 1 to 64 letters, digits and . _ - @ +"
        )


def check_accounts(accounts: Sequence[str]) -> None:
    """Refuse names that no account of the scheduler can have."""
    if len(accounts) > MAX_ACCOUNTS:
        raise AccountError(f"{len(accounts)} accounts were named; at most {MAX_ACCOUNTS} are kept")
    for account in accounts:
        if not account.isprintable() or not 0 < len(account.encode()) <= _MAX_ACCOUNT_NAME:
            raise AccountError(
                f"{account[:100]!r} is not the name of an account; expected 1 to "
                f"{_MAX_ACCOUNT_NAME} printable characters"
            )


class UserAccounts:
    """The accounts in a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, name: str) -> UserAccount | None:
        with self._database.query() as transaction:
            rows = transaction.mappings(SQL["get_account"], {"name": name})
        return account_of(rows[0]) if rows else None

    def get(self, name: str) -> UserAccount:
        """The account; an error if there is none."""
        account = self.find(name)
        if account is None:
            raise AccountError(
                f"there is no user account {name[:100]!r}; `jobsight user list` shows them"
            )
        return account

    def list(self) -> _Accounts:
        """All accounts by name."""
        with self._database.query() as transaction:
            return [account_of(row) for row in transaction.mappings(SQL["list_accounts"])]

    def have_passwords(self) -> bool:
        """Whether there is an account with a password of this server."""
        with self._database.query() as transaction:
            return transaction.execute(SQL["any_password"]).fetchone() is not None

    def add(
        self,
        name: str,
        role: str,
        *,
        accounts: Iterable[str] = (),
        password_hash: str | None = None,
        origin: Origin = "local",
    ) -> UserAccount:
        """Create an account; an error if it exists."""
        check_user_name(name)
        values = _values(name, role, accounts) | {
            "password_hash": password_hash,
            "origin": origin,
            "now": time.time_ns(),
        }
        with self._database.write() as transaction:
            if not transaction.execute(SQL["insert_account"], values).rowcount:
                raise AccountError(
                    f"the user account {name!r} exists already; change it with "
                    "`jobsight user role` or `jobsight user passwd`"
                )
        return self.get(name)

    def sign_in(
        self, name: str, origin: Origin, role: str | None, accounts: Iterable[str] = ()
    ) -> UserAccount:
        """The account of a user whom another system has authenticated, created if it is missing.

        ``role`` is what that system says, and replaces the stored one; None leaves it.
        """
        check_user_name(name)
        now = time.time_ns()
        values = _values(name, role or "user", accounts)
        with self._database.write() as transaction:
            created = {"password_hash": None, "origin": origin, "now": now}
            transaction.execute(SQL["insert_account"], values | created)
            if role is not None:
                transaction.execute(SQL["set_role"], values)
        return self.get(name)

    def set_role(self, name: str, role: str, accounts: Iterable[str]) -> UserAccount:
        self.get(name)
        with self._database.write() as transaction:
            transaction.execute(SQL["set_role"], _values(name, role, accounts))
        return self.get(name)

    def set_password(self, name: str, password_hash: str, *, end_sessions: bool = True) -> None:
        """Replace the password; the sessions that were opened with the old one end."""
        self.get(name)
        with self._database.write() as transaction:
            values = {"name": name, "password_hash": password_hash, "user": name}
            transaction.execute(SQL["set_password"], values)
            if end_sessions:
                transaction.execute(SQL["delete_sessions_of"], values)

    def disable(self, name: str) -> bool:
        """Disable an account from now on and end its sessions; False if it was disabled."""
        self.get(name)
        with self._database.write() as transaction:
            values = {"name": name, "user": name, "now": time.time_ns()}
            transaction.execute(SQL["delete_sessions_of"], values)
            return transaction.execute(SQL["disable_account"], values).rowcount == 1

    def enable(self, name: str) -> bool:
        """Enable an account; False if it was enabled."""
        self.get(name)
        with self._database.write() as transaction:
            return transaction.execute(SQL["enable_account"], {"name": name}).rowcount == 1

    def record_sign_in(self, name: str) -> None:
        with self._database.write() as transaction:
            transaction.execute(SQL["set_last_sign_in"], {"name": name, "now": time.time_ns()})


def account_of(row: Mapping[str, Any]) -> UserAccount:
    """An account from its row."""
    values = {name: row[name] for name in UserAccount.__struct_fields__}
    values["accounts"] = tuple(msgspec.msgpack.decode(row["accounts"], type=list[str]))
    return UserAccount(**values)


def _values(name: str, role: str, accounts: Iterable[str]) -> dict[str, Any]:
    named = sorted(set(accounts))
    check_accounts(named)
    return {"name": name, "role": role, "accounts": msgspec.msgpack.encode(named)}
