"""Source ``text``: columns of sacct, squeue and sinfo, which every release has.

:func:`query_policy` reads reservations, QOS and associations from the administrative commands,
:func:`query_cluster_name` the name of the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jobsight.scheduler.adapters import squeue
from jobsight.scheduler.adapters.policy import (
    Policy,
    add_shares,
    parse_columns,
    parse_scontrol,
    read_associations,
    read_coordinators,
    read_qos,
    read_reservations,
)
from jobsight.scheduler.adapters.sacct import choose_columns, jobs_from_rows
from jobsight.scheduler.adapters.sinfo import (
    NODE_COLUMNS,
    PARTITION_COLUMNS,
    nodes_from_rows,
    partitions_from_rows,
)
from jobsight.scheduler.records import (
    AdaptError,
    Jobs,
    Nodes,
    Partitions,
    SourceError,
    join_jobs,
)
from jobsight.scheduler.sources.commands import (
    StreamRunner,
    iterate_records,
    new_delimiter,
    split_records,
    stream_command,
    window_options,
)
from jobsight.scheduler.sources.replies import Layout, Replies
from jobsight.util.batching import batched

#: Ids in one command, whose length is limited.
_MAX_IDS = 500


class TextSource:
    """Counted columns, with a delimiter that is new in every call."""

    name = "text"
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
        self._columns: tuple[str, ...] | None = None

    def probe(self) -> str:
        version = self._output(["sacct", "--version"], self._timeout).decode("utf-8", "replace")
        columns = len(self._sacct_columns())
        self._output(["squeue", "--noheader", "--user=root", "--format=%i"], self._timeout)
        return f"sacct and squeue answer, {version.strip()}, {columns} columns"

    def cluster_name(self) -> str | None:
        return query_cluster_name(self._run, self._timeout)

    def queue(self) -> Jobs:
        rows = squeue.queue_rows(["--states=all"], self._timeout, self._output)
        return squeue.jobs_from_rows(rows, self._cluster, self.name)

    def accounting(self, since: int, until: int) -> Jobs:
        return self._accounting("--allusers", *window_options(since, until))

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        return join_jobs(
            self._accounting(f"--jobs={','.join(map(str, ids))}")
            for ids in batched(job_ids, _MAX_IDS)
        )

    def _accounting(self, *options: str) -> Jobs:
        columns = self._sacct_columns()
        delimiter = new_delimiter()
        # parsable, not parsable2: the last field ends with the delimiter, too.
        command = [
            "sacct", "--parsable", "--noheader", "--noconvert", "--duplicates",
            f"--delimiter={delimiter}", f"--format={','.join(columns)}", *options,
        ]  # fmt: skip
        chunks = self._run(command, self._timeout)
        if self._replies is not None:
            chunks = self._replies.keep("sacct", chunks, Layout(columns, delimiter))
        rows = iterate_records(chunks, delimiter, len(columns), "sacct")
        named = (dict(zip(columns, row, strict=True)) for row in rows)
        return jobs_from_rows(named, self._cluster, "sacct")

    def _output(self, command: Sequence[str], timeout: float) -> bytes:
        return b"".join(self._run(command, timeout))

    def _sacct_columns(self) -> tuple[str, ...]:
        if self._columns is None:
            listed = self._output(["sacct", "--helpformat"], self._timeout)
            self._columns = choose_columns(listed.decode("utf-8", "replace").split())
        return self._columns

    def nodes(self) -> Nodes:
        rows = self._sinfo(NODE_COLUMNS, "--Node")
        return nodes_from_rows(rows, self._cluster)

    def partitions(self) -> Partitions:
        return partitions_from_rows(self._sinfo(PARTITION_COLUMNS), self._cluster)

    def policy(self) -> Policy:
        return query_policy(self._cluster, self._run, self._timeout)

    def _sinfo(self, columns: Sequence[str], *options: str) -> list[dict[str, str]]:
        """The rows of sinfo; columns that this release does not have are empty."""
        wanted = list(columns)
        while True:
            delimiter = new_delimiter()
            layout = ",".join(f"{column}:{delimiter}" for column in wanted)
            command = ["sinfo", "--noheader", *options, f"--Format={layout}"]
            try:
                output = self._output(command, self._timeout)
            except SourceError as error:
                refused = [name for name in wanted[1:] if name.lower() in str(error).lower()]
                if "format" not in str(error).lower() or not refused:
                    raise
                wanted = [name for name in wanted if name not in refused]
                continue
            rows = split_records(output, delimiter, len(wanted), "sinfo")
            if output.strip() and not rows:
                raise AdaptError("sinfo gave text without any of the requested columns")
            empty = dict.fromkeys(columns, "")
            return [empty | dict(zip(wanted, row, strict=True)) for row in rows]


_CLUSTER_NAME = re.compile(r"^ClusterName[ \t]*=[ \t]*(\S+)[ \t]*$", re.MULTILINE)


def query_cluster_name(run: StreamRunner, timeout: float) -> str | None:
    """The controller's own answer: slurm.conf may be on another machine."""
    output = b"".join(run(["scontrol", "show", "config"], timeout)).decode("utf-8", "replace")
    match = _CLUSTER_NAME.search(output)
    return match[1] if match and match[1] != "(null)" else None


_QOS = ("Name", "Priority", "UsageFactor", "Flags", "MaxWall", "MaxTRESPU")
_ASSOCIATION = ("Account", "User", "Partition", "ParentName", "Share", "QOS")
_COORDINATORS = ("Account", "Coordinators")
_SHARE = ("Account", "User", "NormShares", "EffectvUsage", "FairShare")


def query_policy(cluster: str, run: StreamRunner, timeout: float) -> Policy:
    """Four short queries, and a fifth for the fair share."""

    def output(*command: str) -> str:
        return b"".join(run(command, timeout)).decode("utf-8", "backslashreplace")

    def rows(columns: Sequence[str], *command: str) -> list[dict[str, str]]:
        return parse_columns(output(*command), columns, command[0])

    policy = Policy()
    policy.reservations = read_reservations(
        parse_scontrol(output("scontrol", "show", "reservation", "--oneliner")),
        cluster,
        policy.problems,
    )
    manager = ("sacctmgr", "--parsable2", "--noheader", "--readonly", "show")
    policy.qos = read_qos(
        rows(_QOS, *manager, "qos", f"format={','.join(_QOS)}"), cluster, policy.problems
    )
    wanted = (f"cluster={cluster}", f"format={','.join(_ASSOCIATION)}")
    policy.associations = read_associations(
        rows(_ASSOCIATION, *manager, "associations", *wanted), cluster, policy.problems
    )
    with_coordinators = ("account", "withcoord", f"format={','.join(_COORDINATORS)}")
    policy.coordinators = read_coordinators(
        rows(_COORDINATORS, *manager, *with_coordinators), policy.associations, policy.problems
    )
    layout = f"--format={','.join(_SHARE)}"
    shares = rows(_SHARE, "sshare", "--all", "--parsable2", "--noheader", layout)
    add_shares(policy.associations, shares)
    return policy
