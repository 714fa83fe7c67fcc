"""``jobsight report``: what a job requested and used, in place of ``seff``.

The report comes from the store, or from the running server if the store cannot be read.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from jobsight.cli.arguments import (
    CommandParser,
    UsageError,
    add_json_option,
    add_run_argument,
    add_store_options,
    existing_store,
)
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.errors import JobsightError, StoreError
from jobsight.findings.reported import add_address
from jobsight.model import RunReference
from jobsight.reports.report import JobReport
from jobsight.transport.http import Peer, request
from jobsight.transport.login import Login, read_login
from jobsight.transport.running_server import RunningServer, read_running_server, read_token
from jobsight.util.decoding import decode_json_as
from jobsight.util.outer import decode_outer, encode_json

if TYPE_CHECKING:
    from jobsight.reports.series import SeriesReply
    from jobsight.store.read.queries import StoredRun
    from jobsight.store.store import Store


def report(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    run: str | None,
    array: str | None,
    script: str | None,
    user: str | None,
    account: str | None,
    cluster: str | None,
    since: str | None,
    json: bool,
    all_rows: bool,
    pdf: str | None,
    html: str | None,
    plots: str | None,
    store: str | None,
    config: str | None,
) -> None:
    """Report what a job requested and used, by executable, with the coverage of each figure.

    With --array, --script, --user, --account or --cluster, report what several runs held and used:
    findings by cost, what would have fitted, what improved, states, hours, quartiles, waiting time,
    software, and the runs that held most.
    """
    settings = load_settings(config)
    location = store or settings.store.location
    subjects = {
        "array": array,
        "script": script,
        "user": user,
        "account": account,
        "cluster": cluster,
    }
    given = {name: value for name, value in subjects.items() if value is not None}
    if given:
        if len(given) > 1 or run is not None:
            raise UsageError(
                "expected one of RUN, --array, --script, --user, --account and --cluster"
            )
        if plots:
            raise UsageError("--plots draws the time series of one run; expected RUN")
        from jobsight.cli.report_subjects import report_subject

        ((kind, name),) = given.items()
        report_subject(
            existing_store(location),
            kind,
            name,
            since or ("all" if kind == "script" else "30d"),
            json=json,
            pdf=pdf,
            html=html,
            prices=settings.findings.prices,
        )
        return
    wanted = run or job_of_this_shell()
    login = None if store else read_login()
    if login is not None:
        built = _from_login(login, wanted)
    else:
        built = find_report(location, wanted, settings, record=True)
    add_address(built.findings, settings.mail.url if login is None else login.url)
    if pdf or html or plots:
        from jobsight.cli.report_files import write_files

        write_files(
            built,
            lambda: (
                find_series(location, built, settings)
                if login is None
                else _series_from_login(login, built)
            ),
            pdf=pdf,
            html=html,
            plots=plots,
        )
        return
    if json:
        sys.stdout.write(msgspec.json.format(encode_json(built)).decode() + "\n")
        return
    from jobsight.reports.terminal import print_report

    print_report(built, all_rows=all_rows)


def _from_login(login: Login, wanted: str | None) -> JobReport:
    """The report from the server that the user has logged in to."""
    if wanted is None:
        rows = login.get("/api/v1/jobs?limit=1", _Rows).jobs
        if not rows:
            raise StoreError(f"the server {login.url} has no job that you may see")
        wanted = rows[0].run
    else:
        parse_run(wanted)
    return login.get(f"/api/v1/jobs/{quote(wanted)}", JobReport)


def _series_from_login(login: Login, report: JobReport) -> SeriesReply | None:
    from jobsight.reports.series import SeriesReply
    from jobsight.reports.with_plots import POINTS

    return login.get(f"/api/v1/jobs/{quote(report.run)}/series?points={POINTS}", SeriesReply)


def job_of_this_shell() -> str | None:
    """The job in which this command itself runs, if any."""
    own = os.environ.get("JOBSIGHT_JOB")
    if own:
        return own
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return os.environ.get("SLURM_JOB_ID") or None


def find_report(
    location: str, wanted: str | None, settings: Settings | None = None, *, record: bool = False
) -> JobReport:
    """Build the report from the store, or request it from the server that may read the store.

    With ``record`` the findings of the report are recorded as shown to this user.
    """
    prices = settings.findings.prices if settings is not None else {}
    reference = parse_run(wanted) if wanted else None
    if is_readable(location):
        from jobsight.reports import pending
        from jobsight.reports.build import build_report

        opened = _open(location, settings)
        try:
            if reference is not None:
                built = pending.find_report(opened, reference, prices=prices)
            else:
                built = build_report(opened, _latest(opened), prices=prices)
            if record:
                _record_shown(opened, built)
            return built
        finally:
            opened.close()
    fetched = fetch_report(paths.server_file(location), wanted, user_name())
    if fetched is None:
        raise no_store_error(location)
    return fetched


def find_series(location: str, report: JobReport, settings: Settings) -> SeriesReply | None:
    """The time series that plots need, from the store or from the server that may read it."""
    from jobsight.reports.series import SeriesReply
    from jobsight.reports.with_plots import POINTS, read_series

    if not is_readable(location):
        record = read_running_server(paths.server_file(location))
        if record is None:
            raise no_store_error(location)
        token = read_token(Path(record.token_file), own=True)
        path = f"/api/v1/jobs/{quote(report.run)}/series?points={POINTS}"
        return get_from_server(record, path, token, SeriesReply)
    opened = _open(location, settings)
    try:
        return read_series(opened, report)
    finally:
        opened.close()


def _open(location: str, settings: Settings | None) -> Store:
    """The store, with the archive and the external series of the settings."""
    from jobsight.store.store import Store

    opened = Store.open(location)
    if settings is not None and settings.archive.location:
        # pyarrow and numpy take longer than the whole report.
        from jobsight.archive.reader import attach

        attach(opened, settings.archive)
    if settings is not None and settings.server.series == "promql":
        from jobsight.server.promql import attach_promql

        attach_promql(opened, settings.server)
    return opened


def _record_shown(store: Store, built: JobReport) -> None:
    """Record what this user is shown; a store that cannot be written is no reason to fail."""
    if not built.findings:
        return
    from jobsight.store.findings.shown import Shown, record_shown

    run_id = store.find(RunReference.parse(built.run)).id
    viewer = user_name()
    shown = {Shown(run_id, each.kind, viewer, "report"): 1 for each in built.findings}
    with contextlib.suppress(StoreError):
        record_shown(store.database, shown, time.time_ns())


def user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def parse_run(text: str) -> RunReference:
    try:
        return RunReference.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _latest(store: Store) -> StoredRun:
    latest = store.latest(user_name())
    if latest is None:
        raise StoreError(
            f"the store has no job of {user_name()}; `jobsight run -- COMMAND` makes one"
        )
    return latest


def is_readable(location: str) -> bool:
    return "://" in location or os.access(location, os.R_OK)


def no_store_error(location: str) -> StoreError:
    try:
        kept_from_us = Path(location).exists()
    except PermissionError:
        # The directory may not be entered.
        kept_from_us = True
    if kept_from_us:
        return StoreError(f"the store {location} may not be read by {user_name()}")
    return StoreError(
        f"there is no store at {location} yet; `jobsight run -- COMMAND` makes one, "
        "or name another with --store"
    )


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("report", report.__doc__)
    add_run_argument(parser, "the job of this shell or your last job")
    parser.add_argument("--array", metavar="ID", help="An array or heterogeneous job: 62")
    parser.add_argument(
        "--script", metavar="KEY", help="All runs of a script, by its key or one of its runs"
    )
    parser.add_argument("--user", "-u", metavar="NAME", help="All runs of a user")
    parser.add_argument("--account", "-A", metavar="NAME", help="All runs of an account")
    parser.add_argument("--cluster", metavar="NAME", help="All runs of a cluster")
    parser.add_argument(
        "--since",
        "-S",
        metavar="DATE",
        help="Start date (UTC) of --script, --user, --account and --cluster, e.g. 2026-01-01 or "
        '30d; "all" for no limit (default: 30d, of a script all)',
    )
    add_json_option(parser)
    parser.add_argument(
        "--all", dest="all_rows", action="store_true", help="Show all executables and nodes"
    )
    parser.add_argument("--pdf", metavar="FILE", help="Write the report as PDF, with charts")
    parser.add_argument("--html", metavar="FILE", help="Write the report as one HTML page")
    parser.add_argument("--plots", metavar="DIRECTORY", help="Write the charts as SVG and PNG")
    add_store_options(parser)
    return parser.run(report, arguments)


#: Seconds for one request, and bytes of the largest reply.
_TIMEOUT = 10.0
_MAX_REPLY = 256 * 2**20


class _Row(msgspec.Struct):
    run: str


class _Rows(msgspec.Struct):
    jobs: list[_Row]


def fetch_report(file: Path, wanted: str | None, user: str) -> JobReport | None:
    """The report from the server of a record file; None where no server runs."""
    record = read_running_server(file)
    if record is None:
        return None
    token = read_token(Path(record.token_file), own=True)
    if wanted is None:
        query = urlencode({"user": user, "limit": 1})
        rows = get_from_server(record, f"/api/v1/jobs?{query}", token, _Rows).jobs
        if not rows:
            raise StoreError(f"the server {record.url} has no job of {user}")
        wanted = rows[0].run
    viewer = urlencode({"viewer": user})
    return get_from_server(record, f"/api/v1/jobs/{quote(wanted)}?{viewer}", token, JobReport)


_Reply = TypeVar("_Reply")


def get_from_server(record: RunningServer, path: str, token: str, kind: type[_Reply]) -> _Reply:
    """One request. The agent's HTTP client uses no proxy: the server is on this machine, and its
    token must not leave it."""
    url = urlsplit(record.url)
    host = url.hostname or ""
    wrap = None
    if record.certificate is not None:
        from jobsight.transport.tls import ClientTls

        wrap = ClientTls(record.certificate, pinned=True).wrapping(host)
    headers = {"Authorization": f"Bearer {token}"}
    try:
        peer = Peer(host, url.port or (80 if wrap is None else 443), wrap)
        reply = request(peer, "GET", path, headers, b"", timeout=_TIMEOUT, largest=_MAX_REPLY)
        if reply.status == 200:
            return decode_outer(reply.body, kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise JobsightError(f"the server at {record.url} cannot be queried: {error}") from None
    try:
        sentence = str(decode_json_as(dict[str, Any], reply.body)["detail"])
    except (msgspec.MsgspecError, KeyError):
        sentence = f"the server at {record.url} answered {reply.status}"
    raise StoreError(sentence)
