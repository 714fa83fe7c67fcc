"""``jobsight mail pause``, ``resume``, ``pauses`` and ``calendar``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from jobsight.cli.arguments import (
    CommandParser,
    Subcommand,
    UsageError,
    add_json_option,
    add_store_options,
    existing_store,
    run_group,
)
from jobsight.cli.jobs import parse_since
from jobsight.cli.output import Table, print_table, write_json
from jobsight.cli.report import user_name
from jobsight.config.load import load_settings
from jobsight.config.settings import MailSettings
from jobsight.errors import StoreError
from jobsight.mail.digest import (
    DigestKind,
    DigestPeriod,
    Frequency,
    due_date,
    last_period,
    next_period,
    plan_digests,
)
from jobsight.mail.message import recipient
from jobsight.mail.request import is_address
from jobsight.mail.subscriptions import ALL, KINDS
from jobsight.store.mail import (
    LoggedMail,
    Pause,
    list_pauses,
    pause_mail,
    read_mail_log,
    resume_mail,
)
from jobsight.store.rollups.usage import date_of, day_of
from jobsight.store.store import Store
from jobsight.text import readable_text
from jobsight.util.units import format_count, format_time

_DESCRIPTION: Final = "Pause mails by recipient and cause, and show what was and would be sent."
EVERYBODY: Final = "everybody"
_MAX_CAUSE: Final = 100


def pause(
    *,
    to: str,
    cause: str,
    until: str | None,
    reason: str | None,
    store: str | None,
    config: str | None,
) -> None:
    """Pause mails to a recipient, or to everybody.

    CAUSE is jobs, digest, account-digest or all, or the kind of a finding, which digests then leave
    out, such as memory-request-unused.
    """
    settings = load_settings(config)
    now = time.time_ns()
    address = _address(settings.mail, to)
    end = None if until is None else _end(until, now)
    with Store.open(existing_store(store or settings.store.location)) as opened:
        pause_mail(
            opened.database,
            Pause(address, _cause(cause), end, (reason or f"paused by {user_name()}")[:300], now),
        )
    when = "for good" if end is None else f"until {format_time(end)}"
    print(f"{readable_text(address or EVERYBODY)}: {cause} is paused {when}")


def resume(*, to: str, cause: str, store: str | None, config: str | None) -> None:
    """End a pause, also one that a user made by unsubscribing, or that of a refused address.

    CAUSE is that of `jobsight mail pauses`; an address that a mail server refused has the cause
    refused.
    """
    settings = load_settings(config)
    address = _address(settings.mail, to)
    with Store.open(existing_store(store or settings.store.location)) as opened:
        found = resume_mail(opened.database, address, _cause(cause))
    if not found:
        raise StoreError(
            f"{cause} is not paused for {readable_text(address or EVERYBODY)}; "
            "see `jobsight mail pauses`"
        )
    print(f"{readable_text(address or EVERYBODY)}: {cause} is sent again")


def pauses(*, json: bool, store: str | None, config: str | None) -> None:
    """List the pauses, with those who have unsubscribed and addresses that were refused."""
    settings = load_settings(config)
    with Store.open(existing_store(store or settings.store.location)) as opened:
        found = list_pauses(opened.database, time.time_ns())
    if json:
        write_json([each._asdict() for each in found])
        return
    table = Table("to", "cause", "until", "reason", "since")
    for each in found:
        table.add(
            readable_text(each.recipient or EVERYBODY),
            readable_text(each.cause),
            "for good" if each.until is None else format_time(each.until),
            readable_text(each.reason),
            format_time(each.created),
        )
    if found:
        print_table(table)
    else:
        print("Nothing is paused.")


def calendar(*, since: str, json: bool, store: str | None, config: str | None) -> None:
    """Show which mails were sent, refused and skipped by day, and which digests come next."""
    settings = load_settings(config)
    now = time.time_ns()
    first = day_of(parse_since(since, now))
    with Store.open(existing_store(store or settings.store.location)) as opened:
        logged = read_mail_log(opened.database, first)
        coming = _coming(opened, settings.mail, now)
    if json:
        write_json(
            {
                "mails": [
                    {**each._asdict(), "day": date_of(each.day).isoformat()} for each in logged
                ],
                "next": coming,
            }
        )
        return
    _print_log(logged)
    for line in coming:
        print(f"Next: {line}.")
    if not coming:
        print("No digests are sent; see mail.digest and mail.account_digest.")


def _print_log(logged: Sequence[LoggedMail]) -> None:
    if not logged:
        print("Nothing was sent.")
        return
    table = Table("day", "kind", "to", "outcome", "mails", "reason", right=["mails"])
    for each in logged:
        table.add(
            date_of(each.day).isoformat(),
            each.kind,
            readable_text(each.recipient or "-"),
            each.outcome,
            format_count(each.mails),
            readable_text(each.reason),
        )
    print_table(table)


def _coming(store: Store, settings: MailSettings, now: int) -> list[str]:
    """The digests that come next, by what is known now."""
    lines = []
    kinds: tuple[tuple[DigestKind, str], ...] = (
        ("digest", settings.digest),
        ("account-digest", settings.account_digest),
    )
    for kind, frequency in kinds:
        if frequency == "off":
            continue
        chosen: Frequency = "weekly" if frequency == "weekly" else "monthly"
        period: DigestPeriod = next_period(chosen, now)
        last = plan_digests(store, settings, kind, last_period(chosen, now), now)
        sent = sum(not each.skipped for each in last)
        day = due_date(settings, period)
        when = "never: no day is a working day" if day is None else f"on {day}"
        dry = " (dry run: they are only recorded)" if settings.digest_dry_run else ""
        lines.append(
            f"{frequency} {kind} of {period} {when}{dry}; for the period before it would be "
            f"{sent:,} mails, and {len(last) - sent:,} skipped"
        )
    return lines


def _address(settings: MailSettings, name: str) -> str:
    if name == EVERYBODY:
        return ""
    address = recipient(settings, name)
    if not is_address(address):
        raise UsageError(f"{name[:80]!r} is not a user name or an address; expected ada")
    return address.lower()


def _cause(text: str) -> str:
    allowed = text.replace("-", "").isalnum() and text.isascii() and len(text) <= _MAX_CAUSE
    if not allowed:
        raise UsageError(
            f"{text[:80]!r} is not a cause; expected one of {', '.join((*KINDS, ALL))}, or the "
            "kind of a finding, as `jobsight findings list` shows it"
        )
    return text


def _end(text: str, now: int) -> int:
    """The end of a pause: 30d from now, or a date."""
    from datetime import date

    from jobsight.store.rollups.shares import DAY
    from jobsight.store.rollups.usage import number_of

    try:
        return number_of(date.fromisoformat(text)) * DAY
    except ValueError:
        pass
    if text.endswith("d") and text[:-1].isascii() and text[:-1].isdecimal() and len(text) <= 6:
        return now + int(text[:-1]) * DAY
    raise UsageError(f"--until {text[:40]!r}: expected a number of days or a date, as 30d")


def _add_cause(parser: CommandParser) -> None:
    parser.add_argument("to", metavar="TO", help=f"User name or address, or {EVERYBODY}")
    parser.add_argument("cause", metavar="CAUSE", help="Kind of mails or of findings, or all")


def _pause_options(parser: CommandParser) -> None:
    _add_cause(parser)
    parser.add_argument(
        "--until", metavar="DATE", help="End, e.g. 30d or 2026-12-31 (default: for good)"
    )
    parser.add_argument("--reason", metavar="TEXT", help="Shown by `jobsight mail pauses`")
    add_store_options(parser)


def _resume_options(parser: CommandParser) -> None:
    _add_cause(parser)
    add_store_options(parser)


def _pauses_options(parser: CommandParser) -> None:
    add_json_option(parser)
    add_store_options(parser)


def _calendar_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--since", "-S", metavar="DATE", default="30d", help="Start date (UTC) (default: 30d)"
    )
    add_json_option(parser)
    add_store_options(parser)


COMMANDS: Final = {
    "pause": Subcommand(pause, _pause_options),
    "resume": Subcommand(resume, _resume_options),
    "pauses": Subcommand(pauses, _pauses_options),
    "calendar": Subcommand(calendar, _calendar_options),
}


def main(arguments: Sequence[str]) -> int:
    return run_group(COMMANDS, "mail", _DESCRIPTION, arguments)
