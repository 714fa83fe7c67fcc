"""``jobsight mail digest``: which digests would be sent, and what is in one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobsight.cli.arguments import (
    CommandParser,
    UsageError,
    add_store_options,
    existing_store,
    one_of,
)
from jobsight.cli.output import Table, print_table
from jobsight.config.load import load_settings
from jobsight.mail.digest import digest_request, digest_users, last_period
from jobsight.mail.message import About, build_message, recipient
from jobsight.reports.subject import period_report
from jobsight.store.store import Store
from jobsight.text import readable_text
from jobsight.util.units import format_count, format_hours


def digest(
    *, period: str | None, user: str | None, dry_run: bool, store: str | None, config: str | None
) -> None:
    """Show which digests would be sent to whom; with --user, the text of one.

    Nothing is sent: `jobsight serve` does that if mail.digest is set and mail.digest_dry_run is
    off.
    """
    settings = load_settings(config)
    location = existing_store(store or settings.store.location)
    if not dry_run:
        raise UsageError("expected --dry-run; `jobsight serve` sends digests, see mail.digest")
    chosen = period or settings.mail.digest
    days = last_period("monthly" if chosen == "monthly" else "weekly", time.time_ns())
    with Store.open(location) as opened:
        if user is not None:
            report = period_report(opened, "user", user, since=days.since, until=days.until)
            request = digest_request(user, days)
            message = build_message(settings.mail, "dry-run", [request], About(several=report))
            plain = message.get_body(("plain",))
            print(f"To: {readable_text(recipient(settings.mail, user))}")
            print(f"Subject: {request.subject}\n")
            print("" if plain is None else plain.get_content().replace("\r\n", "\n"))
            return
        rows = digest_users(opened, days)
    table = Table(
        "to", "jobs", "core hours", "CPU hours", right=["jobs", "core hours", "CPU hours"]
    )
    for row in rows:
        table.add(
            readable_text(recipient(settings.mail, row.user or "")),
            format_count(row.jobs),
            format_hours(row.core_hours),
            format_hours(row.cpu_hours),
        )
    print(f"Digests of {days}: {len(rows):,} would be sent.")
    if rows:
        print_table(table)


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("mail digest", digest.__doc__)
    parser.add_argument("--dry-run", action="store_true", help="Print what would be sent to whom")
    parser.add_argument(
        "--period",
        type=one_of(("weekly", "monthly")),
        metavar="PERIOD",
        help="weekly or monthly: the last complete one (default: mail.digest, else weekly)",
    )
    parser.add_argument("--user", "-u", metavar="NAME", help="Print the digest of this user")
    add_store_options(parser)
    return parser.run(digest, arguments)
