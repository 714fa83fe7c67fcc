"""One result of ``jobsight doctor``."""

from __future__ import annotations

from typing import Literal

import msgspec

#: ``good``: works. ``partly``: works with a restriction. ``missing``: is not there, which may be
#: right. ``fault``: is meant to work and does not; the exit code is then 1.
Verdict = Literal["good", "partly", "missing", "fault"]


class Check(msgspec.Struct, frozen=True):
    """One thing that was tried."""

    name: str
    verdict: Verdict
    #: What was found.
    found: str
    #: What that means.
    therefore: str
    #: What to type or change; empty if nothing has to be done.
    todo: str = ""
