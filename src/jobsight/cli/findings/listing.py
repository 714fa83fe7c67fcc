"""``jobsight findings list`` and ``summary``."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from jobsight.cli.arguments import (
    CommandParser,
    add_csv_option,
    add_json_option,
    add_limit_option,
    add_since_option,
    add_store_options,
    existing_store,
    one_of,
)
from jobsight.cli.jobs import parse_since
from jobsight.cli.output import Table, print_table, write_csv, write_json
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError
from jobsight.findings.finding import SEVERITIES, Severity
from jobsight.model import SECOND
from jobsight.text import readable_text
from jobsight.transport.login import Login, read_login
from jobsight.util.outer import Time
from jobsight.util.units import UNKNOWN, format_count, format_time

if TYPE_CHECKING:
    from jobsight.findings.listed import FindingReport, FindingSummary
    from jobsight.store.findings.read import FindingFilter

_DAY = 86400 * SECOND
_STYLES = {"critical": "red", "warning": "yellow"}


class CsvRow(msgspec.Struct, kw_only=True):
    """A finding in one flat row."""

    run: str
    user: str
    account: str
    cluster: str
    partition: str
    start: Time
    kind: str
    severity: str
    state: str
    core_hours: float | None
    gpu_hours: float | None
    memory_gb_hours: float | None
    energy_kwh: float | None
    title: str
    text: str
    change: str


def list_(  # noqa: PLR0913 -- one for each option
    *,
    user: str | None,
    account: str | None,
    cluster: str | None,
    partition: str | None,
    since: str,
    kind: str | None,
    severity: Severity,
    all_states: bool,
    limit: int,
    json: bool,
    csv: bool,
    store: str | None,
    config: str | None,
) -> None:
    """List findings of the last 30 days, the highest cost first."""
    login = None if store else read_login()
    if login is not None:
        query = _query(
            since,
            user=user,
            account=account,
            cluster=cluster,
            partition=partition,
            kind=kind,
            severity=severity,
            all="true" if all_states else None,
        )
        _write_list(*_from_login(login, query, limit), json=json, csv=csv)
        return
    settings = load_settings(config)
    location = existing_store(store or settings.store.location)
    wanted = _filter(
        since,
        user=user,
        account=account,
        cluster=cluster,
        partition=partition,
        kind=kind,
        severity=SEVERITIES.index(severity),
        all_states=all_states,
    )
    from jobsight.findings.listed import list_reports
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        rows, following = list_reports(opened, wanted, limit, None, settings.findings.prices)
    _write_list(rows, following is not None, json=json, csv=csv)


#: Rows of one reply of the API.
_MAX_ROWS = 1000


def _query(since: str, **given: str | None) -> dict[str, str]:
    """The parameters of the API. It counts complete days as well."""
    moment = parse_since(since, time.time_ns()) // SECOND
    return {
        "since": str(moment),
        **{name: value for name, value in given.items() if value is not None},
    }


def _from_login(
    login: Login, query: dict[str, str], limit: int
) -> tuple[list[FindingReport], bool]:
    """The findings of the server that the user has logged in to, and whether there are more."""
    from jobsight.findings.listed import FindingReport

    page: Any = msgspec.defstruct(
        "Page", [("findings", list[FindingReport]), ("next", str | None, None)]
    )
    rows: list[FindingReport] = []
    following: str | None = None
    while len(rows) < limit:
        wanted = {**query, "limit": str(min(limit - len(rows), _MAX_ROWS))}
        if following is not None:
            wanted["cursor"] = following
        reply = login.get(f"/api/v1/findings?{urlencode(wanted)}", page)
        rows += reply.findings
        following = reply.next
        if following is None or not reply.findings:
            break
    return rows, following is not None


def _write_list(rows: list[FindingReport], more: bool, *, json: bool, csv: bool) -> None:
    if json:
        write_json(rows)
    elif csv:
        write_csv([_csv_row(row) for row in rows], CsvRow.__struct_fields__)
    elif not rows:
        print("no finding matches", file=sys.stderr)
    else:
        _print(rows)
        if more:
            print(f"The first {len(rows):,}; --limit shows more.", file=sys.stderr)


def _filter(since: str, **fields: Any) -> FindingFilter:
    from jobsight.store.findings.read import FindingFilter

    return FindingFilter(since=parse_since(since, time.time_ns()) // _DAY, **fields)


def _print(rows: list[FindingReport]) -> None:
    table = Table(
        *("cost", "severity", "job", "user", "account", "started", "kind", "finding", "change"),
        cut=("user", "account", "finding", "change"),
        optional=("account", "started", "finding"),
        max_width={"finding": 60, "change": 50},
    )
    for row in rows:
        finding = row.finding
        state = "" if finding.state == "open" else f" ({finding.state})"
        table.add(
            finding.cost_text or UNKNOWN,
            finding.severity,
            row.display_id,
            readable_text(row.user or UNKNOWN),
            readable_text(row.account or UNKNOWN),
            format_time(row.start, None)[:16],
            finding.kind,
            f"{readable_text(finding.title)}{state}",
            readable_text(finding.change.partition("\n")[0]),
            style=_STYLES.get(finding.severity) if finding.state == "open" else "dim",
        )
    print_table(table)


def _csv_row(row: FindingReport) -> CsvRow:
    finding, cost = row.finding, row.finding.cost
    return CsvRow(
        run=row.run,
        user=row.user,
        account=row.account,
        cluster=row.cluster,
        partition=row.partition,
        start=row.start,
        kind=finding.kind,
        severity=finding.severity,
        state=finding.state,
        core_hours=cost.core_hours,
        gpu_hours=cost.gpu_hours,
        memory_gb_hours=cost.memory_gb_hours,
        energy_kwh=cost.energy_kwh,
        title=finding.title,
        text=finding.text,
        change=finding.change,
    )


def add_list_options(parser: CommandParser) -> None:
    _add_filters(parser)
    parser.add_argument(
        "--severity",
        type=one_of(SEVERITIES),
        metavar="LEVEL",
        default="info",
        help=f"Only findings of this severity and above: {', '.join(SEVERITIES)}",
    )
    parser.add_argument(
        "--all",
        dest="all_states",
        action="store_true",
        help="Also findings with a reply, and those that no longer hold",
    )
    add_limit_option(parser, 50, "findings", most=100_000)
    add_json_option(parser)
    add_csv_option(parser)
    add_store_options(parser)


def _add_filters(parser: CommandParser) -> None:
    parser.add_argument("--user", "-u", metavar="NAME", help="Only this user")
    parser.add_argument("--account", "-A", metavar="NAME", help="Only this account")
    parser.add_argument("--cluster", metavar="NAME", help="Only this cluster")
    parser.add_argument("--partition", metavar="NAME", help="Only this partition")
    add_kind_option(parser)
    what = "Only runs started on or after the day (UTC) of this time: 7d, 2026-11-15"
    add_since_option(parser, what, "30d")


def add_kind_option(parser: CommandParser) -> None:
    parser.add_argument("--kind", metavar="KIND", help="Only findings of this rule")


def summary(  # noqa: PLR0913 -- one for each option
    *,
    by: str,
    user: str | None,
    account: str | None,
    cluster: str | None,
    partition: str | None,
    since: str,
    kind: str | None,
    json: bool,
    store: str | None,
    config: str | None,
) -> None:
    """Sum the findings of the last 30 days by kind, owner or day."""
    from jobsight.store.findings.read import DIMENSIONS

    settings = load_settings(config)
    keys = list(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
    for name in keys:
        if name not in DIMENSIONS:
            raise ConfigError(f"--by {name!r}: expected some of {', '.join(DIMENSIONS)}")
    names = {
        "user": user,
        "account": account,
        "cluster": cluster,
        "partition": partition,
        "kind": kind,
    }
    login = None if store else read_login()
    if login is not None:
        from jobsight.findings.listed import FindingSummary

        sums: Any = msgspec.defstruct("Sums", [("rows", list[FindingSummary])])
        query = urlencode({"by": ",".join(keys), **_query(since, **names)})
        _write_summary(login.get(f"/api/v1/findings/summary?{query}", sums).rows, keys, json)
        return
    location = existing_store(store or settings.store.location)
    wanted = _filter(since, **names)
    from jobsight.findings.listed import summarize
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        rows = summarize(opened, keys, wanted, settings.findings.prices)
    _write_summary(rows, keys, json)


def _write_summary(rows: list[FindingSummary], keys: list[str], json: bool) -> None:
    if json:
        write_json(rows)
        return
    figures = ("runs", "acknowledged", "not helpful")
    table = Table(*keys, *figures, "cost", right=figures, cut=keys)
    for row in rows:
        names = [readable_text(getattr(row, name) or UNKNOWN) for name in keys]
        counts = map(format_count, (row.runs, row.acknowledged, row.not_helpful))
        table.add(*names, *counts, row.cost_text or UNKNOWN)
    print_table(table)


def add_summary_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--by",
        metavar="A,B",
        default="kind",
        help="Group by some of day, cluster, user, account, partition, kind (default: kind)",
    )
    _add_filters(parser)
    add_json_option(parser)
    add_store_options(parser)
