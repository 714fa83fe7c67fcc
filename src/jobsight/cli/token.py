"""``jobsight token``: what the agents of a cluster show to the server."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobsight.cli.typed import ConfigOption, StoreOption, existing_store, run_typed
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError, JobsightError
from jobsight.model import SECOND

if TYPE_CHECKING:
    from jobsight.store.tokens import ClusterToken

_HOUR = 3600 * SECOND


class Action(StrEnum):
    ADD = "add"
    LIST = "list"
    REVOKE = "revoke"
    ROTATE = "rotate"


def token(
    action: Annotated[
        Action,
        typer.Argument(
            metavar="ACTION", help="add, list, revoke ID, or rotate ID", show_default=False
        ),
    ],
    id: Annotated[
        int | None,
        typer.Argument(metavar="ID", help="The number that list shows", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="The cluster: of a new one, or to list")
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A new one: what it is for, for you")
    ] = None,
    expires: Annotated[
        float | None,
        typer.Option(min=0, max=36500, metavar="DAYS", help="A new one: good for so long"),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=8760,
            metavar="HOURS",
            help="Rotate: how long the old one stays good [default: 24]",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a new one there, readable by its owner alone"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="List: as JSON")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Make, list, replace and revoke the tokens with which agents send batches.

    A token is good for one cluster and opens nothing but the way in. It is shown once; the store
    keeps its digest. `rotate` makes a new one and lets the old one live on for the grace time, so
    that no agent is refused meanwhile. A running server knows of a new one at once and of a revoked
    one within seconds.
    """
    _check_options(action, id, cluster=cluster, label=label, grace=grace)
    settings = load_settings(config)
    location = store or settings.store.location
    if action != Action.ADD:
        existing_store(location)
    from jobsight.store.store import Store
    from jobsight.store.tokens import Tokens

    with Store.open(location) as opened:
        tokens = Tokens(opened.database)
        until = None if expires is None else time.time_ns() + round(expires * 24 * _HOUR)
        if action == Action.LIST:
            _show(tokens.list(cluster), as_json=json)
        elif action == Action.ADD:
            number, made = tokens.add(cluster or settings.cluster, label or "", until)
            hand_out(made, file)
            print(f"token {number} of cluster {cluster or settings.cluster}", file=sys.stderr)
        elif action == Action.REVOKE:
            print(f"{tokens.revoke(id or 0).refusal(time.time_ns())}", file=sys.stderr)
        else:
            hours = 24.0 if grace is None else grace
            old, number, made = tokens.rotate(id or 0, round(hours * _HOUR), until)
            hand_out(made, file)
            print(
                f"token {number} in place of the token {old.name}, which is good for {hours:g} h",
                file=sys.stderr,
            )


def _check_options(action: Action, id: int | None, **given: object) -> None:
    needs_id = action in (Action.REVOKE, Action.ROTATE)
    if needs_id == (id is None):
        said = f"{action} ID, the number that list shows" if needs_id else f"{action} without an ID"
        raise ConfigError(f"right would be: jobsight token {said}")
    takes = {
        "cluster": (Action.ADD, Action.LIST),
        "label": (Action.ADD,),
        "grace": (Action.ROTATE,),
    }
    for name, value in given.items():
        if value is not None and action not in takes[name]:
            raise ConfigError(f"--{name}: is for {' and '.join(takes[name])}, not for {action}")


def hand_out(made: str, file: Path | None) -> None:
    """To a file that appears whole and with its mode, or alone on the output, for a pipe."""
    if file is None:
        print(made)
        return
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(f"{made}\n")
        fresh.replace(file)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        # It is in the store by now, and this is the only time that it can be had.
        print(made)
        raise JobsightError(f"{file} cannot be written: {error.strerror}; see above") from None


def _show(found: list[ClusterToken], *, as_json: bool) -> None:
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from jobsight.store.tokens import day_and_time

    if not found:
        print("there are no tokens of clusters", file=sys.stderr)
        return
    now = time.time_ns()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("ID", "CLUSTER", "LABEL", "STATE", "CREATED", "EXPIRES", "USED"):
        table.add_column(title, no_wrap=True)
    for one in found:
        state = "good" if one.refusal(now) is None else "revoked" if one.revoked else "expired"
        times = [day_and_time(t) if t else "" for t in (one.created, one.expires, one.used)]
        row = (str(one.id), one.cluster, one.label, state, *times)
        # Text, not markup: labels hold brackets.
        table.add_row(*(Text(value) for value in row))
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(table)


def main(arguments: Sequence[str]) -> int:
    return run_typed(token, "token", arguments)
