"""``jobsight open``: the page of a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from urllib.parse import quote

from jobsight.cli.arguments import CommandParser, add_run_argument, add_store_options
from jobsight.cli.report import job_of_this_shell, parse_run
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.errors import JobsightError
from jobsight.transport.login import read_login
from jobsight.transport.running_server import read_running_server


def open_page(*, run: str | None, print_only: bool, store: str | None, config: str | None) -> None:
    """Print the address of the page of a job, and show it in a browser if there is one.

    The server is that of the variable JOBSIGHT_URL, of `jobsight login` or of the setting
    server.url, or else the one that runs on this machine. Without RUN, it is the job of this shell,
    or the list of jobs.
    """
    settings = load_settings(config)
    location = store or settings.store.location
    login = None if store else read_login()
    address = os.environ.get("JOBSIGHT_URL") or (login.url if login else settings.server.url)
    if not address:
        running = read_running_server(paths.server_file(location))
        if running is None:
            raise JobsightError(
                "no server is known; set server.url or JOBSIGHT_URL, or start `jobsight serve`"
            )
        address = running.url
    wanted = run or job_of_this_shell()
    page = "/"
    if wanted is not None:
        parse_run(wanted)
        page = f"/jobs/{quote(wanted, safe=':+')}"
    url = address.rstrip("/") + page
    print(url, flush=True)
    if not print_only and sys.stdout.isatty() and _has_display():
        import webbrowser

        webbrowser.open(url)


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("open", open_page.__doc__)
    add_run_argument(parser)
    parser.add_argument(
        "--print", action="store_true", dest="print_only", help="Only print the address"
    )
    add_store_options(parser)
    return parser.run(open_page, arguments)
