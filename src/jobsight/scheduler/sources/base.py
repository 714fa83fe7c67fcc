"""What every source can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobsight.scheduler.policy import Policy
from jobsight.scheduler.records import Jobs, Nodes, Partitions


class Source(Protocol):
    """One way to ask one cluster. Each method raises :class:`SourceError` where no answer comes
    and :class:`AdaptError` where it is not understood."""

    #: "json", "text", "rest", "recorded".
    name: str
    #: Its accounting costs the same however long the time that is asked for, so it is asked once.
    whole: bool

    def probe(self) -> str:
        """Ask the least there is; the words say what answered."""
        ...

    def queue(self) -> Jobs:
        """The controller's jobs: those that wait, run, or ended within some minutes."""
        ...

    def accounting(self, since: int, until: int) -> Jobs:
        """The accounting's jobs that were alive or ended between two times, each run by itself."""
        ...

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        """The accounting's runs of these jobs, however old."""
        ...

    def nodes(self) -> Nodes: ...

    def partitions(self) -> Partitions: ...

    def policy(self) -> Policy:
        """Reservations, QOS and associations; empty where a source cannot tell them."""
        ...
