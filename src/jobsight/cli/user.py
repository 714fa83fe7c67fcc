"""``jobsight user``: the accounts of people, with their roles and passwords."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from jobsight.cli.arguments import (
    CommandParser,
    UsageError,
    add_store_options,
    existing_store,
    one_of,
)
from jobsight.cli.output import Table, print_table, write_json
from jobsight.config.load import load_settings

if TYPE_CHECKING:
    from jobsight.store.accounts.accounts import UserAccount
    from jobsight.store.store import Store

_ROLES = ("user", "coordinator", "mentor", "staff", "auditor")


class Action(StrEnum):
    ADD = "add"
    LIST = "list"
    DISABLE = "disable"
    ENABLE = "enable"
    PASSWD = "passwd"
    ROLE = "role"
    EXPORT = "export"
    ERASE = "erase"


def user(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    action: Action,
    name: str | None,
    role: str | None,
    account: list[str] | None,
    password_file: Path | None,
    yes: bool,
    json: bool,
    store: str | None,
    config: str | None,
) -> None:
    """Create and change the accounts of people, who then see what their role permits.

    `add` and `role` take the role and the accounts of a mentor, or of a coordinator beyond those of
    Slurm. `disable` takes effect at once. `export` prints everything that the store has about a
    user; `erase` replaces the user's name by a pseudonym and deletes the rest, so that sums stay.
    """
    _check_options(action, name, role=role, account=account, password_file=password_file)
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        if action == Action.LIST:
            _list(opened, as_json=json)
        else:
            assert name is not None
            _change(opened, action, name, role, account or [], password_file, yes=yes)


def _change(
    opened: Store,
    action: Action,
    name: str,
    role: str | None,
    accounts: list[str],
    password_file: Path | None,
    *,
    yes: bool,
) -> None:
    from jobsight.access.accounts import check_role
    from jobsight.access.passwords import hash_password, read_password
    from jobsight.store.accounts.accounts import UserAccounts

    known = UserAccounts(opened.database)
    if action in (Action.ADD, Action.ROLE):
        assert role is not None
        check_role(role, accounts)
    password_hash = None if password_file is None else hash_password(read_password(password_file))
    match action:
        case Action.ADD:
            assert role is not None
            known.add(name, role, accounts=accounts, password_hash=password_hash)
            print(f"created the account {name} with the role {role}", file=sys.stderr)
        case Action.ROLE:
            assert role is not None
            known.set_role(name, role, accounts)
            print(f"{name} has the role {role}", file=sys.stderr)
        case Action.PASSWD:
            assert password_hash is not None
            known.set_password(name, password_hash)
            print(f"changed the password of {name}; its sessions have ended", file=sys.stderr)
        case Action.DISABLE:
            changed = known.disable(name)
            print(f"{name} is {'' if changed else 'already '}disabled", file=sys.stderr)
        case Action.ENABLE:
            changed = known.enable(name)
            print(f"{name} is {'' if changed else 'already '}enabled", file=sys.stderr)
        case Action.EXPORT:
            from jobsight.store.accounts.privacy import export_user

            for record in export_user(opened.database, name):
                write_line(record)
        case Action.ERASE:
            _erase(opened, name, yes=yes)


def write_line(record: dict[str, object]) -> None:
    """One record as a line of JSON."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(record).decode() + "\n")


def _erase(opened: Store, name: str, *, yes: bool) -> None:
    from jobsight.store.accounts.privacy import erase_user

    if not yes:
        raise UsageError(
            f"erasing {name} cannot be undone; make a backup, then repeat the command with --yes"
        )
    erased = erase_user(opened.database, name)
    print(
        f"{name} is now {erased.pseudonym}: {erased.runs} runs keep their figures, without name, "
        "command and script; copies in backups, the archive and sinks are not changed",
        file=sys.stderr,
    )


def _list(opened: Store, *, as_json: bool) -> None:
    from jobsight.store.accounts.accounts import UserAccounts
    from jobsight.store.tokens import day_and_time

    accounts = UserAccounts(opened.database).list()
    if as_json:
        write_json([_shown(account) for account in accounts])
        return
    if not accounts:
        print("there are no user accounts", file=sys.stderr)
        return
    table = Table(
        *("USER", "ROLE", "ACCOUNTS", "SIGNS IN BY", "STATE", "LAST SIGN-IN"),
        cut=("ACCOUNTS",),
        optional=("LAST SIGN-IN", "SIGNS IN BY"),
    )
    for account in accounts:
        state = "enabled" if account.disabled is None else "disabled"
        last = day_and_time(account.last_sign_in) if account.last_sign_in else "never"
        table.add(
            account.name, account.role, ",".join(account.accounts), account.origin, state, last
        )
    print_table(table)


def _shown(account: UserAccount) -> UserAccount:
    import msgspec

    return msgspec.structs.replace(account, password_hash=None)


def _check_options(action: Action, name: str | None, **given: object) -> None:
    if (action == Action.LIST) == (name is not None):
        usage = "list" if action == Action.LIST else f"{action} NAME"
        raise UsageError(f"expected: jobsight user {usage}")
    takes = {
        "role": (Action.ADD, Action.ROLE),
        "account": (Action.ADD, Action.ROLE),
        "password_file": (Action.ADD, Action.PASSWD),
    }
    needs = {"role": (Action.ADD, Action.ROLE), "password_file": (Action.PASSWD,)}
    for option, value in given.items():
        shown = "--" + option.replace("_", "-")
        if value is not None and action not in takes[option]:
            raise UsageError(f"{shown}: is for {' and '.join(takes[option])}, not for {action}")
        if value is None and action in needs.get(option, ()):
            raise UsageError(f"{shown}: is required for {action}")


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("user", user.__doc__)
    parser.add_argument("action", type=one_of(Action), metavar="ACTION", help=", ".join(Action))
    parser.add_argument("name", nargs="?", metavar="NAME", help="User name on the clusters")
    parser.add_argument("--role", type=one_of(_ROLES), metavar="ROLE", help=", ".join(_ROLES))
    parser.add_argument(
        "--account",
        action="append",
        metavar="ACCOUNT",
        help="Account of a mentor or coordinator; may be repeated",
    )
    parser.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="File with the password in its first line, readable by its owner only",
    )
    parser.add_argument("--yes", action="store_true", help="Erase without another question")
    parser.add_argument("--json", action="store_true", help="Print the list as JSON")
    add_store_options(parser)
    return parser.run(user, arguments)
