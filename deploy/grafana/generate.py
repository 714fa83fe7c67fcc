"""Generates the dashboards in this directory from the table of metric families.

    python -m deploy.grafana.generate

A name that is not in the table is an error, so no panel can query a series that does not exist. A
test fails if the generated files are out of date.
"""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.rendering import Dashboard, Panel, Target, render
from jobsight.metrics import METRICS
from jobsight.prometheus import names
from jobsight.scheduler.cluster_metrics import FAMILIES

HERE = Path(__file__).parent


def own(metric: str) -> str:
    """jobsight's family of a metric."""
    return names.OF_METRIC[metric].name


def agent(name: str) -> str:
    return names.AGENT[f"jobsight_agent_{name}"].name


def gpus(name: str) -> str:
    """A family of the GPUs of all runs, which the server exposes."""
    return names.CLUSTER_GPUS[f"jobsight_cluster_gpu_{name}"].name


def cluster_metric(name: str) -> str:
    """A family of the last scrape of Slurm, which the server exposes."""
    assert name in FAMILIES
    return name


INFO = names.INFO.name
CPUS, MEMORY = names.REQUESTED_CPUS.name, names.REQUESTED_MEMORY.name
THREADS = names.PROGRAM_THREADS.name
JOIN = "on (cluster, node, slurm_job) group_left"


def rate(name: str, selector: str) -> str:
    return f"rate({name}{{{selector}}}[$__rate_interval])"


def graph(title: str, unit: str, *targets: tuple[str, str], help: str = "") -> Panel:
    return Panel(title, unit, tuple(Target(*target) for target in targets), help=help)


def number(title: str, unit: str, expression: str) -> Panel:
    return Panel(title, unit, (Target(expression, ""),), "stat")


def of_metric(metric: str, unit: str, selector: str, by: str, legend: str) -> Panel:
    """A panel of one metric with its title and help: the rate of a counter, or a gauge."""
    row = METRICS[metric]
    name = own(metric)
    value = rate(name, selector) if row.kind == "counter" else f"{name}{{{selector}}}"
    return graph(row.title, unit, (f"sum by ({by}) ({value})", legend), help=row.help)


def job() -> Dashboard:
    here = 'cluster="$cluster",slurm_job="$job"'
    cpu = rate(own("cpu.time"), here)
    used = f"{own('memory.used')}{{{here}}}"
    gpu = "{{node}} GPU {{gpu}}"
    return Dashboard(
        "job",
        "jobsight: job",
        {
            "cluster": f"label_values({INFO}, cluster)",
            "job": f'label_values({INFO}{{cluster="$cluster"}}, slurm_job)',
        },
        (
            number("Nodes", "count", f"count({INFO}{{{here}}})"),
            number("CPUs allocated", "count", f"max({CPUS}{{{here}}})"),
            number("CPU in use", "share", f"sum({cpu}) / max({CPUS}{{{here}}})"),
            number("Memory in use", "share", f"sum({used}) / max({MEMORY}{{{here}}})"),
            graph(
                "Cores in use",
                "cores",
                (f"sum by (node) ({cpu})", "{{node}}"),
                (f"max({CPUS}{{{here}}})", "allocated"),
            ),
            graph(
                "Memory",
                "bytes",
                (f"sum by (node) ({used})", "{{node}}"),
                (f"max({MEMORY}{{{here}}})", "allocated"),
                help=METRICS["memory.used"].help,
            ),
            graph(
                "User and system time",
                "cores",
                (f"sum({rate(own('cpu.user'), here)})", "user"),
                (f"sum({rate(own('cpu.system'), here)})", "system"),
            ),
            graph(
                "Cores",
                "share",
                (f"sum by (node, core) ({rate(own('cores.*.time'), here)})", "{{node}} {{core}}"),
            ),
            graph(
                "Storage",
                "bytes per second",
                (f"sum({rate(own('io.read_bytes'), here)})", "read"),
                (f"sum({rate(own('io.written_bytes'), here)})", "written"),
            ),
            graph(
                "Read and write calls",
                "per second",
                (f"sum({rate(own('io.read_calls'), here)})", "read"),
                (f"sum({rate(own('io.write_calls'), here)})", "write"),
            ),
            of_metric("tasks.processes", "count", here, "node", "{{node}}"),
            graph(
                "Threads by program",
                "count",
                (f"sum by (program) ({THREADS}{{{here}}})", "{{program}}"),
            ),
            of_metric("files.open", "count", here, "node", "{{node}}"),
            of_metric("gpu.*.multiprocessor_time", "share", here, "node, gpu", gpu),
            of_metric("gpu.*.utilization", "share", here, "node, gpu", gpu),
            of_metric("gpu.*.tensor_time", "share", here, "node, gpu", gpu),
            of_metric("gpu.*.bandwidth_time", "share", here, "node, gpu", gpu),
            of_metric("gpu.*.memory_used", "bytes", here, "node, gpu", gpu),
            of_metric("gpu.*.power", "watts", here, "node, gpu", gpu),
            *(
                of_metric(metric, "seconds per second", here, "node", "{{node}}")
                for metric in ("pressure.cpu", "pressure.memory", "pressure.io")
            ),
        ),
    )


def user() -> Dashboard:
    here = 'cluster="$cluster"'
    info = f'{INFO}{{{here},user="$user"}}'

    def by_job(value: str, of: str = "sum") -> str:
        return f"{of} by (slurm_job) ({value} * {JOIN} () {info})"

    cpu = by_job(rate(own("cpu.time"), here))
    job = "job {{slurm_job}}"
    return Dashboard(
        "user",
        "jobsight: user",
        {
            "cluster": f"label_values({INFO}, cluster)",
            "user": f'label_values({INFO}{{cluster="$cluster"}}, user)',
        },
        (
            number("Jobs", "count", f"count(count by (slurm_job) ({info}))"),
            number("Cores in use", "cores", f"sum({cpu})"),
            number("CPUs allocated", "count", f"sum({by_job(f'{CPUS}{{{here}}}', 'max')})"),
            number(
                "Memory",
                "bytes",
                f"sum({by_job(own('memory.used') + '{' + here + '}')})",
            ),
            graph("Cores in use by job", "cores", (cpu, job)),
            graph(
                "Share of the allocated CPUs by job",
                "share",
                (f"{cpu} / {by_job(f'{CPUS}{{{here}}}', 'max')}", job),
            ),
            graph("Memory by job", "bytes", (by_job(own("memory.used") + "{" + here + "}"), job)),
            graph(
                "Share of the allocated memory by job",
                "share",
                (
                    f"{by_job(own('memory.used') + '{' + here + '}')} / "
                    f"{by_job(f'{MEMORY}{{{here}}}', 'max')}",
                    job,
                ),
            ),
            graph(
                "Read from storage",
                "bytes per second",
                (by_job(rate(own("io.read_bytes"), here)), job),
            ),
            graph(
                "Written to storage",
                "bytes per second",
                (by_job(rate(own("io.written_bytes"), here)), job),
            ),
            graph(
                "GPUs",
                "count",
                (by_job(f"{own('gpu.held')}{{{here}}}"), f"{job} allocated"),
                (by_job(f"{own('gpu.idle')}{{{here}}}"), f"{job} idle"),
                (by_job(rate(own("gpu.*.multiprocessor_time"), here)), f"{job} busy"),
            ),
        ),
    )


def node() -> Dashboard:
    here = 'cluster="$cluster",node="$node"'
    job = "job {{slurm_job}}"
    return Dashboard(
        "node",
        "jobsight: node",
        {
            "cluster": f"label_values({agent('info')}, cluster)",
            "node": f'label_values({agent("info")}{{cluster="$cluster"}}, node)',
        },
        (
            number("Jobs", "count", f"sum({agent('jobs')}{{{here}}})"),
            number("Processes", "count", f"sum({agent('processes')}{{{here}}})"),
            number("Cores in use", "cores", f"sum({rate(own('cpu.time'), here)})"),
            number("Memory of jobs", "bytes", f"sum({own('memory.used')}{{{here}}})"),
            of_metric("cpu.time", "cores", here, "slurm_job", job),
            of_metric("memory.used", "bytes", here, "slurm_job", job),
            of_metric("io.read_bytes", "bytes per second", here, "slurm_job", job),
            of_metric("io.written_bytes", "bytes per second", here, "slurm_job", job),
            of_metric("tasks.processes", "count", here, "slurm_job", job),
            of_metric(
                *("gpu.*.multiprocessor_time", "share", here),
                *("gpu, slurm_job", "GPU {{gpu}} " + job),
            ),
            of_metric("gpu.*.utilization", "share", here, "gpu, slurm_job", "GPU {{gpu}} " + job),
            graph(
                "CPU of the agent",
                "share",
                (f"sum({rate(agent('cpu_seconds_total'), here)})", "agent"),
                (f"sum({rate(agent('rounds_cpu_seconds_total'), here)})", "sampling"),
            ),
            graph(
                "Memory of the agent",
                "bytes",
                (f"sum({agent('resident_memory_bytes')}{{{here}}})", "agent"),
            ),
            graph(
                "Size of the spool",
                "bytes",
                (f"sum({agent('spool_bytes')}{{{here}}})", "spool"),
            ),
            graph(
                "Errors of the agent",
                "per second",
                (f"sum({rate(agent('faults_total'), here)})", "faults"),
                (f"sum({rate(agent('event_overruns_total'), here)})", "events lost"),
                (f"sum({rate(agent('spool_dropped_total'), here)})", "batches dropped"),
            ),
        ),
    )


def cluster() -> Dashboard:
    here = 'cluster="$cluster"'
    cpu = rate(own("cpu.time"), here)
    used = f"{own('memory.used')}{{{here}}}"

    def by(label: str, value: str) -> str:
        return f"sum by ({label}) ({value} * {JOIN} ({label}) {INFO}{{{here}}})"

    def day(name: str) -> str:
        return f"sum by (partition) (delta({gpus(name)}{{{here}}}[1d]))"

    return Dashboard(
        "cluster",
        "jobsight: cluster",
        {"cluster": f"label_values({agent('info')}, cluster)"},
        (
            number("Reporting nodes", "count", f"count({agent('info')}{{{here}}})"),
            number("Jobs", "count", f"count(count by (slurm_job) ({INFO}{{{here}}}))"),
            number("Cores in use", "cores", f"sum({cpu})"),
            number(
                "Share of the allocated CPUs",
                "share",
                f"sum({cpu}) / sum(max by (slurm_job) ({CPUS}{{{here}}}))",
            ),
            graph(
                "Cores in use and allocated",
                "cores",
                (f"sum({cpu})", "in use"),
                (f"sum(max by (slurm_job) ({CPUS}{{{here}}}))", "allocated"),
            ),
            graph(
                "Memory in use and allocated",
                "bytes",
                (f"sum({used})", "in use"),
                (f"sum(max by (slurm_job) ({MEMORY}{{{here}}}))", "allocated"),
            ),
            graph("Cores by partition", "cores", (by("partition", cpu), "{{partition}}")),
            graph("Cores by account", "cores", (f"topk(20, {by('account', cpu)})", "{{account}}")),
            graph("Cores by user", "cores", (f"topk(20, {by('user', cpu)})", "{{user}}")),
            graph("Memory by user", "bytes", (f"topk(20, {by('user', used)})", "{{user}}")),
            graph(
                "Storage",
                "bytes per second",
                (f"sum({rate(own('io.read_bytes'), here)})", "read"),
                (f"sum({rate(own('io.written_bytes'), here)})", "written"),
            ),
            graph(
                "GPUs",
                "count",
                (f"sum({own('gpu.held')}{{{here}}})", "allocated"),
                (f"sum({own('gpu.idle')}{{{here}}})", "idle"),
                (f"sum({rate(own('gpu.*.multiprocessor_time'), here)})", "multiprocessors busy"),
            ),
            graph(
                "Power of the GPUs of jobs",
                "watts",
                (f"sum({rate(own('gpu.*.energy'), here)})", "all"),
            ),
            graph(
                "GPU hours of a day by partition",
                "count",
                (f"{day('held_seconds')} / 3600", "{{partition}} held"),
                (f"{day('used_seconds')} / 3600", "{{partition}} used"),
                help="From the server's /metrics: the 24 hours before each point",
            ),
            graph(
                "Energy of the GPUs of a day by partition",
                "watt hours",
                (f"{day('energy_joules')} / 3600", "{{partition}}"),
                help="From the server's /metrics: the 24 hours before each point",
            ),
            graph(
                "Batches in the spool",
                "count",
                (f"topk(10, sum by (node) ({agent('spool_batches')}{{{here}}}))", "{{node}}"),
            ),
            graph(
                "Errors of the agents",
                "per second",
                (f"sum({rate(agent('faults_total'), here)})", "faults"),
                (f"sum({rate(agent('spool_dropped_total'), here)})", "batches dropped"),
            ),
            graph(
                "Series",
                "count",
                (f"sum({agent('series')}{{{here}}})", "exposed"),
                (f"sum({agent('series_left_out')}{{{here}}})", "left out"),
            ),
        ),
    )


def own_server(name: str) -> str:
    """A family of the server about itself."""
    return names.SERVER[f"jobsight_server_{name}"].name


def itself() -> Dashboard:
    """jobsight itself: server, workers, ingest, agents."""
    here = 'cluster="$cluster"'
    return Dashboard(
        "jobsight",
        "jobsight: itself",
        {"cluster": f"label_values({own_server('agents')}, cluster)"},
        (
            number(
                "Unhealthy workers",
                "count",
                f"count({own_server('worker_healthy')} == 0) or vector(0)",
            ),
            number("Agents", "count", f"sum({own_server('agents')}{{{here}}})"),
            number("Silent agents", "count", f"sum({own_server('agents_silent')}{{{here}}})"),
            number("Since the last batch", "seconds", f"min({own_server('batch_age_seconds')})"),
            number(
                "Since the last scrape of Slurm",
                "seconds",
                f"max({cluster_metric('jobsight_scrape_age_seconds')}{{{here}}})",
            ),
            number(
                "Dead letters",
                "count",
                f"sum({cluster_metric('jobsight_dead_letters')}{{{here}}}) or vector(0)",
            ),
            number("Free on the store's disk", "bytes", f"min({own_server('disk_free_bytes')})"),
            number(
                "Certificate ends in",
                "seconds",
                f"min({own_server('certificate_end_time_seconds')}) - time()",
            ),
            graph(
                "Batches",
                "per second",
                (
                    f"sum by (status) (rate({own_server('batches_total')}[$__rate_interval]))",
                    "{{status}}",
                ),
                help="failed batches are sent again by the agents; refused ones are not",
            ),
            graph(
                "Health of the workers",
                "count",
                (f"{own_server('worker_healthy')}", "{{worker}}"),
                help="1 healthy, 0 failing, overdue or ended",
            ),
            graph(
                "Age of the last success",
                "seconds",
                (f"{own_server('worker_success_age_seconds')}", "{{worker}}"),
            ),
            graph(
                "Failed calls of workers",
                "per second",
                (
                    f"sum by (worker) ({rate(own_server('worker_failures_total'), '')})",
                    "{{worker}}",
                ),
                (f"sum(rate({own_server('worker_calls_total')}[$__rate_interval]))", "all calls"),
            ),
            graph(
                "CPU time",
                "cores",
                (f"sum(rate({own_server('cpu_seconds_total')}[$__rate_interval]))", "server"),
                (f"max({rate(agent('cpu_seconds_total'), here)})", "busiest agent"),
                (f"avg({rate(agent('cpu_seconds_total'), here)})", "mean agent"),
            ),
            graph(
                "Memory",
                "bytes",
                (f"sum({own_server('resident_memory_bytes')})", "server"),
                (f"max({agent('resident_memory_bytes')}{{{here}}})", "largest agent"),
                (f"avg({agent('resident_memory_bytes')}{{{here}}})", "mean agent"),
            ),
            graph(
                "Spools of the agents",
                "count",
                (f"sum({agent('spool_batches')}{{{here}}})", "batches in all spools"),
                (f"max({agent('spool_batches')}{{{here}}})", "largest spool"),
            ),
            graph(
                "Lost and refused",
                "per second",
                (f"sum({rate(agent('spool_dropped_total'), here)})", "batches dropped by agents"),
                (f"sum({rate(agent('spool_refused_total'), here)})", "batches refused"),
                (f"sum({rate(agent('event_overruns_total'), here)})", "overruns of process events"),
                (f"sum({rate(agent('faults_total'), here)})", "faults of agents"),
                (
                    f"sum(rate({own_server('values_left_out_total')}[$__rate_interval]))",
                    "values left out",
                ),
            ),
            graph(
                "Clocks",
                "seconds",
                (f"{own_server('agents_clock_skew_seconds')}{{{here}}}", "largest difference"),
            ),
            graph(
                "Sinks and remote write",
                "count",
                (f"{own_server('sink_healthy')}", "{{sink}} healthy"),
                (f"{own_server('remote_write_batches')}", "batches for remote write"),
            ),
        ),
    )


def dashboards() -> list[Dashboard]:
    return [job(), user(), node(), cluster(), itself()]


def main() -> None:
    for dashboard in dashboards():
        file = HERE / f"{dashboard.name}.json"
        text = render(dashboard)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(f"{file.name}: updated")


if __name__ == "__main__":
    main()
