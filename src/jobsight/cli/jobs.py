"""``jobsight jobs``: runs of the store as a table, as CSV or as JSON."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from jobsight.cli.arguments import (
    CommandParser,
    add_store_options,
    bounded_int,
    existing_store,
    one_of,
)
from jobsight.cli.output import Table, print_table, write_csv, write_json
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.text import readable_text
from jobsight.transport.login import read_login
from jobsight.util.outer import outer_names, to_outer
from jobsight.util.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_share,
    format_time,
)

if TYPE_CHECKING:
    from jobsight.reports.build import JobRow


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class _Column(NamedTuple):
    """The title and the format of a field of JobRow."""

    title: str
    shown: Callable[[Any], str]
    right: bool = False


def _text(value: str | None) -> str:
    return UNKNOWN if value is None else readable_text(value)


_COLUMNS = {
    "run": _Column("run", _text),
    "cluster": _Column("cluster", _text),
    "job_id": _Column("raw id", str, True),
    "display_id": _Column("job", _text),
    "name": _Column("name", _text),
    "user": _Column("user", _text),
    "account": _Column("account", _text),
    "partition": _Column("partition", _text),
    "state": _Column("state", _text),
    "state_text": _Column("how it stands", _text),
    "exit_code": _Column("exit", format_count, True),
    "exit_signal": _Column("signal", format_count, True),
    "start": _Column("start", lambda value: format_time(value, None)),
    "end": _Column("end", lambda value: format_time(value, None)),
    "elapsed_seconds": _Column("elapsed", format_duration, True),
    "node_count": _Column("nodes", format_count, True),
    "requested_cpus": _Column("CPUs", format_count, True),
    "cpu_seconds": _Column("CPU time", format_duration, True),
    "cpu_share": _Column("CPU used", format_share, True),
    "memory_requested_bytes": _Column("memory", format_bytes, True),
    "memory_used_peak_bytes": _Column("memory used", format_bytes, True),
    "memory_kernel_peak_bytes": _Column("kernel peak", format_bytes, True),
    "memory_share": _Column("memory share", format_share, True),
    "requested_gpus": _Column("GPUs", format_count, True),
    "gpu_count": _Column("GPUs held", format_count, True),
    "gpu_unused_count": _Column("never used", format_count, True),
    "gpu_held_seconds": _Column("GPU time", format_duration, True),
    "gpu_used_seconds": _Column("GPU time used", format_duration, True),
    "gpu_share": _Column("GPU used", format_share, True),
    "gpu_measure": _Column("GPU measure", _text),
    "gpu_memory_peak_bytes": _Column("GPU memory", format_bytes, True),
    "gpu_energy_joules": _Column("GPU energy", format_energy, True),
    "findings": _Column("findings", format_count, True),
    "severity": _Column("worst finding", _text),
}
_DEFAULT = (
    "display_id,user,account,name,state,start,elapsed_seconds,node_count,requested_cpus,cpu_share,"
    "memory_share"
)
#: Rows of one reply of the API.
_MAX_ROWS = 1000
_GPU_TITLE = "GPUs used"
#: Columns that a narrow terminal truncates, and those that it leaves out, the first one first.
_CUT = ("name", "user", "account", "partition", "cluster", "state_text")
_OPTIONAL = ("account", "node_count", "start", "user", "memory_share", "requested_cpus")
_AGO = re.compile(r"(\d{1,6})\s*([smhdw])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def jobs(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    user: str | None,
    account: str | None,
    state: str | None,
    since: str | None,
    search: str | None,
    unused_gpus: bool,
    finding: str | None,
    limit: int,
    columns: str | None,
    form: Format,
    store: str | None,
    config: str | None,
) -> None:
    """List the jobs of the store, the latest start first."""
    chosen = _chosen(columns)
    wanted = _parse_state(state) if state else None
    moment = None if since is None else parse_since(since, time.time_ns())
    login = None if store else read_login()
    if login is not None:
        query = {
            "user": user,
            "account": account,
            "state": wanted,
            "search": search,
            "since": None if moment is None else str(moment // SECOND),
            "unused_gpus": "true" if unused_gpus else None,
            "finding": finding,
            "limit": str(min(limit, _MAX_ROWS)),
        }
        given = urlencode({name: value for name, value in query.items() if value is not None})
        from jobsight.reports import build

        reply: Any = msgspec.defstruct("Rows", [("jobs", list[build.JobRow])])
        rows = login.get(f"/api/v1/jobs?{given}", reply).jobs
        _WRITERS[form](rows, chosen, columns is not None)
        return
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.reports.pending import list_jobs
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        rows = list_jobs(
            opened,
            now=time.time_ns(),
            limit=limit,
            user=user,
            account=account,
            state=wanted,
            search=search,
            since=moment,
            unused_gpus=unused_gpus,
            finding=finding,
        )
    _WRITERS[form](rows, chosen, columns is not None)


def _chosen(text: str | None) -> list[str]:
    names = [name.strip() for name in (text or _DEFAULT).split(",") if name.strip()]
    for name in names:
        if name not in _COLUMNS:
            raise ConfigError(f"--columns: there is no {name!r}; there are {', '.join(_COLUMNS)}")
    return names


def _parse_state(text: str) -> str:
    from jobsight.reports.report import parse_state

    try:
        return parse_state(text)
    except ValueError as error:
        raise ConfigError(f"--state: {error}") from None


def parse_since(text: str, now: int, option: str = "--since") -> int:
    """Read ``7d``, ``12h`` or a date with or without a time, in the zone of this machine."""
    match = _AGO.fullmatch(text.strip().lower())
    if match:
        return now - int(match[1]) * _SECONDS[match[2]] * SECOND
    try:
        return int(datetime.fromisoformat(text.strip()).timestamp()) * SECOND
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{option} {text!r}: expected 7d, 12h, 2026-11-15 or 2026-11-15T04:30"
        ) from None


def _write_table(rows: Sequence[JobRow], names: list[str], explicit: bool) -> None:
    if not rows:
        print("no job matches", file=sys.stderr)
        return
    columns = [_COLUMNS[name] for name in names]
    # One column tells how many of the GPUs were used, and how much; only where there are any.
    gpus = [] if explicit else [_gpus(row) for row in rows]
    title = [_GPU_TITLE] if any(gpus) else []
    table = Table(
        *(column.title for column in columns),
        *title,
        right=[column.title for column in columns if column.right],
        cut=[_COLUMNS[name].title for name in _CUT],
        # Requested columns are left out from the right, the others by their importance.
        optional=() if explicit else [_COLUMNS[name].title for name in _OPTIONAL],
        max_width={_COLUMNS["name"].title: 32},
    )
    attributes = {outer: name for name, outer in outer_names(type(rows[0])).items()}
    for number, row in enumerate(rows):
        cells = [_COLUMNS[name].shown(getattr(row, attributes[name])) for name in names]
        # A job that held GPUs which it never used is seen among many others.
        style = "yellow" if title and row.gpu_unused_count else None
        table.add(*cells, *([gpus[number] or UNKNOWN] if title else []), style=style)
    print_table(table)


def _gpus(row: JobRow) -> str:
    from jobsight.reports.gpu import gpu_cell

    return gpu_cell(row.gpu_count, row.gpu_unused_count, row.gpu_share, row.requested_gpus)


def _write_csv(rows: Sequence[JobRow], names: list[str], explicit: bool) -> None:
    """The units are part of the column names."""
    write_csv(rows, names)


def _write_json(rows: Sequence[JobRow], names: list[str], explicit: bool) -> None:
    """Every field, or those that were named."""
    documents: list[Any] = [to_outer(row) for row in rows]
    if explicit:
        documents = [{name: row[name] for name in names} for row in documents]
    write_json(documents)


_WRITERS = {Format.TABLE: _write_table, Format.CSV: _write_csv, Format.JSON: _write_json}


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("jobs", jobs.__doc__)
    parser.add_argument("--user", "-u", metavar="NAME", help="Only this user")
    parser.add_argument("--account", "-A", metavar="NAME", help="Only this account")
    parser.add_argument(
        "--state", "-t", metavar="STATE", help="Only this state: RUNNING, FAILED, OUT_OF_MEMORY ..."
    )
    parser.add_argument(
        "--since",
        "-S",
        metavar="TIME",
        help="Only jobs started at or after this time: 7d, 12h, 2026-11-15",
    )
    parser.add_argument(
        "--search",
        metavar="TEXT",
        help="Only jobs with this text in the name, command, user, account or partition, "
        "or at the beginning of the id",
    )
    parser.add_argument(
        "--unused-gpus",
        action="store_true",
        help="Only jobs that held a GPU which they never used",
    )
    parser.add_argument(
        "--finding",
        metavar="KIND",
        help='Only jobs with a finding of this kind; "any" for all kinds',
    )
    parser.add_argument(
        "--limit",
        "-n",
        type=bounded_int(1),
        metavar="N",
        default=50,
        help="Maximum number of jobs (default: 50)",
    )
    parser.add_argument("--columns", metavar="A,B,C", help=f"Columns, of: {', '.join(_COLUMNS)}")
    parser.add_argument(
        "--format",
        "-o",
        dest="form",
        type=one_of(Format),
        metavar="FORMAT",
        default=Format.TABLE,
        help="Output format: table, csv or json (default: table)",
    )
    add_store_options(parser)
    return parser.run(jobs, arguments)
