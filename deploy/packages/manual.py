"""Man pages and the sample settings, from what the code says: argparse and config/settings.py."""

from __future__ import annotations

import argparse
import contextlib
import io
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest import mock

import msgspec

from docs.generate import setting_fields
from jobsight import __version__
from jobsight.cli import arguments
from jobsight.cli import main as command
from jobsight.config.settings import Settings

#: Environment, files and exit codes, the same for all commands.
COMMON = """.SH ENVIRONMENT
.TP
.B JOBSIGHT_CONFIG
Settings file, as with \\-\\-config.
.PP
Each setting has a variable of its own: JOBSIGHT_ and the key, with levels joined by two
underscores.
.SH FILES
.TP
.I /etc/jobsight/jobsight.toml
Settings of the system; the file that comes with the package names all of them.
.TP
.I ~/.config/jobsight/jobsight.toml
Settings of a user.
.SH EXIT STATUS
0 on success, 1 on a failure, 2 for wrong arguments or settings. An error is one sentence on
standard error.
"""


@dataclass
class Page:
    """What is known of one command."""

    name: str
    summary: str
    description: str = ""
    parser: argparse.ArgumentParser | None = None
    subcommands: list[Page] = field(default_factory=list)


class _Seen(Exception):
    """Ends a command as soon as its parser, or the help of its group, is complete."""

    def __init__(self, parser: argparse.ArgumentParser | None, group: tuple[Any, ...] = ()) -> None:
        super().__init__()
        self.parser = parser
        self.group = group


def pages() -> list[Page]:
    found = [_page([name], each.help) for name, each in command.COMMANDS.items()]
    top = Page("jobsight", "Accounting and monitoring of Slurm jobs")
    top.description = "Each command has a page of its own, such as jobsight-report(1)."
    top.subcommands = [Page(page.name, page.summary) for page in found]
    return [top, *found]


def _page(words: list[str], summary: str) -> Page:
    page = Page(" ".join(["jobsight", *words]), summary)
    seen = _capture([*words, "--help"])
    if seen.parser is not None:
        page.parser = seen.parser
        page.description = seen.parser.description or ""
    else:
        _, page.description, helps = seen.group
        page.subcommands = [_page([*words, name], text) for name, text in helps.items()]
    return page


def _capture(words: list[str]) -> _Seen:
    def run(parser: argparse.ArgumentParser, *_: object, **__: object) -> int:
        raise _Seen(parser)

    def group_help(prog: str, description: str, helps: Mapping[str, str]) -> str:
        raise _Seen(None, (prog, description, helps))

    with (
        mock.patch.object(arguments.CommandParser, "run", run),
        mock.patch.object(arguments, "group_help", group_help),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            command.main(words)
        except _Seen as seen:
            return seen
    raise AssertionError(f"jobsight {' '.join(words)} has no parser")


def man_page(page: Page, epoch: int) -> str:
    """One page in the language of man(7)."""
    title = page.name.replace(" ", "-")
    date = time.strftime("%Y-%m-%d", time.gmtime(epoch))
    lines = [f'.TH {title.upper()} 1 "{date}" "jobsight {__version__}" "User Commands"']
    # Options and paths stay whole, and lines are not stretched for it.
    lines += [".nh", ".ad l", ".SH NAME", f"{_text(title)} \\- {_text(page.summary)}"]
    lines += [".SH SYNOPSIS", *_synopsis(page)]
    if page.description:
        lines += [".SH DESCRIPTION", *_paragraphs(page.description)]
    if page.parser is not None:
        lines += [".SH OPTIONS", *_options(page.parser)]
    if page.subcommands:
        lines.append(".SH COMMANDS")
        for sub in page.subcommands:
            if sub.parser is None:
                lines += [".TP", f".B {_text(sub.name)}", _text(sub.summary)]
                continue
            lines += [f".SS {_text(sub.name)}", *_synopsis(sub), ".PP"]
            lines += [*_paragraphs(sub.description), *_options(sub.parser)]
    lines += COMMON.rstrip("\n").splitlines()
    lines += [".SH SEE ALSO", ".BR jobsight (1)"]
    return "\n".join(lines) + "\n"


def _synopsis(page: Page) -> list[str]:
    if page.parser is None:
        return [f"\\fB{_text(page.name)}\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]"]
    usage = " ".join(page.parser.format_usage().removeprefix("usage: ").split())
    rest = usage.removeprefix(page.name).strip()
    return [f"\\fB{_text(page.name)}\\fR {_text(rest)}".rstrip()]


def _options(parser: argparse.ArgumentParser) -> list[str]:
    lines = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        metavar = action.metavar or action.dest.upper()
        value = "" if action.nargs == 0 else f" \\fI{_text(str(metavar))}\\fR"
        if action.option_strings:
            names = ", ".join(f"\\fB{_text(name)}\\fR" for name in action.option_strings)
            heading = names + value
        else:
            heading = value.strip()
        lines += [".TP", heading, _text((action.help or "") % _Values(action, parser.prog))]
    return lines


class _Values(dict[str, object]):
    """What argparse puts into a help text: %(default)s and %(prog)s."""

    def __init__(self, action: argparse.Action, prog: str) -> None:
        super().__init__(vars(action), prog=prog)


def _paragraphs(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in text.strip().split("\n\n"):
        if lines:
            lines.append(".PP")
        lines.append(_text(" ".join(paragraph.split())))
    return lines


def _text(text: str) -> str:
    """Text as roff: no character is a command. A hyphen stays the character that is typed."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    escaped = escaped.replace("~", "\\(ti").replace("^", "\\(ha").replace("'", "\\(aq")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


def write_man_pages(directory: Path, epoch: int) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for page in pages():
        file = directory / f"{page.name.replace(' ', '-')}.1"
        file.write_text(man_page(page, epoch))
        written.append(file)
    return written


# The sample settings.

HEADER = """## Settings of jobsight, each with its default, or with an example where there is none.
## A line of text begins with two hash signs. To set a value, remove the one hash sign before it,
## and the one before the [table] that it belongs to. `jobsight doctor` checks the file.
"""


#: Settings that exclude the one before them: shown as text, so that the rest loads together.
_ALTERNATIVES = {"access.ldap.search_base": "ou=people,dc=example,dc=org"}
#: Defaults that depend on the machine that makes the file, or on the user.
_EXAMPLES = {
    "cluster": "alpha",
    "access.ldap.bind_template": "uid={user},ou=people,dc=example,dc=org",
    "access.ldap.url": "ldaps://ldap.example.org",
    "agent.node": "node1",
    "agent.run_directory": "/run/jobsight",
    "agent.spool": "/var/spool/jobsight",
    "store.location": "/var/lib/jobsight/store.db",
}


def sample_settings() -> str:
    """Every setting, commented out; without the single hash signs it is a file that loads."""
    lines = [HEADER.rstrip("\n")]
    table: tuple[str, ...] = ()
    fields = sorted(setting_fields(Settings, ()), key=lambda each: len(each[0]) > 1)
    for path, setting, comment in _by_table(fields):
        key = ".".join(path)
        value = _EXAMPLES[key] if key in _EXAMPLES else _value(setting)
        lines.append("")
        if path[:-1] != table:
            table = path[:-1]
            lines += [f"#[{'.'.join(table)}]", ""]
        lines += [f"## {line}" for line in textwrap.wrap(comment, 95)]
        if key in _ALTERNATIVES:
            lines.append(f"## Or: {path[-1]} = {_toml(_ALTERNATIVES[key])}")
        else:
            lines.append(f"#{path[-1]} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _by_table(fields: list[tuple[tuple[str, ...], Any, str]]) -> Iterator[Any]:
    """Keys of one table together: TOML allows a table only once."""
    tables: dict[tuple[str, ...], list[Any]] = {}
    for each in fields:
        tables.setdefault(each[0][:-1], []).append(each)
    for members in tables.values():
        yield from members


def _value(setting: Any) -> object:
    value = setting.default
    if value is msgspec.NODEFAULT:
        value = setting.default_factory()
    return _example(setting.name, setting.type) if value is None else value


def _example(name: str, kind: Any) -> object:
    """A value of the type, for a setting without a default."""
    options = [each for each in get_args(kind) if each is not type(None)] or [kind]
    first = options[0]
    if get_origin(first) is Literal:
        return get_args(first)[0]
    base = get_args(first)[0] if get_args(first) else first
    if base in (int, float):
        return base(1)
    if name in ("url", "issuer") or name.endswith("_url"):
        return "https://jobsight.example.org"
    return f"/etc/jobsight/{name}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in value.items()) + " }"
        )
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
