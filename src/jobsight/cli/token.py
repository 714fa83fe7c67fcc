"""``jobsight token``: what the agents of a cluster and programs of users show to the server."""

from __future__ import annotations

import os
import pwd
import stat
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jobsight.cli.arguments import (
    CommandParser,
    add_store_options,
    bounded_float,
    bounded_int,
    existing_store,
    one_of,
)
from jobsight.cli.output import Table, print_table, write_json
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError, JobsightError
from jobsight.model import SECOND

if TYPE_CHECKING:
    from jobsight.store.store import Store
    from jobsight.store.tokens import ClusterToken

_HOUR = 3600 * SECOND
_MAX_DAYS = 36500
#: The user in deploy/systemd/jobsight-server.service.
_SERVER_USER = "jobsight"


class Action(StrEnum):
    ADD = "add"
    LIST = "list"
    REVOKE = "revoke"
    ROTATE = "rotate"


def token(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    action: Action,
    id: int | None,
    cluster: str | None,
    user: str | None,
    scope: str | None,
    label: str | None,
    expires: float | None,
    grace: float | None,
    file: Path | None,
    json: bool,
    store: str | None,
    config: str | None,
) -> None:
    """Create, list, rotate and revoke the tokens with which agents send batches.

    With --user, the token of a user account for programs: it shows what that user may see, permits
    changes only with --scope write, and always expires.

    A token is valid for one cluster and only for sending batches. It is printed once; the store
    holds its digest. `rotate` creates a new token; the old one stays valid for the grace time, so
    that no agent is refused. A running server accepts a new token at once and rejects a revoked
    one within seconds.
    """
    _check_options(action, id, cluster=cluster, label=label, grace=grace)
    if user is None and scope is not None:
        raise ConfigError("--scope: is for tokens of users; add --user NAME")
    settings = load_settings(config)
    location = store or settings.store.location
    if action != Action.ADD:
        existing_store(location)
    from jobsight.store.store import Store
    from jobsight.store.tokens import Tokens

    new = "://" not in location and not Path(location).exists()
    created_directory = new and not Path(location).absolute().parent.exists()
    with Store.open(location) as opened:
        if user is not None:
            _of_user(opened, action, id, user, scope or "read", expires, label or "", file, json)
            return
        tokens = Tokens(opened.database)
        until = None if expires is None else time.time_ns() + round(expires * 24 * _HOUR)
        if action == Action.LIST:
            _show(tokens.list(cluster), as_json=json)
        elif action == Action.ADD:
            if not cluster:
                from jobsight.scheduler.cluster_name import cluster_of_agents

                cluster = cluster_of_agents(settings, opened.database)
            number, secret = tokens.add(cluster, label or "", until)
            hand_out(secret, file)
            print(f"token {number} of cluster {cluster}", file=sys.stderr)
        elif action == Action.REVOKE:
            print(f"{tokens.revoke(id or 0).refusal(time.time_ns())}", file=sys.stderr)
        else:
            hours = 24.0 if grace is None else grace
            old, number, secret = tokens.rotate(id or 0, round(hours * _HOUR), until)
            hand_out(secret, file)
            print(
                f"token {number} replaces token {old.name}, which stays valid for {hours:g} h",
                file=sys.stderr,
            )
    if new and paths.is_root():
        _hand_over(Path(location).absolute(), created_directory)


def _of_user(  # noqa: PLR0913 -- the options of the command
    opened: Store,
    action: Action,
    id: int | None,
    user: str,
    scope: str,
    expires: float | None,
    label: str,
    file: Path | None,
    as_json: bool,
) -> None:
    """The same actions for tokens of a user."""
    from jobsight.store.accounts.tokens import UserTokens
    from jobsight.store.tokens import day_and_time

    tokens = UserTokens(opened.database)
    if action == Action.ADD:
        if expires is None:
            raise ConfigError("--expires: is required for the token of a user, such as 90d")
        permitted: Literal["read", "write"] = "write" if scope == "write" else "read"
        row, secret = tokens.add(user, permitted, round(expires * 24 * _HOUR), label)
        hand_out(secret, file)
        until = day_and_time(row.expires)
        print(f"token {row.name} permits {scope}, until {until}", file=sys.stderr)
    elif action == Action.LIST and as_json:
        write_json(tokens.list(user))
    elif action == Action.LIST:
        table = Table("ID", "USER", "LABEL", "SCOPE", "STATE", "EXPIRES", "USED", cut=("LABEL",))
        for token in tokens.list(user):
            valid = token.refusal(time.time_ns()) is None
            state = "valid" if valid else "revoked" if token.revoked else "expired"
            used = day_and_time(token.used) if token.used else ""
            expiry = day_and_time(token.expires)
            table.add(str(token.id), user, token.label, token.scope, state, expiry, used)
        print_table(table)
    elif action == Action.REVOKE:
        print(tokens.revoke(id or 0, user).refusal(time.time_ns()), file=sys.stderr)
    else:
        raise ConfigError("expected: jobsight token add, list or revoke with --user")


def _hand_over(store: Path, created_directory: bool) -> None:
    """Give a store that root has just created to the user of the server, which is not root.

    That user owns the directory of the store. A directory that was created with the store goes to
    the user that the unit of the server names.
    """
    directory = store.parent
    status = directory.stat()
    user, group = status.st_uid, status.st_gid
    if user == 0:
        try:
            entry = pwd.getpwnam(_SERVER_USER) if created_directory else None
        except KeyError:
            entry = None
        if entry is None:
            print(
                f"{store} belongs to root; if the server runs as another user, run "
                f"`chown -R USER: {directory}` before its first start",
                file=sys.stderr,
            )
            return
        user, group = entry.pw_uid, entry.pw_gid
        os.chown(directory, user, group)
    for suffix in ("", "-wal", "-shm"):
        _give(f"{store}{suffix}", user, group)


def _give(file: str, user: int, group: int) -> None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        # Another user owns the directory and may have put a link to a file of root there.
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            os.fchown(descriptor, user, group)
    finally:
        os.close(descriptor)


def _check_options(action: Action, id: int | None, **given: object) -> None:
    needs_id = action in (Action.REVOKE, Action.ROTATE)
    if needs_id == (id is None):
        usage = f"{action} ID, as shown by list" if needs_id else f"{action} without an ID"
        raise ConfigError(f"expected: jobsight token {usage}")
    takes = {
        "cluster": (Action.ADD, Action.LIST),
        "label": (Action.ADD,),
        "grace": (Action.ROTATE,),
    }
    for name, value in given.items():
        if value is not None and action not in takes[name]:
            raise ConfigError(f"--{name}: is for {' and '.join(takes[name])}, not for {action}")


def hand_out(secret: str, file: Path | None) -> None:
    """Write the token to a file, atomically and with its mode, or to standard output."""
    if file is None:
        print(secret)
        return
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(f"{secret}\n")
        fresh.replace(file)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        # It is in the store by now, and this is the only time that it can be had.
        print(secret)
        raise JobsightError(f"{file} cannot be written: {error.strerror}; see above") from None


def _show(tokens: list[ClusterToken], *, as_json: bool) -> None:
    if as_json:
        write_json(tokens)
        return
    from jobsight.store.tokens import day_and_time

    if not tokens:
        print("there are no cluster tokens", file=sys.stderr)
        return
    now = time.time_ns()
    table = Table(
        *("ID", "CLUSTER", "LABEL", "STATE", "CREATED", "EXPIRES", "USED"),
        cut=("CLUSTER", "LABEL"),
        optional=("CREATED", "USED"),
    )
    for token in tokens:
        state = "valid" if token.refusal(now) is None else "revoked" if token.revoked else "expired"
        times = [day_and_time(t) if t else "" for t in (token.created, token.expires, token.used)]
        table.add(str(token.id), token.cluster, token.label, state, *times)
    print_table(table)


def _days(text: str) -> float:
    try:
        days = float(text.strip().removesuffix("d"))
    except ValueError:
        days = -1.0
    if not 0 <= days <= _MAX_DAYS:
        raise ArgumentTypeError(
            f"expected 0 to {_MAX_DAYS:,} days, such as 90 or 90d, got {text!r}"
        )
    return days


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("token", token.__doc__)
    parser.add_argument(
        "action",
        type=one_of(Action),
        metavar="ACTION",
        help="add, list, revoke or rotate",
    )
    parser.add_argument(
        "id", nargs="?", type=bounded_int(0), metavar="ID", help="Token id, as shown by list"
    )
    parser.add_argument("--cluster", metavar="NAME", help="Cluster of a new token, or to list")
    parser.add_argument("--user", metavar="NAME", help="User account of a new token, or to list")
    parser.add_argument(
        "--scope",
        type=one_of(("read", "write")),
        metavar="SCOPE",
        help="What the token of a user permits: read or write (default: read)",
    )
    parser.add_argument("--label", metavar="TEXT", help="Description of a new token")
    parser.add_argument(
        "--expires", type=_days, metavar="DAYS", help="Validity of a new token: 90 or 90d"
    )
    parser.add_argument(
        "--grace",
        type=bounded_float(0, 8760),
        metavar="HOURS",
        help="Validity of the replaced token after a rotation (default: 24)",
    )
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="Write a new token to this file with mode 0600",
    )
    parser.add_argument("--json", action="store_true", help="Print the list as JSON")
    add_store_options(parser)
    return parser.run(token, arguments)
