"""``jobsight login``: use the server with the token of a user, without the store's file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobsight.cli.arguments import CommandParser, UsageError
from jobsight.transport.login import Login, check_url, login_file, read_login, write_login


def login(*, url: str | None, token_file: Path | None, ca: str | None, forget: bool) -> None:
    """Log in to a server: `jobsight report`, `jobs`, `explain`, `fit` and
    `findings list` and `summary` then query it.

    The token is created on the settings page of the server. It is read from the terminal, from
    standard input or from a file, and stored with mode 0600. Without a URL, show the login.
    """
    if forget:
        login_file().unlink(missing_ok=True)
        print("logged out; revoke the token on the settings page of the server", file=sys.stderr)
        return
    if url is None:
        known = read_login()
        if known is None:
            raise UsageError("expected: jobsight login URL")
        print(f"logged in to {known.url} ({login_file()})")
        return
    made = Login(url=check_url(url), token=_token(token_file, url), ca=ca)
    made.get("/api/v1/jobs?limit=1", dict[str, Any])
    print(f"logged in to {made.url}; the token is in {write_login(made)}", file=sys.stderr)


def _token(file: Path | None, url: str) -> str:
    if file is not None:
        from jobsight.transport.running_server import read_token

        return read_token(file)
    if sys.stdin.isatty():
        from getpass import getpass

        print(f"Create a token on {url}/settings and paste it.", file=sys.stderr)
        token = getpass("Token: ").strip()
    else:
        token = sys.stdin.readline(1000).strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError("expected a token of the settings page")
    return token


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("login", login.__doc__)
    parser.add_argument("url", nargs="?", metavar="URL", help="Address of the pages")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="Read the token from it")
    parser.add_argument("--ca", metavar="FILE", help="Certificate authorities (PEM) of the server")
    parser.add_argument("--forget", action="store_true", help="Delete the stored token")
    return parser.run(login, arguments)
