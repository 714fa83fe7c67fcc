"""``jobsight findings help``: what a finding means, how it is computed and what to change."""

from __future__ import annotations

from jobsight.cli.arguments import CommandParser, add_config_option
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError


def explain_kinds(*, kinds: list[str], config: str | None) -> None:
    """Show what findings mean, when they are reported and what to change, by the rules of the
    settings. A server has the same as its pages /findings/KIND."""
    settings = load_settings(config)
    # Imported here: it loads CEL.
    from jobsight.findings.conditions import nearest
    from jobsight.findings.engine import RuleSet
    from jobsight.findings.help_page import help_page

    rules = RuleSet.of_settings(settings.findings).rules
    for kind in kinds:
        if kind not in rules:
            raise ConfigError(f"no rule is called {kind[:100]!r}; {nearest(kind, rules)}")
    print("\n".join(help_page(rules[kind]) for kind in dict.fromkeys(kinds)), end="")


def add_help_options(parser: CommandParser) -> None:
    parser.add_argument(
        "kinds", metavar="KIND", nargs="+", help="Name of a finding, such as cpu-cores-idle"
    )
    add_config_option(parser)
