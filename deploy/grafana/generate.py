"""Writes the dashboards beside this file from the table of names; a test fails when they are old.

    python -m deploy.grafana.generate

A name that the table does not hold is an error here: no panel can ask for what is not there.
"""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.rendering import Dashboard, Panel, Target, rendered
from jobsight.metrics import METRICS
from jobsight.prometheus import names

HERE = Path(__file__).parent


def own(metric: str) -> str:
    """Our name of a metric of the table."""
    return names.OF_METRIC[metric].name


def agent(figure: str) -> str:
    return names.AGENT[f"jobsight_agent_{figure}"].name


INFO = names.INFO.name
CPUS, MEMORY = names.REQUESTED_CPUS.name, names.REQUESTED_MEMORY.name
THREADS = names.PROGRAM_THREADS.name
JOIN = "on (cluster, node, slurm_job) group_left"


def rate(name: str, selector: str) -> str:
    return f"rate({name}{{{selector}}}[$__rate_interval])"


def graph(title: str, unit: str, *targets: tuple[str, str], help: str = "") -> Panel:
    return Panel(title, unit, tuple(Target(*one) for one in targets), help=help)


def number(title: str, unit: str, expression: str) -> Panel:
    return Panel(title, unit, (Target(expression, ""),), "stat")


def of_metric(metric: str, unit: str, selector: str, by: str, legend: str) -> Panel:
    """A panel of one metric, in the table's words: the rate of a counter, a gauge as it is."""
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
            number("CPUs given", "count", f"max({CPUS}{{{here}}})"),
            number("CPU in use", "share", f"sum({cpu}) / max({CPUS}{{{here}}})"),
            number("Memory in use", "share", f"sum({used}) / max({MEMORY}{{{here}}})"),
            graph(
                "Cores in use",
                "cores",
                (f"sum by (node) ({cpu})", "{{node}}"),
                (f"max({CPUS}{{{here}}})", "given"),
            ),
            graph(
                "Memory",
                "bytes",
                (f"sum by (node) ({used})", "{{node}}"),
                (f"max({MEMORY}{{{here}}})", "given"),
                help=METRICS["memory.used"].help,
            ),
            graph(
                "In programs and in the kernel",
                "cores",
                (f"sum({rate(own('cpu.user'), here)})", "programs"),
                (f"sum({rate(own('cpu.system'), here)})", "kernel"),
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
            of_metric("gpu.*.utilization", "share", here, "node, gpu", gpu),
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
            number("CPUs given", "count", f"sum({by_job(f'{CPUS}{{{here}}}', 'max')})"),
            number(
                "Memory",
                "bytes",
                f"sum({by_job(own('memory.used') + '{' + here + '}')})",
            ),
            graph("Cores in use by job", "cores", (cpu, job)),
            graph(
                "Share of the given CPUs by job",
                "share",
                (f"{cpu} / {by_job(f'{CPUS}{{{here}}}', 'max')}", job),
            ),
            graph("Memory by job", "bytes", (by_job(own("memory.used") + "{" + here + "}"), job)),
            graph(
                "Share of the given memory by job",
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
                (by_job(f"{own('gpu.held')}{{{here}}}"), f"{job} held"),
                (by_job(f"{own('gpu.idle')}{{{here}}}"), f"{job} idle"),
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
                "Waiting for the server",
                "bytes",
                (f"sum({agent('spool_bytes')}{{{here}}})", "spool"),
            ),
            graph(
                "What went wrong",
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

    return Dashboard(
        "cluster",
        "jobsight: cluster",
        {"cluster": f"label_values({agent('info')}, cluster)"},
        (
            number("Nodes that report", "count", f"count({agent('info')}{{{here}}})"),
            number("Jobs", "count", f"count(count by (slurm_job) ({INFO}{{{here}}}))"),
            number("Cores in use", "cores", f"sum({cpu})"),
            number(
                "Share of the given CPUs",
                "share",
                f"sum({cpu}) / sum(max by (slurm_job) ({CPUS}{{{here}}}))",
            ),
            graph(
                "Cores in use and given",
                "cores",
                (f"sum({cpu})", "in use"),
                (f"sum(max by (slurm_job) ({CPUS}{{{here}}}))", "given"),
            ),
            graph(
                "Memory in use and given",
                "bytes",
                (f"sum({used})", "in use"),
                (f"sum(max by (slurm_job) ({MEMORY}{{{here}}}))", "given"),
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
                (f"sum({own('gpu.held')}{{{here}}})", "held"),
                (f"sum({own('gpu.idle')}{{{here}}})", "idle"),
            ),
            graph(
                "Batches that wait",
                "count",
                (f"topk(10, sum by (node) ({agent('spool_batches')}{{{here}}}))", "{{node}}"),
            ),
            graph(
                "Agents: what went wrong",
                "per second",
                (f"sum({rate(agent('faults_total'), here)})", "faults"),
                (f"sum({rate(agent('spool_dropped_total'), here)})", "batches dropped"),
            ),
            graph(
                "Series",
                "count",
                (f"sum({agent('series')}{{{here}}})", "offered"),
                (f"sum({agent('series_left_out')}{{{here}}})", "left out"),
            ),
        ),
    )


def dashboards() -> list[Dashboard]:
    return [job(), user(), node(), cluster()]


def main() -> None:
    for dashboard in dashboards():
        file = HERE / f"{dashboard.name}.json"
        text = rendered(dashboard)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(f"{file.name}: written anew")


if __name__ == "__main__":
    main()
