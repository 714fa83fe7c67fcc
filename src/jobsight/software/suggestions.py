"""Suggested rules for paths that no rule matches, one for each cluster of paths.

Paths below the same installation or home directory are one cluster, because one rule names them
all. A suggestion is a rule that an administrator can paste and edit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from jobsight.store.rollups.catalogue import PathRow

#: A version with an optional suffix: 1.2, v3, 2026a, 4.1.5-foss-2023a.
_VERSION: Final = re.compile(r"[vr]?\d[\w.]*(?:[-+_].*)?", re.IGNORECASE)
#: The usual name of a source tree: openmpi-4.1.5.
_NAME_VERSION: Final = re.compile(r"[A-Za-z][\w+.-]*?-v?\d+(?:\.\d+)*[\w.+-]*")
#: Directories inside an installation, which do not name it.
_INSIDE: Final = frozenset(
    ("bin", "sbin", "lib", "lib64", "libexec", "share", "build", "src", "exe", "dist", "bin64",
     "release", "debug", "target", "scripts", "usr", "opt", "local", "sw", "apps", "software",
     "tmp", "x86_64", "amd64", "aarch64", "linux", "linux64", "glnxa64", "lnx64")
)  # fmt: skip
#: Directories whose subdirectories belong to a user or a project.
_OWNED: Final = frozenset(
    ("home", "homes", "users", "user", "project", "projects", "proj", "scratch", "work")
)


class Suggestion(msgspec.Struct, kw_only=True):
    """A rule and the paths it would name; a command without a known path has no rule."""

    path_known: bool
    match: str | None
    software: str | None
    version: str | None
    user_provided: bool
    #: The number of paths, and some of them.
    paths: int
    examples: list[str]
    jobs: int
    users: int
    cpu_hours: float
    core_hours: float
    #: The rule in YAML, for the list ``rules:``.
    rule: str | None


class _Shape(msgspec.Struct, frozen=True):
    """The common rule of a cluster of paths."""

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
    """A suggestion for each cluster, by decreasing core hours."""
    clusters: dict[_Shape, list[PathRow]] = {}
    suggestions = []
    for row in rows:
        if row.path_known:
            clusters.setdefault(_shape(row.path), []).append(row)
        else:
            # Any program can use this command name: a rule would name unknown programs.
            suggestions.append(_suggestion(None, [row]))
    suggestions += [_suggestion(shape, members) for shape, members in clusters.items()]
    return sorted(
        suggestions,
        key=lambda row: (-row.core_hours, -row.cpu_hours, row.match or "", row.examples),
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
    """The rule that fits a path; paths with the same rule are one cluster."""
    if not path.startswith("/"):
        # Not the path of a file, but a name given by the kernel.
        return _Shape(f"^{_pattern(path)}$", _template(path))
    directories = path[1:].split("/")[:-1]
    owned = next((index for index, name in enumerate(directories[:3]) if name in _OWNED), None)
    if owned is not None and len(directories) > owned + 1:
        above = _pattern("/".join(directories[: owned + 1]))
        match = f"^/{above}/(?:[^/]+/)+(?P<file>[^/]+)$"
        return _Shape(match, "%(file)s", user_provided=True)
    for index, name in enumerate(directories):
        if _NAME_VERSION.fullmatch(name):
            match = (
                f"^{_above(directories[:index])}/(?P<software>[^/]+?)-(?P<version>v?[0-9][^/]*)/"
            )
            return _Shape(match, "%(software)s", "%(version)s")
        if index and _VERSION.fullmatch(name) and directories[index - 1] not in _INSIDE:
            match = f"^{_above(directories[: index - 1])}/(?P<software>[^/]+)/(?P<version>[^/]+)/"
            return _Shape(match, "%(software)s", "%(version)s")
    return _installation(directories, path)


def _installation(directories: Sequence[str], path: str) -> _Shape:
    """Named by the deepest directory that may carry the software's name."""
    for index in range(len(directories), 0, -1):
        if directories[index - 1] and directories[index - 1] not in _INSIDE:
            return _Shape(f"^{_above(directories[:index])}/", _template(directories[index - 1]))
    return _Shape(f"^{_pattern(path)}$", _template(path.rpartition("/")[2]))


def _above(directories: Sequence[str]) -> str:
    return "".join(f"/{_pattern(directory)}" for directory in directories)


def _pattern(text: str) -> str:
    """A pattern for a text; whatever is not printable ASCII matches any text."""
    pieces = re.split(r"((?:\\x[0-9a-f]{2}|\\\\|[^ -~])+)", text)
    return "".join("[^/]+" if index % 2 else re.escape(piece) for index, piece in enumerate(pieces))


def _template(text: str) -> str:
    return text.replace("%", "%%") or "unknown"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
