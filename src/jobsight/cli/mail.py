"""``jobsight mail``: Slurm's MailProg. It leaves the mail in a queue and returns at once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jobsight.cli.arguments import CommandParser, UsageError, add_config_option
from jobsight.errors import JobsightError
from jobsight.mail.queue import MailQueue
from jobsight.mail.request import MAX_RECIPIENTS, slurm_request, split_recipients


def mail(
    *,
    subject: str | None,
    to: str | None,
    list_queue: bool,
    queue: str | None,
    config: str | None,
    log_level: str | None,
) -> None:
    """Queue a mail about a job, as Slurm's MailProg; `jobsight serve` sends it with the report.

    `jobsight mail digest --dry-run` shows which digests would be sent to whom, `jobsight mail
    calendar` what was sent, and `jobsight mail pause`, `resume` and `pauses` who gets none of what.
    `jobsight mail bounce` reads a mail that came back.
    """
    if queue is None or log_level is not None:
        from jobsight.cli.log import start_logging

        start_logging(log_level, config)
    waiting = MailQueue(Path(queue or _queue_of(config)).expanduser())
    if list_queue:
        _print_queue(waiting)
        return
    if subject is None or to is None:
        raise UsageError("expected -s SUBJECT and a recipient, as Slurm's MailProg gets them")
    recipients, refused = split_recipients(to)
    for recipient in recipients:
        waiting.put(slurm_request(recipient, subject, os.environ, time.time_ns()))
    if refused or not recipients:
        wrong = (refused or [to])[0]
        raise JobsightError(
            f"no mail is queued for {wrong[:80]!r}; expected a user name or an address, or at most "
            f"{MAX_RECIPIENTS} of them with commas"
        )


def _queue_of(config: str | None) -> str:
    # Imported here: slurmctld may call this command some hundred times a minute, and with --queue
    # it does not need the settings.
    from jobsight.config.load import load_settings

    return load_settings(config).mail.queue


def bounce(*, queue: str | None, config: str | None) -> None:
    """Read a mail that came back (RFC 3464) from standard input, and pause mails to its recipient.

    A mail server runs it for the address of mail.bounces. Any other message is only counted, so
    that no mail server returns it.
    """
    from jobsight.mail.bounce import MAX_BOUNCE, read_bounce

    waiting = MailQueue(Path(queue or _queue_of(config)).expanduser())
    data = sys.stdin.buffer.read(MAX_BOUNCE)
    # A mail server takes it as a failure if the rest is not read.
    while sys.stdin.buffer.read(MAX_BOUNCE):
        pass
    waiting.put_bounce(read_bounce(data), time.time_ns())


def _print_queue(queue: MailQueue) -> None:
    for name, request in queue.requests():
        print(f"{name}  waits   {request.to}  {request.subject}")
    for name, reason in queue.failures():
        print(f"{name}  failed  {reason.strip()}")


#: Commands that are not calls of slurmctld.
SUBCOMMANDS = ("digest", "pause", "resume", "pauses", "calendar", "bounce")


def main(arguments: Sequence[str]) -> int:
    # slurmctld calls MailProg with -s first.
    if arguments and arguments[0] == "digest":
        from jobsight.cli.mail_digest import main as digest

        return digest(arguments[1:])
    if arguments and arguments[0] == "bounce":
        parser = CommandParser("mail bounce", bounce.__doc__)
        _add_queue_options(parser)
        return parser.run(bounce, arguments[1:])
    if arguments and arguments[0] in SUBCOMMANDS:
        from jobsight.cli.mail_pauses import main as pauses

        return pauses(arguments)
    parser = CommandParser("mail", mail.__doc__)
    parser.add_argument("-s", dest="subject", metavar="SUBJECT", help="Subject, as Slurm writes it")
    parser.add_argument("to", nargs="?", metavar="TO", help="User names or addresses, with commas")
    parser.add_argument(
        "--list", dest="list_queue", action="store_true", help="List what waits and what failed"
    )
    _add_queue_options(parser)
    # Logging and settings are imported only where they are needed; see _queue_of.
    return parser.run(mail, arguments, log=lambda options: "own")


def _add_queue_options(parser: CommandParser) -> None:
    parser.add_argument("--queue", metavar="DIRECTORY", help="Directory of the queue")
    add_config_option(parser)
