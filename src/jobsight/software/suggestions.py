"""Rules that would name paths which no rule knows yet: a suggestion for each cluster of them.

Paths below the same folder of installations, or of the same home, are one cluster: one rule names
them all. What comes out is a rule that a person can paste, look at and change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from jobsight.store.rollups.catalogue import PathRow

#: A version, perhaps with what follows it: 1.2, v3, 2026a, 4.1.5-foss-2023a.
_VERSION: Final = re.compile(r"[vr]?\d[\w.]*(?:[-+_].*)?", re.IGNORECASE)
#: As source trees are called: openmpi-4.1.5.
_NAME_VERSION: Final = re.compile(r"[A-Za-z][\w+.-]*?-v?\d+(?:\.\d+)*[\w.+-]*")
#: Folders inside an installation, which do not name it.
_INSIDE: Final = frozenset(
    ("bin", "sbin", "lib", "lib64", "libexec", "share", "build", "src", "exe", "dist", "bin64",
     "release", "debug", "target", "scripts", "usr", "opt", "local", "sw", "apps", "software",
     "tmp", "x86_64", "amd64", "aarch64", "linux", "linux64", "glnxa64", "lnx64")
)  # fmt: skip
#: Folders in which the next one is a person's or a project's.
_OWNED: Final = frozenset(
    ("home", "homes", "users", "user", "project", "projects", "proj", "scratch", "work")
)


class Suggestion(msgspec.Struct, kw_only=True):
    """A rule, and what it would name; a command whose path is not known has none."""

    path_known: bool
    match: str | None
    software: str | None
    version: str | None
    user_provided: bool
    #: How many paths, and some of them.
    paths: int
    examples: list[str]
    jobs: int
    users: int
    cpu_hours: float
    core_hours: float
    #: The rule itself, to be put under ``rules:``.
    rule: str | None


class _Shape(msgspec.Struct, frozen=True):
    """What the paths of a cluster have in common."""

    match: str
    software: str
    version: str = ""
    user_provided: bool = False

    def rule(self) -> str:
        lines = [f"- match: {_quoted(self.match)}", f"  software: {_quoted(self.software)}"]
        lines += [f"  version: {_quoted(self.version)}", "  versionstr: ''"]
        lines += ["  user_provided: true"] * self.user_provided
        return "\n".join(lines)


def suggest(rows: Sequence[PathRow]) -> list[Suggestion]:
    """A suggestion for each cluster, the most core hours first."""
    clusters: dict[_Shape, list[PathRow]] = {}
    found = []
    for row in rows:
        if row.path_known:
            clusters.setdefault(_shape(row.path), []).append(row)
        else:
            # Any program can call itself so: a rule would name what nobody has seen.
            found.append(_suggestion(None, [row]))
    found += [_suggestion(shape, members) for shape, members in clusters.items()]
    return sorted(
        found,
        key=lambda one: (-one.core_hours, -one.cpu_hours, one.match or "", one.examples),
    )


def _suggestion(shape: _Shape | None, members: Sequence[PathRow]) -> Suggestion:
    return Suggestion(
        path_known=shape is not None,
        match=shape.match if shape else None,
        software=shape.software if shape else None,
        version=shape.version if shape else None,
        user_provided=shape is not None and shape.user_provided,
        paths=len(members),
        examples=[row.path for row in members[:3]],
        jobs=sum(row.jobs for row in members),
        users=max(row.users for row in members),
        cpu_hours=sum(row.cpu_hours for row in members),
        core_hours=sum(row.core_hours for row in members),
        rule=shape.rule() if shape else None,
    )


def _shape(path: str) -> _Shape:
    """The rule that a path suggests; paths that suggest the same are one cluster."""
    if not path.startswith("/"):
        # Not the path of a file, but what the kernel says in its place.
        return _Shape(f"^{_pattern(path)}$", _template(path))
    folders = path[1:].split("/")[:-1]
    owned = next((place for place, name in enumerate(folders[:3]) if name in _OWNED), None)
    if owned is not None and len(folders) > owned + 1:
        above = _pattern("/".join(folders[: owned + 1]))
        match = f"^/{above}/(?:[^/]+/)+(?P<file>[^/]+)$"
        return _Shape(match, "%(file)s", user_provided=True)
    for place, name in enumerate(folders):
        if _NAME_VERSION.fullmatch(name):
            match = f"^{_above(folders[:place])}/(?P<software>[^/]+?)-(?P<version>v?[0-9][^/]*)/"
            return _Shape(match, "%(software)s", "%(version)s")
        if place and _VERSION.fullmatch(name) and folders[place - 1] not in _INSIDE:
            match = f"^{_above(folders[: place - 1])}/(?P<software>[^/]+)/(?P<version>[^/]+)/"
            return _Shape(match, "%(software)s", "%(version)s")
    return _installation(folders, path)


def _installation(folders: Sequence[str], path: str) -> _Shape:
    """By the deepest folder that could be called as the software."""
    for place in range(len(folders), 0, -1):
        if folders[place - 1] and folders[place - 1] not in _INSIDE:
            return _Shape(f"^{_above(folders[:place])}/", _template(folders[place - 1]))
    return _Shape(f"^{_pattern(path)}$", _template(path.rpartition("/")[2]))


def _above(folders: Sequence[str]) -> str:
    return "".join(f"/{_pattern(folder)}" for folder in folders)


def _pattern(text: str) -> str:
    """A pattern for a text; what does not print as plain ASCII is any text."""
    pieces = re.split(r"((?:\\x[0-9a-f]{2}|\\\\|[^ -~])+)", text)
    return "".join("[^/]+" if place % 2 else re.escape(piece) for place, piece in enumerate(pieces))


def _template(text: str) -> str:
    return text.replace("%", "%%") or "unknown"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
