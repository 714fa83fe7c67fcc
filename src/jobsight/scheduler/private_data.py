"""Slurm's ``PrivateData``: whether a user sees the jobs of others.

Slurm does not refuse the question of an ordinary user. It answers with the own jobs only, which
looks like a cluster without jobs.
"""

from __future__ import annotations

import re
from typing import Final

from jobsight.scheduler.sources.commands import StreamRunner

#: The words of PrivateData that hide jobs or their accounting.
_HIDES: Final = frozenset({"jobs", "usage"})
_MAY_SEE_ALL: Final = frozenset({"operator", "administrator"})


def hidden_from(user: str, run: StreamRunner, timeout: float) -> tuple[str, ...]:
    """What PrivateData of slurm.conf hides from a user; raises SourceError."""
    config = b"".join(run(["scontrol", "show", "config"], timeout)).decode(errors="replace")
    hidden = tuple(word for word in _setting(config, "PrivateData").split(",") if word in _HIDES)
    slurm_user = _setting(config, "SlurmUser").partition("(")[0]
    if not hidden or user in ("root", slurm_user):
        return ()
    columns = ["show", "user", f"name={user}", "format=adminlevel"]
    answer = b"".join(run(["sacctmgr", "--noheader", "--parsable2", *columns], timeout))
    levels = answer.decode(errors="replace").lower().split()
    return () if _MAY_SEE_ALL.intersection(levels) else hidden


def _setting(config: str, name: str) -> str:
    found = re.search(rf"^{name}\s*=\s*(.*?)\s*$", config, re.MULTILINE)
    return found[1] if found else ""
