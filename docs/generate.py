"""Writes the parts of the documents that the code itself says best; a test fails when they are old.

A part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import yaml

from jobsight.archive.schema import field_table
from jobsight.cli import main as command
from jobsight.cli.compat import collector, jobs_exporter
from jobsight.config.settings import Settings
from jobsight.findings.engine import shipped_files
from jobsight.findings.help_page import help_page
from jobsight.findings.rule_file import Rule, read_rules
from jobsight.findings.vocabulary import FIGURES
from jobsight.prometheus.names import SERVER

DOCS = Path(__file__).parent
#: What a default that depends on the machine or the user is called in the table.
DEFAULTS = {
    "cluster": "ClusterName of `slurm.conf` or as Slurm reports it; else the host's short name",
    "store.location": "`/var/lib/jobsight/store.db`; as a user `~/.local/share/jobsight/store.db`",
    "server.token_file": "`token` next to the store",
    "server.url": "the server of this machine",
    "agent.node": "the host's short name",
    "agent.spool": "`/var/spool/jobsight`; as a user `~/.local/share/jobsight/spool`",
    "agent.run_directory": "`/run/jobsight`; as a user `$XDG_RUNTIME_DIR/jobsight`",
}


def settings() -> str:
    """Every setting: key, type, default, meaning, environment variable."""
    lines = ["| key | type | default | meaning | variable |", "|---|---|---|---|---|"]
    for path, field, comment in setting_fields(Settings, ()):
        key = ".".join(path)
        default = DEFAULTS.get(key) or _default(field)
        variable = "JOBSIGHT_" + "__".join(path).upper()
        lines.append(f"| `{key}` | {_type(field.type)} | {default} | {comment} | `{variable}` |")
    return "\n".join(lines)


def setting_fields(
    struct: type[msgspec.Struct], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    comments = {
        name: " ".join(text.replace("#:", "").split())
        for kind in reversed(struct.__mro__)
        if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct
        for text, name in re.findall(r"((?: +#: .*\n)*) +(\w+):", inspect.getsource(kind))
    }
    for field in msgspec.structs.fields(struct):
        here = (*path, field.name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from setting_fields(field.type, here)
        else:
            yield here, field, comments.get(field.name, "")


def _default(field: Any) -> str:
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return ", ".join(f"`{part}`" for part in value) or "none"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _type(kind: Any) -> str:
    names = {str: "text", int: "integer", float: "number", bool: "true or false"}
    if kind in names:
        return names[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"{kind.__name__.removesuffix('Settings').lower()} settings"
    arguments = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is dict:
        return f"table of {_type(arguments[1])}"
    if get_origin(kind) is list:
        return f"list of {_type(arguments[0])}"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{part}`" for part in arguments)
    if arguments and isinstance(arguments[-1], msgspec.Meta):
        limits = arguments[-1]
        bounds = [(word, bound) for word, bound in (("from", limits.ge), ("to", limits.le))]
        said = [f"{word} {bound:,}" for word, bound in bounds if bound is not None]
        return " ".join([_type(arguments[0]), *said])
    return " or ".join(_type(part) for part in arguments) or str(kind)


def helps(name: str) -> str:
    """What ``--help`` of a command prints."""
    shown = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            if name == "sams-collector":
                collector.main(["--help"])
            elif name == "jobs-exporter":
                jobs_exporter.main(["--help"])
            else:
                command.main([*name.split()[1:], "--help"])
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
    return f"```\n{shown.getvalue().strip()}\n```"


def others() -> str:
    """The commands that have no section of their own yet."""
    text = (DOCS / "commands.md").read_text()
    names = [f"jobsight {name}" for name in command.COMMANDS]
    missing = [name for name in names if f"<!-- generated: {name} -->" not in text]
    return "\n\n".join(f"## {name}\n\n{helps(name)}" for name in missing)


def shipped_rules() -> list[Rule]:
    """The rules of jobsight, in the order of their files."""
    return [rule for file in shipped_files() for rule in read_rules(file).rules]


def findings() -> str:
    """Every finding with its title, and where it is described."""
    lines = ["| finding | what it says | severity | of |", "|---|---|---|---|"]
    for rule in shipped_rules():
        severity = "/".join(dict.fromkeys(severity for severity, _ in rule.severities))
        runs = {"ended": "ended runs", "running": "running ones", "both": "both"}[rule.when]
        staff = ", for staff" if rule.audience == "staff" else ""
        link = f"[`{rule.name}`](findings/{rule.name}.md)"
        lines.append(f"| {link} | {rule.title} | {severity} | {runs}{staff} |")
    return "\n".join(lines)


def figures() -> str:
    """Every figure that a condition can use."""
    lines = ["| figure | unit | group | meaning |", "|---|---|---|---|"]
    lines += [f"| `{f.name}` | {f.unit} | {f.group} | {f.help} |" for f in FIGURES.values()]
    return "\n".join(lines)


def finding_page(rule: Rule) -> str:
    """The page of one finding."""
    return f"{help_page(rule)}\n[All findings](../findings.md)\n"


def alerts() -> str:
    """Every alert of the shipped Prometheus rules: when, what it means, what to do."""
    file = DOCS.parent / "deploy" / "prometheus" / "jobsight-rules.yml"
    lines = ["| alert | severity | what has happened | what to do |", "|---|---|---|---|"]
    for group in yaml.safe_load(file.read_text())["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                said = rule["annotations"]
                summary = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"*\1*", said["summary"])
                summary = re.sub(r"\{\{ \$value.*?\}\}", "*N*", summary)
                todo = said.get("description", "See the findings of the job.")
                severity = rule["labels"]["severity"]
                lines.append(f"| `{rule['alert']}` | {severity} | {summary} | {todo} |")
    return "\n".join(lines)


def server_families() -> str:
    """The server's own families at /metrics."""
    lines = ["| family | labels | meaning |", "|---|---|---|"]
    for family in SERVER.values():
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.name}` | {labels} | {family.help} |")
    return "\n".join(lines)


def part(name: str) -> str:
    if name.startswith("archive "):
        return field_table(name.removeprefix("archive "))
    parts = {"settings": settings, "others": others, "findings": findings, "figures": figures}
    parts |= {"alerts": alerts, "server families": server_families}
    return parts[name]() if name in parts else helps(name)


def renewed(text: str) -> str:
    """A document with its generated parts as the code says them now."""
    return re.sub(
        r"(<!-- generated: ([a-z -]+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{part(found[2])}\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    for file in sorted(DOCS.glob("*.md")):
        text = file.read_text()
        made = renewed(text)
        if made != text:
            file.write_text(made)
            print(f"{file.name}: written")
    pages = {f"{rule.name}.md": finding_page(rule) for rule in shipped_rules()}
    (DOCS / "findings").mkdir(exist_ok=True)
    for old in (DOCS / "findings").glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        (DOCS / "findings" / name).write_text(text)


if __name__ == "__main__":
    main()
