"""Source ``json``: sacct, squeue, sinfo and scontrol with ``--json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobsight.scheduler.adapters.json import (
    adapt_jobs,
    adapt_nodes,
    adapt_partitions,
    decode_json,
    release_of,
    stream_jobs,
)
from jobsight.scheduler.adapters.policy import Policy
from jobsight.scheduler.records import Jobs, NodeInfo, Nodes, PartitionInfo, Partitions, SourceError
from jobsight.scheduler.sources.commands import StreamRunner, stream_command, window_options
from jobsight.scheduler.sources.replies import Replies
from jobsight.scheduler.sources.text import query_cluster_name, query_policy

#: The first release with correct exit codes of failed jobs.
_FIRST_CORRECT_RELEASE = (23, 2)


class JsonSource:
    """``--json``, from 21.08 on."""

    name = "json"
    whole = False

    def __init__(
        self,
        cluster: str,
        *,
        timeout: float = 60.0,
        run: StreamRunner = stream_command,
        replies: Replies | None = None,
    ) -> None:
        self._cluster = cluster
        self._timeout = timeout
        self._run = run
        self._replies = replies

    def probe(self) -> str:
        """Queries squeue, which has JSON in every release that supports it."""
        return f"squeue --json answers, Slurm {self._release() or 'of an unnamed release'}"

    def check_exit_codes(self) -> None:
        """Raise if this release has exit code 0 for every failed job (21.08 and 22.05)."""
        check_release(self._release(), "sacct --json")

    def _release(self) -> str:
        document = self._query("squeue", "--json", "--user=root")
        adapt_jobs(document)
        return release_of(document) or ""

    def cluster_name(self) -> str | None:
        return query_cluster_name(self._run, self._timeout)

    def queue(self) -> Jobs:
        return self._jobs("squeue", "--json")

    def accounting(self, since: int, until: int) -> Jobs:
        return self._accounting("--allusers", *window_options(since, until))

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        return self._accounting(f"--jobs={','.join(map(str, job_ids))}")

    def _accounting(self, *options: str) -> Jobs:
        return self._jobs("sacct", "--json", "--duplicates", *options)

    def _jobs(self, *command: str) -> Jobs:
        chunks = self._run(command, self._timeout)
        if self._replies is not None:
            chunks = self._replies.keep(command[0], chunks)
        return stream_jobs(chunks, f"{command[0]} --json", self._cluster, command[0])

    def nodes(self) -> Nodes:
        try:
            return adapt_nodes(self._query("scontrol", "show", "nodes", "--json"), self._cluster)
        except SourceError:
            # Up to 22.05 scontrol has no JSON, and that of sinfo is the list of nodes.
            return adapt_nodes(self._query("sinfo", "--json"), self._cluster)

    def partitions(self) -> Partitions:
        try:
            document = self._query("scontrol", "show", "partitions", "--json")
        except SourceError:
            return partitions_of(self.nodes())
        return adapt_partitions(document, self._cluster)

    def policy(self) -> Policy:
        return query_policy(self._cluster, self._run, self._timeout)

    def _query(self, *command: str) -> Any:
        return decode_json(b"".join(self._run(command, self._timeout)), f"{command[0]} --json")


def check_release(release: str, what: str) -> None:
    """Raise if the JSON of the accounting of this release has no exit codes."""
    parts = release.split(".")[:2]
    if len(parts) == 2 and all(part.isdigit() for part in parts):
        year, month = map(int, parts)
        if (year, month) < _FIRST_CORRECT_RELEASE:
            raise SourceError(f"{what} of {year}.{month:02d} lacks exit codes")


def partitions_of(nodes: Nodes) -> Partitions:
    """Partitions as far as they are known from their nodes."""
    members: dict[str, list[NodeInfo]] = {}
    for node in nodes.records:
        for name in node.partitions:
            members.setdefault(name, []).append(node)
    records = [
        PartitionInfo(
            cluster=part[0].cluster,
            name=name,
            nodes=tuple(node.name for node in part),
            node_count=len(part),
            cpus=sum(node.cpus or 0 for node in part),
        )
        for name, part in members.items()
    ]
    return Partitions(records=records, problems=nodes.problems, release=nodes.release)
