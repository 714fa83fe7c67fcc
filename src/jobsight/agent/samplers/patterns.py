"""Names with ``%(jobid)s`` and globs in the settings, expanded again while the job runs."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from typing import Final

from jobsight.agent.view import JobView
from jobsight.errors import ConfigError

#: A glob over a folder that users may write to must not make columns without end.
LIMIT: Final = 64


def check(where: str, key: str, patterns: Iterable[str]) -> None:
    """Refuse a pattern that could not be filled in."""
    for pattern in patterns:
        try:
            pattern % {"jobid": 1, "node": "node"}
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{where}: {key} has {pattern!r}; only %(jobid)s and %(node)s can stand in it, "
                "and a percent sign is written %%"
            ) from None


def fill(pattern: str, view: JobView) -> str:
    """A pattern for one job; what is filled in is taken as it is, never as a glob."""
    return pattern % {
        "jobid": view.sighting.job_id,
        "node": glob.escape(view.sighting.node),
    }


def expand(patterns: Iterable[str], view: JobView) -> list[str]:
    """The paths there are now; a pattern without a glob stands for itself, there or not."""
    found: dict[str, None] = {}
    for pattern in patterns:
        text = fill(pattern, view)
        names = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
        found.update(dict.fromkeys(names))
    return list(found)[:LIMIT]
