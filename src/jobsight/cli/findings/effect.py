"""``jobsight findings effect``: what the next runs did after a finding was shown."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from jobsight.cli.arguments import (
    CommandParser,
    add_json_option,
    add_limit_option,
    add_since_option,
    add_store_options,
    existing_store,
)
from jobsight.cli.findings.listing import add_kind_option
from jobsight.cli.jobs import parse_since
from jobsight.cli.output import Table, print_table, write_json
from jobsight.config.load import load_settings
from jobsight.text import readable_text
from jobsight.util.units import UNKNOWN, format_count, format_time

if TYPE_CHECKING:
    from jobsight.findings.effect import Effect


def effect(
    *,
    kind: str | None,
    since: str,
    limit: int,
    json: bool,
    store: str | None,
    config: str | None,
) -> None:
    """Compare the runs of each work before and after a finding was shown."""
    settings = load_settings(config)
    location = existing_store(store or settings.store.location)
    from jobsight.findings.effect import measure_effect
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        measured = measure_effect(
            opened,
            kind=kind,
            since=parse_since(since, time.time_ns()),
            prices=settings.findings.prices,
        )
    if json:
        write_json(measured)
    elif not measured.works:
        print("no finding was shown for a work that is known", file=sys.stderr)
    else:
        _print(measured, limit)


def _print(measured: Effect, limit: int) -> None:
    from jobsight.findings.reported import format_cost

    figures = ("works", "ran again", "changed", "gone", "failed more")
    table = Table("finding", *figures, "saved", right=figures)
    for row in measured.kinds:
        counts = (row.works, row.works_again, row.changed, row.gone, row.harmed)
        saved = format_cost(row.saved, row.prices) or UNKNOWN
        table.add(row.kind, *map(format_count, counts), saved)
    print_table(table)
    print()
    table = Table("shown", "user", "work", "finding", "since then", cut=("user", "work"))
    for each in measured.works[:limit]:
        shown = format_time(each.shown, None)[:10]
        names = (readable_text(each.user), readable_text(each.work))
        table.add(shown, *names, each.kind, readable_text(each.text))
    print_table(table)


def add_effect_options(parser: CommandParser) -> None:
    add_kind_option(parser)
    add_since_option(parser, "Only findings first shown since then: 90d, 2026-11-15", "365d")
    add_limit_option(parser, 20, "works in the list", most=1000)
    add_json_option(parser)
    add_store_options(parser)
