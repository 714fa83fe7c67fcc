"""The pages of clusters and their nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, HTTPException, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.access.policy import visibility_of
from jobsight.reports.cluster import Amount, ClusterView, shown_state, view_cluster
from jobsight.reports.node import NodeView, view_node
from jobsight.reports.over_time import UseOverTime, use_over_time
from jobsight.reports.queue import view_queue
from jobsight.reports.report import tone_of
from jobsight.reports.whole_node import WholeNode, of_no_job
from jobsight.scheduler.adapters.policy import ReservationInfo
from jobsight.scheduler.cluster_metrics import is_usable
from jobsight.scheduler.records import NodeInfo
from jobsight.scheduler.state import attempted_clusters
from jobsight.store.read.node_days import NodesDay, use_by_day
from jobsight.store.read.nodes import agents_of_cluster
from jobsight.store.rollups.usage import Question
from jobsight.store.snapshot import read_snapshot, snapshot_clusters
from jobsight.store.store import Store
from jobsight.util.units import (
    format_byte_rate,
    format_bytes,
    format_cores,
    format_hours,
    format_power,
    format_share,
)
from jobsight.web.charts import LineChart, line_chart, time_line, use_chart
from jobsight.web.pages.interval import CHOICES, DAY, Days, Interval
from jobsight.web.render import page

#: A scrape that succeeded longer ago is called old.
OLD_SCRAPE: Final = 15 * 60 * 10**9
#: Nodes on the map of a cluster, and on one page of the list.
MAX_MAP: Final = 600
NODES_PER_PAGE: Final = 100
_HOUR: Final = 3600 * 10**9
#: Days of which a line can be drawn; a limit further above the line would leave nothing of it.
_LEAST_DAYS: Final = 2
_MOST_ABOVE: Final = 5
#: Hours of the time line of a node.
NODE_HOURS: Final = (6, 24, 72, 168)

Text = Annotated[str, Query(max_length=200)]


class NodeRow(msgspec.Struct, kw_only=True):
    """A node in a list or on the map."""

    info: NodeInfo
    state: str
    #: "busy", "partly", "idle" or "down": the colour.
    tone: str
    agent_seen: int | None = None

    @property
    def gpus(self) -> Amount:
        amount = Amount()
        for name, count in self.info.gres.items():
            if name.partition(":")[0] == "gpu":
                amount.add(count, self.info.gres_used.get(name, 0), usable=True)
        return amount


class _NodeSortKey(NamedTuple):
    """A column of the list of nodes: its value, None if it is unknown, and whether the first click
    on its title sorts by the largest first."""

    value: Callable[[NodeRow], Any]
    largest_first: bool = False


def _share(part: float | None, whole: float | None) -> float | None:
    return (part or 0) / whole if whole else None


#: What the list of nodes can be sorted by.
NODE_SORTS: Final[Mapping[str, _NodeSortKey]] = {
    "node": _NodeSortKey(lambda row: _natural(row.info.name)),
    "state": _NodeSortKey(lambda row: row.state),
    "cpus": _NodeSortKey(lambda row: _share(row.info.cpus_allocated, row.info.cpus), True),
    "load": _NodeSortKey(lambda row: row.info.load, True),
    "memory": _NodeSortKey(lambda row: _share(row.info.memory_allocated, row.info.memory), True),
    "gpus": _NodeSortKey(lambda row: _share(row.gpus.allocated, row.gpus.total), True),
    "agent": _NodeSortKey(lambda row: row.agent_seen),
    "reason": _NodeSortKey(lambda row: row.info.reason or None),
}


class NodeSort(NamedTuple):
    """The order of the list of nodes; nodes whose value is unknown are last."""

    key: str = "node"
    descending: bool = False

    @classmethod
    def parse(cls, text: str) -> NodeSort | None:
        """The order that ``-load`` (descending) or ``state`` names; None for any other text."""
        key = text.removeprefix("-")
        if not text:
            return cls()
        return cls(key, text.startswith("-")) if key in NODE_SORTS else None

    def __str__(self) -> str:
        if self == NodeSort():
            return ""
        return f"-{self.key}" if self.descending else self.key

    def after(self, key: str) -> NodeSort:
        """The order after a click on the title of a column."""
        if key == self.key:
            return NodeSort(key, not self.descending)
        return NodeSort(key, NODE_SORTS[key].largest_first)

    def sorted(self, rows: Iterable[NodeRow]) -> list[NodeRow]:
        value = NODE_SORTS[self.key].value
        by_name = sorted(rows, key=lambda row: _natural(row.info.name))
        known = [row for row in by_name if value(row) is not None]
        known.sort(key=value, reverse=self.descending)
        return known + [row for row in by_name if value(row) is None]


def _natural(name: str) -> list[tuple[int, str]]:
    """Names in the order of their numbers: n2 before n10."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def add_routes(router: APIRouter, store: Store, clock: Callable[[], int]) -> None:
    """Add the routes of clusters and nodes."""

    @router.get("/clusters")
    def clusters(request: Request) -> HTMLResponse:
        names = known_clusters(store)
        views = [view_cluster(store, name) for name in names]
        return page(request, "clusters.html", views=views, now=clock(), old=OLD_SCRAPE)

    @router.get("/clusters/{name}")
    def cluster(request: Request, name: str, days: Days = 30) -> HTMLResponse:
        view = _view(store, name)
        now = clock()
        interval = Interval.of(days, now)
        use = use_over_time(
            store, Question(by=(), cluster=name, since=interval.since, until=interval.until)
        )
        step_hours = 24.0 * {"day": 1, "week": 7, "month": 30.4}[use.step]
        gpu_total = sum(amount.total for amount in view.gpus.values())
        rows = node_rows(store, name)
        reservations = read_snapshot(store.database, name, "reservation", ReservationInfo)
        return page(
            request,
            "cluster.html",
            view=view,
            queue=view_queue(store, name, visibility_of(request), now),
            reservations=sorted(reservations, key=lambda each: each.start or 0),
            use=use,
            cpu_chart=use_chart(
                use,
                lambda point: point.core_hours,
                lambda point: point.cpu_hours,
                lambda value: f"{format_hours(value)} h",
                names=("core hours held", "used"),
                limit=view.cpus.total * step_hours or None,
                limit_text="all CPUs of now",
            ),
            gpu_chart=use_chart(
                use,
                lambda point: point.gpu_hours,
                lambda point: point.gpu_used_hours,
                lambda value: f"{format_hours(value)} h",
                names=("GPU hours held", "used"),
                limit=gpu_total * step_hours or None,
                limit_text="all GPUs of now",
            )
            if use.total.gpu_hours
            else None,
            nodes_chart=nodes_chart(store, name, use, interval),
            nodes=rows[:MAX_MAP],
            node_count=len(rows),
            interval=interval,
            choices=CHOICES,
            now=now,
            old=OLD_SCRAPE,
        )

    @router.get("/clusters/{name}/nodes")
    def nodes(
        request: Request,
        name: str,
        state: Text = "",
        partition: Text = "",
        sort: Text = "",
        offset: Annotated[int, Query(ge=0, le=10**6)] = 0,
    ) -> HTMLResponse:
        view = _view(store, name)
        rows = node_rows(store, name)
        order = NodeSort.parse(sort)
        if order is None:
            known = ", ".join(NODE_SORTS)
            raise HTTPException(
                422, f"{sort[:40]!r} is no column to sort nodes by; expected one of {known}"
            )
        chosen = order.sorted(
            row
            for row in rows
            if state in ("", row.state) and (not partition or partition in row.info.partitions)
        )

        def address(**changes: str | int) -> str:
            given = {"state": state, "partition": partition, "sort": str(order), **changes}
            return "?" + urlencode({key: value for key, value in given.items() if value})

        following = offset + NODES_PER_PAGE
        return page(
            request,
            "nodes.html",
            view=view,
            rows=chosen[offset:following],
            total=len(chosen),
            offset=offset,
            earlier=address(offset=max(offset - NODES_PER_PAGE, 0)) if offset else None,
            later=address(offset=following) if following < len(chosen) else None,
            states=sorted({row.state for row in rows}),
            partitions=[each.name for each in view.partitions],
            state=state,
            partition=partition,
            order=order,
            sort_address=lambda key: address(sort=str(order.after(key))),
            now=clock(),
        )

    @router.get("/clusters/{cluster}/nodes/{node}")
    def node(
        request: Request,
        cluster: str,
        node: str,
        hours: Annotated[int, Query(ge=1, le=24 * 31)] = 24,
        until: Annotated[int | None, Query(ge=0, le=2**33)] = None,
    ) -> HTMLResponse:
        now = clock()
        end = now if until is None else min(until * 10**9, now)
        since = end - hours * _HOUR
        view = view_node(
            store, cluster, node, visibility=visibility_of(request), since=since, until=end
        )
        if not view.is_known:
            raise HTTPException(404, f"cluster {cluster[:100]!r} has no node {node[:100]!r}")
        info = view.info
        return page(
            request,
            "node.html",
            view=view,
            tone=_tone(info) if info is not None else "",
            state=shown_state(info) if info is not None else "",
            usable=info is not None and is_usable(info),
            line=time_line(view, since, end, tone_of),
            node_charts=node_charts(view, since, end),
            of_no_job=_of_no_job(view),
            hours=hours,
            choices=[
                (each, f"{each} h" if each < 72 else f"{each // 24} d") for each in NODE_HOURS
            ],
            since=since,
            until=end,
            earlier=since // 10**9,
            later=None if end >= now else min(end + hours * _HOUR, now) // 10**9,
            now=now,
        )


def nodes_chart(
    store: Store, cluster: str, use: UseOverTime, interval: Interval
) -> LineChart | None:
    """What the CPUs of the nodes did by day, next to what jobs used; None unless the steps are days
    and nodes have reported two of them."""
    if use.step != "day":
        return None
    days = use_by_day(store.database, cluster, interval.since, interval.until)
    if len(days) < _LEAST_DAYS:
        return None
    nothing = NodesDay(math.nan, math.nan)
    found = [days.get(interval.since + index, nothing) for index in range(len(use.points))]
    busy = [day.cpu_time / 3600 for day in found]
    lines = [
        ("used by the nodes", busy, "second"),
        ("used by jobs", [point.cpu_hours for point in use.points], "accent"),
    ]
    known = [day.core_time / 3600 for day in found if math.isfinite(day.core_time)]
    return line_chart(
        lines,
        lambda value: f"{format_hours(value)} h",
        since=interval.since * DAY,
        until=interval.until * DAY,
        limit=max(known) if max(known) < _MOST_ABOVE * max(map(_finite, busy)) else None,
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def node_charts(view: NodeView, since: int, until: int) -> list[tuple[str, LineChart]]:
    """What the jobs of a node used, and the node as a whole if that is known."""
    use, info = view.use, view.info
    held, cores, used_memory = (use.held, use.cores, use.memory) if use else (None, None, None)
    whole = view.whole or WholeNode()
    cpus = None if info is None or not info.cpus else float(info.cpus)
    memory = None if info is None or not info.memory else float(info.memory)
    total = max(filter(math.isfinite, whole.memory_total or ()), default=memory)
    charts = []

    def add(
        title: str,
        lines: Sequence[tuple[str, Sequence[float] | None, str]],
        show: Callable[[float], str],
        limit: float | None = None,
    ) -> None:
        known = [(name, values, style) for name, values, style in lines if values is not None]
        if known:
            chart = line_chart(known, show, since=since, until=until, limit=limit)
            charts.append((title, chart))

    add(
        "CPUs",
        [
            ("held by jobs", held, "ghost"),
            ("used by the node", whole.cores, "second"),
            ("used by jobs", cores, "accent"),
        ],
        format_cores,
        cpus,
    )
    add(
        "Memory",
        [
            ("page cache", whole.cache, "ghost"),
            ("used by the node", whole.memory, "second"),
            ("used by jobs", used_memory, "accent"),
        ],
        format_bytes,
        total,
    )
    add("Load", [("load average", whole.load, "accent")], format_cores, cpus)
    add(
        "Network",
        [("received", whole.received, "accent"), ("sent", whole.sent, "second")],
        format_byte_rate,
    )
    add(
        "Disks",
        [("read", whole.disk_read, "accent"), ("written", whole.disk_written, "second")],
        format_byte_rate,
    )
    add(
        "Power",
        [("node", whole.power, "accent"), ("processors and memory", whole.cpu_power, "second")],
        format_power,
    )
    add(
        "Time in which processes waited",
        [
            ("for a CPU", whole.cpu_pressure, "accent"),
            ("for memory", whole.memory_pressure, "second"),
            ("for I/O", whole.io_pressure, "ghost"),
        ],
        format_share,
    )
    return charts


def _of_no_job(view: NodeView) -> tuple[str, str] | None:
    """The mean of the CPUs and of the memory that no job used."""
    whole, use = view.whole, view.use
    if whole is None or whole.cores is None or whole.memory is None:
        return None
    if view.more_jobs or (use is None and view.jobs):
        # The sum of the jobs is not known.
        return None
    nothing = [0.0] * len(whole.cores)
    cores = of_no_job(whole.cores, use.cores if use else nothing)
    memory = of_no_job(whole.memory, use.memory if use else nothing)
    return format_cores(cores), format_bytes(memory)


def known_clusters(store: Store) -> list[str]:
    """The clusters that were scraped or attempted."""
    return sorted({*snapshot_clusters(store.database), *attempted_clusters(store.database)})


def _view(store: Store, name: str) -> ClusterView:
    if name not in known_clusters(store):
        raise HTTPException(404, f"there is no cluster {name[:100]!r}, or it was never scraped")
    return view_cluster(store, name)


def node_rows(store: Store, cluster: str) -> list[NodeRow]:
    """The nodes of a cluster by name, with the time of the last batch of each agent."""
    agents = agents_of_cluster(store.database, cluster)
    return [
        NodeRow(
            info=info,
            state=shown_state(info),
            tone=_tone(info),
            agent_seen=agents[info.name].received if info.name in agents else None,
        )
        for info in read_snapshot(store.database, cluster, "node", NodeInfo)
    ]


def _tone(info: NodeInfo) -> str:
    if not is_usable(info):
        return "down"
    allocated, cpus = info.cpus_allocated or 0, info.cpus or 0
    if not allocated:
        return "idle"
    return "busy" if allocated >= cpus else "partly"
