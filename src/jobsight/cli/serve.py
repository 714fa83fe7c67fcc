"""``jobsight serve``: the pages and the API of one store."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated

import typer

from jobsight.cli.typed import ConfigOption, StoreOption, run_typed
from jobsight.config.load import load_settings


def serve(
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where to listen [default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, metavar="N", help="Port; 0 takes a free one [default: 8080]"
        ),
    ] = None,
    store: StoreOption = None,
    token_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Where the token is kept [default: beside the store]"),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Serve the pages and the API, until Ctrl-C.

    Everything needs the token, which is printed with the address.
    """
    settings = load_settings(config)
    if host is not None:
        settings.server.host = host
    if port is not None:
        settings.server.port = port
    if store is not None:
        settings.store.location = store
    if token_file is not None:
        settings.server.token_file = token_file
    from jobsight.server.serve import run_server

    # Into a pipe or a log the address must come now, not when the buffer is full.
    run_server(settings, functools.partial(print, flush=True))


def main(arguments: Sequence[str]) -> int:
    return run_typed(serve, "serve", arguments)
