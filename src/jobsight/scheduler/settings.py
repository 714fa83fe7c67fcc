"""How each cluster's Slurm is asked."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=0.01, le=86400)]


class RestSettings(msgspec.Struct, kw_only=True):
    """Where slurmrestd is."""

    #: "unix:/run/slurmrestd.socket" or "http://host:6820".
    url: str | None = None
    #: The user whose token it is.
    user: str | None = None
    #: A file that holds a token; read anew for each question. Else $SLURM_JWT.
    token_file: str | None = None


class SshSettings(msgspec.Struct, kw_only=True):
    """Where Slurm's commands are run, if not on this machine."""

    #: The host on which the commands are run; without it they run here.
    host: str | None = None
    #: The user there; by default as ssh says.
    user: str | None = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 22
    #: The private key that is accepted there; by default as ssh says.
    key_file: str | None = None
    #: Where the host's key must stand; a host that is not known is refused.
    known_hosts: str | None = None


class SchedulerSettings(msgspec.Struct, kw_only=True):
    #: "auto" takes the best that answers.
    source: Literal["auto", "rest", "json", "text", "pyslurm", "onsite", "recorded"] = "auto"
    #: Seconds between two scrapes inside of `jobsight serve`; 0 is never.
    every: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 0.0
    #: Seconds within which Slurm must answer.
    timeout: Seconds = 60.0
    #: Seconds that each scrape looks back behind the last, for records that are booked late.
    overlap: Seconds = 900.0
    #: Seconds of accounting in one question while catching up.
    window: Seconds = 21600.0
    #: Days to look back where the store knows of no scrape before.
    history: Annotated[float, msgspec.Meta(ge=0, le=3660)] = 7.0
    #: Where slurmrestd is.
    rest: RestSettings = msgspec.field(default_factory=RestSettings)
    #: Where the commands are run, if not here.
    ssh: SshSettings = msgspec.field(default_factory=SshSettings)
    #: The Python that has PySlurm.
    pyslurm_python: str = "python3"
    #: The file that the on-site scraper writes; without it the scraper is run, over SSH if set.
    onsite_file: str | None = None
    #: Days for which replies are kept as they came, beside the store; 0 keeps none.
    keep_replies: Annotated[float, msgspec.Meta(ge=0, le=3660)] = 1.0
    #: Bytes that they may take; the oldest go first.
    keep_replies_limit: Annotated[int, msgspec.Meta(ge=0)] = 2**30
    #: A folder of replies that were recorded elsewhere, or kept.
    recorded: str | None = None
