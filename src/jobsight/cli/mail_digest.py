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
from jobsight.config.settings import MailSettings
from jobsight.mail.digest import (
    DigestKind,
    DigestPeriod,
    PlannedDigest,
    digest_request,
    for_coordinators,
    last_period,
    plan_digests,
)
from jobsight.mail.message import About, build_message, recipient
from jobsight.reports.subject import SubjectReport, period_report
from jobsight.store.store import Store
from jobsight.text import readable_text
from jobsight.util.units import format_count, format_hours


def digest(
    *,
    period: str | None,
    user: str | None,
    account: str | None,
    accounts: bool,
    dry_run: bool,
    store: str | None,
    config: str | None,
) -> None:
    """Show which digests would be sent to whom; with --user or --account, the text of one.

    Nothing is sent: `jobsight serve` does that if mail.digest or mail.account_digest is set and
    mail.digest_dry_run is off.
    """
    settings = load_settings(config)
    location = existing_store(store or settings.store.location)
    if not dry_run:
        raise UsageError("expected --dry-run; `jobsight serve` sends digests, see mail.digest")
    if user is not None and account is not None:
        raise UsageError("--user and --account exclude each other; expected one of them")
    kind: DigestKind = "account-digest" if accounts or account is not None else "digest"
    usual = settings.mail.digest if kind == "digest" else settings.mail.account_digest
    now = time.time_ns()
    days = last_period("monthly" if (period or usual) == "monthly" else "weekly", now)
    with Store.open(location) as opened:
        if user is not None or account is not None:
            name = user or account or ""
            report = period_report(
                opened,
                "user" if account is None else "account",
                name,
                since=days.since,
                until=days.until,
                prices=settings.findings.prices,
            )
            if account is not None:
                report = for_coordinators(opened, report)
            _print_one(settings.mail, name, report, kind, days)
            return
        planned = plan_digests(opened, settings.mail, kind, days, now)
    _print_all(settings.mail, planned, days)


def _print_one(
    settings: MailSettings, name: str, report: SubjectReport, kind: DigestKind, days: DigestPeriod
) -> None:
    request = digest_request(PlannedDigest(kind, name, name), days)
    message = build_message(settings, "dry-run", [request], About(several=report))
    plain = message.get_body(("plain",))
    print(f"To: {readable_text(recipient(settings, name))}")
    print(f"Subject: {readable_text(request.subject)}\n")
    print("" if plain is None else plain.get_content().replace("\r\n", "\n"))


def _print_all(
    settings: MailSettings, planned: Sequence[PlannedDigest], days: DigestPeriod
) -> None:
    numbers = ["jobs", "core hours", "CPU hours"]
    table = Table("to", "about", *numbers, "skipped", right=numbers)
    for each in planned:
        row = each.usage
        table.add(
            readable_text(recipient(settings, each.to)),
            readable_text(each.subject),
            format_count(None if row is None else row.jobs),
            format_hours(None if row is None else row.core_hours),
            format_hours(None if row is None else row.cpu_hours),
            each.skipped,
        )
    sent = sum(not each.skipped for each in planned)
    print(f"Digests of {days}: {sent:,} would be sent, {len(planned) - sent:,} skipped.")
    if planned:
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
    parser.add_argument("--account", "-A", metavar="NAME", help="Print the digest of this account")
    parser.add_argument("--accounts", action="store_true", help="Show the digests of accounts")
    add_store_options(parser)
    return parser.run(digest, arguments)
