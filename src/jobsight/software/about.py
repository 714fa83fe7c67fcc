"""All that the store knows of one software, or of one path."""

from __future__ import annotations

import difflib

import msgspec
from sqlalchemy import Connection

from jobsight.errors import JobsightError
from jobsight.software.rules import RuleSet, SoftwareName
from jobsight.store.rollups.catalogue import PathRow, find_path, list_software, paths_of
from jobsight.store.rollups.shares import DAY
from jobsight.store.rollups.usage import Question, UsageRow, usage
from jobsight.text import readable_path


class AboutSoftware(msgspec.Struct):
    """Its versions, who uses them and until when, and the paths that are called so."""

    software: str
    version: str | None
    versions: list[UsageRow]
    users: list[UsageRow]
    paths: list[PathRow]


class AboutPath(msgspec.Struct):
    """What a path is called, which rule says so, and its use."""

    path: str
    #: As stored; None where it is undetermined or was never seen.
    name: SoftwareName | None
    #: By the rules as they stand.
    name_by_rules: SoftwareName | None
    #: File and number of the rule.
    rule: tuple[str, int] | None
    use: PathRow | None


def about_software(
    connection: Connection, name: str, version: str | None, since: int | None, limit: int
) -> AboutSoftware:
    """What is known of a software since a day."""
    question = Question(
        by=("software", "version", "local_version"), software=name, version=version, since=since,
        ignored=True,
    )  # fmt: skip
    versions = usage(connection, question)
    named = list_software(connection, name)
    if not versions and not named:
        raise _unknown(connection, name)
    ids = [row.id for row in named if version in (None, row.version)]
    users = usage(connection, msgspec.structs.replace(question, by=("version", "user", "account")))
    return AboutSoftware(
        name,
        version,
        versions[:limit],
        users[:limit],
        paths_of(connection, ids, limit, None if since is None else since * DAY),
    )


def about_path(connection: Connection, rules: RuleSet, path: bytes) -> AboutPath:
    """What is known of a path."""
    use = find_path(connection, path)
    names = {row.id: row for row in list_software(connection)} if use else {}
    row = names.get(use.software_id or 0) if use else None
    name = None
    if row is not None and row.software is not None:
        texts = (row.software, row.version or "", row.local_version or "")
        name = SoftwareName(*texts, row.user_provided, row.ignored)
    return AboutPath(readable_path(path), name, rules.name(path), rules.rule_of(path), use)


def _unknown(connection: Connection, name: str) -> JobsightError:
    known = sorted({row.software for row in list_software(connection) if row.software})
    lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), lower, n=3)
    hint = f"did you mean {', '.join(lower[one] for one in near)}?" if near else "see the list"
    return JobsightError(f"no software of this store is called {name!r}; {hint}")
