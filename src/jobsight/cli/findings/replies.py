"""``jobsight findings ack``, ``not-helpful`` and ``reopen``: what people reply to findings."""

from __future__ import annotations

import time
from typing import Literal

from jobsight.cli.arguments import CommandParser, add_store_options, existing_store
from jobsight.cli.report import parse_run, user_name
from jobsight.config.load import load_settings


def ack(*, run: str, kind: str, store: str | None, config: str | None) -> None:
    """Acknowledge a finding: it is known, and lists leave it out."""
    _reply(run, kind, "acknowledged", store, config)


def not_helpful(*, run: str, kind: str, store: str | None, config: str | None) -> None:
    """Say that a finding does not help; the rate by rule is in the summary."""
    _reply(run, kind, "not helpful", store, config)


def reopen(*, run: str, kind: str, store: str | None, config: str | None) -> None:
    """Take a reply to a finding back."""
    _reply(run, kind, "open", store, config)


def _reply(
    run: str,
    kind: str,
    state: Literal["open", "acknowledged", "not helpful"],
    store: str | None,
    config: str | None,
) -> None:
    location = existing_store(store or load_settings(config).store.location)
    reference = parse_run(run)
    from jobsight.store.findings.write import set_reply
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        found = opened.find(reference)
        set_reply(opened.database, found.id, kind, state, user_name(), time.time_ns())
    print(f"{found.run} {kind}: {state}")


def add_reply_options(parser: CommandParser) -> None:
    parser.add_argument("run", metavar="RUN", help="12, 62_3, 88+1 or cluster:12:start")
    parser.add_argument("kind", metavar="KIND", help="The name of the rule")
    add_store_options(parser)
