"""What a finding means, when it is reported and what to change: the page of a rule, as Markdown."""

from __future__ import annotations

from jobsight.findings.rule_file import Rule
from jobsight.findings.texts import show


def help_page(rule: Rule) -> str:
    """The page of one rule. Names of other rules are links to NAME.md."""
    lines = [f"# {rule.title}", "", f"`{rule.name}`", "", rule.help.strip(), ""]
    lines += ["## When it is reported", "", "```", rule.condition.text, "```", ""]
    if rule.requires is not None:
        lines += ["It applies to runs with", "", "```", rule.requires.text, "```", ""]
    if rule.parameters:
        lines += ["| parameter | value |", "|---|---|"]
        lines += [f"| `{name}` | {show(p.value, p.unit)} |" for name, p in rule.parameters.items()]
        lines.append("")
    for excuse, because in rule.excuses:
        lines += [f"It is excused with `{excuse.text}`: {because.text}.", ""]
    if rule.explains:
        names = ", ".join(f"[`{name}`]({name}.md)" for name in rule.explains)
        lines += [f"It covers {names} of the same run.", ""]
    for resource, cost in rule.cost.items():
        lines += [f"The cost in {resource.replace('_', ' ')} is `{cost.text}`.", ""]
    lines += ["## What to change", "", "```", *(text.text for text in rule.change), "```"]
    return "\n".join(lines) + "\n"
