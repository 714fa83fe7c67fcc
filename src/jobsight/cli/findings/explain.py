"""``jobsight explain``: what every rule says about a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from jobsight.cli.arguments import (
    CommandParser,
    add_json_option,
    add_run_argument,
    add_store_options,
    existing_store,
)
from jobsight.cli.output import write_json
from jobsight.cli.report import job_of_this_shell, parse_run
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError
from jobsight.text import readable_text
from jobsight.transport.login import read_login

if TYPE_CHECKING:
    from jobsight.findings.explain import Explanation
    from jobsight.findings.finding import Verdict


def explain(
    *, run: str | None, all_rules: bool, json: bool, store: str | None, config: str | None
) -> None:
    """Show what every rule says about a run: found, not found with the figures, or withheld
    because of what was not measured.

    The run is judged now; nothing is stored.
    """
    settings = load_settings(config)
    wanted = run or job_of_this_shell()
    if wanted is None:
        raise ConfigError("RUN: expected a job such as 12, 62_3 or cluster:12:start")
    reference = parse_run(wanted)
    login = None if store else read_login()
    if login is not None:
        from jobsight.findings.explain import Explanation

        _show(login.get(f"/api/v1/jobs/{quote(wanted)}/explain", Explanation), all_rules, json)
        return
    location = existing_store(store or settings.store.location)
    from jobsight.archive.reader import attach
    from jobsight.findings.explain import explain_run
    from jobsight.findings.service import FindingsService
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        attach(opened, settings.archive)
        judge = FindingsService(opened, settings.findings).judge()
        explanation = explain_run(opened, judge, opened.find(reference), time.time_ns())
    _show(explanation, all_rules, json)


def _show(explanation: Explanation, all_rules: bool, as_json: bool) -> None:
    if as_json:
        write_json(explanation)
        return
    for line in lines(explanation, all_rules=all_rules):
        print(line)


def lines(explanation: Explanation, *, all_rules: bool) -> list[str]:
    """The explanation as text, in groups by outcome."""
    texts = [explanation.run]
    outcomes = dict.fromkeys(verdict.outcome for verdict in explanation.verdicts)
    for outcome in outcomes:
        group = [each for each in explanation.verdicts if each.outcome == outcome]
        texts += ["", f"{outcome} ({len(group)})"]
        if outcome == "not applicable" and not all_rules:
            texts.append("  --all lists these rules")
            continue
        for verdict in group:
            texts += _verdict(verdict)
    return texts


def _verdict(verdict: Verdict) -> list[str]:
    finding = verdict.finding
    texts = [f"  {verdict.kind}"]
    if finding is not None and verdict.outcome == "fired":
        texts[0] += f" ({finding.severity}): {readable_text(finding.title)}"
        texts.append(f"    {readable_text(finding.text)}")
        if finding.change:
            texts.append(f"    {readable_text(finding.change)}")
    if verdict.reason:
        texts.append(f"    {readable_text(verdict.reason)}")
    if verdict.figures:
        pairs = (f"{name} = {readable_text(value)}" for name, value in verdict.figures.items())
        texts.append(f"    {', '.join(pairs)}")
    return texts


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("explain", explain.__doc__)
    add_run_argument(parser)
    parser.add_argument(
        "--all", dest="all_rules", action="store_true", help="Also rules that are for other jobs"
    )
    add_json_option(parser)
    add_store_options(parser)
    return parser.run(explain, arguments)
