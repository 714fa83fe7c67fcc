"""``jobsight serve``: the pages and the API of one store."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from jobsight.cli.arguments import CommandParser, add_store_options, bounded_int
from jobsight.config.load import load_settings


def serve(
    *,
    host: str | None,
    port: int | None,
    store: str | None,
    token_file: str | None,
    show_token: bool,
    config: str | None,
) -> None:
    """Serve the pages, the API and the ingest endpoint until stopped.

    All requests require the token. On a terminal, the printed address signs one browser in;
    otherwise the token's file is printed. The token itself is printed only with --show-token.
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
    run_server(
        settings,
        functools.partial(print, flush=True),
        show_token=show_token,
        to_terminal=sys.stdout.isatty(),
    )


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("serve", serve.__doc__)
    parser.add_argument(
        "--host", metavar="ADDRESS", help="Address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port",
        type=bounded_int(0, 65535),
        metavar="N",
        help="Port to listen on; 0 selects a free port (default: 8080)",
    )
    add_store_options(parser)
    parser.add_argument(
        "--token-file", metavar="FILE", help="Token file (default: next to the store)"
    )
    parser.add_argument(
        "--show-token", action="store_true", help="Print the token instead of its file"
    )
    return parser.run(serve, arguments, log=lambda options: "service")
