"""Real jobs in a real Prometheus: every name of petricore with the value that the kernel says."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.grafana.generate import dashboards
from jobsight.prometheus import names
from tests.bed import Cluster
from tests.prometheus.servers import Prometheus, scraping, wait_for
from tests.slurm.jobs import ALICE, BOB, Gate, burn, script
from tests.slurm.kernel import truth
from tests.slurm.site import Site

TICK = 0.01
#: Seconds for which Prometheus takes a value for the present where no end of it was marked: far
#: longer than a test waits, and then short.
LONG, SHORT = 300, 5

#: One task: memory, threads, open files, written and read data, and then nothing more.
HOLDER = """
import os, sys, threading, time
folder, name = sys.argv[1], f"{os.environ['SLURM_STEP_ID']}-{os.environ['SLURM_PROCID']}"
kept = bytearray(20 << 20)
for place in range(0, len(kept), 4096):
    kept[place] = 1
files = [open(f"{folder}/{name}-{number}", "w+b") for number in range(3)]
files[0].write(b"x" * (4 << 20))
files[0].flush()
os.fsync(files[0].fileno())
files[0].seek(0)
while files[0].read(65536):
    pass
while time.process_time() < 0.5:
    pass
lock = threading.Lock()
lock.acquire()
threading.Thread(target=lock.acquire, daemon=True).start()
open(f"{folder}/ready-{name}", "w").close()
# Waits without using anything.
open(f"{folder}/gate").read()
"""


class Held(NamedTuple):
    """A job of two steps with three tasks that stands still."""

    job_id: int
    node: str


@pytest.fixture(scope="module")
def prometheus(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus") / "server"
    server = Prometheus(folder, scraping(*site.metrics.values()), f"--query.lookback-delta={LONG}s")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def held(site: Site, prometheus: Prometheus) -> Iterator[Held]:
    folder = site.scratch
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    (folder / "holder.py").write_text(HOLDER)
    os.mkfifo(folder / "gate")
    (folder / "gate").chmod(0o666)
    task = f"python3 {folder}/holder.py {folder}"
    job = site.cluster.submit(
        ALICE,
        script(
            f"srun --overlap --ntasks=2 --mem=0 {task} &",
            f"srun --overlap --ntasks=1 --mem=0 {task} &",
            "wait",
        ),
        "--ntasks=2", "--nodes=1", "--mem=300", "--gres=gpu:2", "--job-name=held {x}\"",
    )  # fmt: skip
    wait_for(
        lambda: len(list(folder.glob("ready-*"))) == 3,
        120,
        lambda: site.cluster.output(ALICE, job),
    )
    node = site.cluster.sacct(job, ["NodeList"])[0]["NodeList"]
    yield Held(job, node)
    if site.cluster.queue(job):
        release(folder)
        site.cluster.wait(job, timeout=60)


def release(folder: Path) -> None:
    """Let the tasks go on: each waits for a writer of the pipe."""
    descriptor = os.open(folder / "gate", os.O_RDWR | os.O_NONBLOCK)
    time.sleep(1)
    os.close(descriptor)


def close(one: float, other: float) -> bool:
    return abs(one - other) <= max(TICK, 0.01 * max(abs(one), abs(other)))


def differences(held: Held, prometheus: Prometheus) -> dict[str, tuple[float | None, float]]:
    """Every series whose value is not the kernel's, with both."""
    told = truth(held.node, ALICE, held.job_id)
    known = told.figures | {
        f"jobs_cpu_time_core {core}": time for core, time in told.cores.items() if time
    }
    known |= {f"jobs_thread_count {name}": count for name, count in told.threads.items()}
    said: dict[str, float] = {}
    for name in {series.split()[0] for series in known}:
        for row in prometheus.query(f"{name}{selector(held)}"):
            label = row["metric"].get("core") or row["metric"].get("proc_name") or ""
            said[f"{name} {label}".strip()] = float(row["value"][1])
    return {
        series: (said.get(series), known.get(series, 0))
        for series in known.keys() | said.keys()
        if series not in said or not close(said[series], known.get(series, 0))
    }


def selector(held: Held) -> str:
    return f'{{instance="{held.node}",slurm_job="{held.job_id}"}}'


def test_every_name_has_the_kernel_s_value(held: Held, prometheus: Prometheus) -> None:
    # It stands still, but the kernel brings its counters of memory up to date when it has time.
    wait_for(
        lambda: not differences(held, prometheus), 90, lambda: str(differences(held, prometheus))
    )
    said = {name: prometheus.query(f"{name}{selector(held)}") for name in names.PETRICORE}
    by_core = {row["metric"]["core"]: float(row["value"][1]) for row in said["jobs_cpu_time_core"]}
    assert close(sum(by_core.values()), float(said["jobs_cpu_time_total"][0]["value"][1]))
    programs = {
        row["metric"]["proc_name"]: float(row["value"][1]) for row in said["jobs_thread_count"]
    }
    assert programs[next(name for name in programs if name.startswith("python3"))] == 6
    assert [row["value"][1] for row in said["jobs_uses_scratch"]] == ["1"]
    assert {row["metric"]["gpuid"] for row in said["jobs_gpus_used"]} == {"0", "1"}
    for name in ("jobs_cpu_percent", "jobs_cpu_percent_per_core"):
        wait_for(lambda name=name: prometheus.query(f"max({name}{selector(held)}) < 1"), 60)
    info = prometheus.query(f'jobsight_job_info{{slurm_job="{held.job_id}"}}')[0]["metric"]
    assert (info["user"], info["account"]) == (ALICE, "alpha")
    assert info["name"].startswith("held {x}")


def test_every_expression_of_the_dashboards_returns_data(
    held: Held, site: Site, prometheus: Prometheus
) -> None:
    filled = {
        "$cluster": site.cluster.settings.name,
        "$job": str(held.job_id),
        "$user": ALICE,
        "$node": held.node,
        "$__rate_interval": "10s",
    }
    # This machine has neither a GPU's driver nor pressure of single jobs, and the server is not
    # scraped.
    absent = (
        {
            family.name
            for metric, family in names.OF_METRIC.items()
            if metric.startswith(("gpu.", "pressure."))
        }
        | names.CLUSTER_GPUS.keys()
        | names.SERVER.keys()
        | {"jobsight_scrape_age_seconds"}
    )
    tried = 0
    for dashboard in dashboards():
        for panel in dashboard.panels:
            for expression, _ in panel.targets:
                if any(name in expression for name in absent):
                    continue
                for name, value in filled.items():
                    expression = expression.replace(name, value)
                tried += 1
                found = wait_for(lambda text=expression: prometheus.query(text), 60)
                assert found, (dashboard.name, panel.title)
    assert tried > 50


def told(cluster: Cluster, job: int) -> int | None:
    """CPU time that the job's own cgroup said; None before it has spoken."""
    try:
        output = cluster.output(BOB, job)
    except FileNotFoundError:
        return None
    said = re.findall(r"^truth \S+ (\d+) \d+$", output, re.MULTILINE)
    return int(said[-1]) if said else None


@pytest.mark.long
def test_petricore_s_own_questions(site: Site, prometheus: Prometheus) -> None:
    """As its pages ask them of a job that has ended: at its end, over its length."""
    cluster = site.cluster
    # Two tasks in each of two steps, one step after the other.
    busy = f"srun --ntasks=2 --mem=0 {burn(2.5)}"
    with Gate(cluster.settings.path()) as gate:
        lines = (busy, busy, "truth", gate.line)
        job = cluster.submit(BOB, script(*lines), "--ntasks=2", "--nodes=1", "--mem=200")
        used = wait_for(lambda: told(cluster, job), 120)
        total = f'jobs_cpu_time_total{{slurm_job="{job}"}}'
        wait_for(lambda: close(prometheus.value(total) or 0, used / 1e9), 60)
        # sacct cuts the end to a whole second, and that must lie behind the last scrape.
        time.sleep(2)
        gate.open()
        cluster.wait(job, timeout=120)
    row = cluster.sacct(job, ["Start", "End", "NodeList", "TotalCPU"])[0]
    start, end = int(row["Start"]), int(row["End"])
    length = end - start

    def ask(expression: str) -> float:
        value = prometheus.value(expression.replace("J", f'slurm_job="{job}"'), end)
        assert value is not None, expression
        return value

    assert close(ask("jobs_cpu_time_total{J}"), used / 1e9)
    average = ask(f"avg_over_time(jobs_cpu_percent{{J}}[{length}s])")
    percents, totals = (
        [(float(moment), float(value)) for moment, value in rows[0]["values"]]
        for rows in (
            prometheus.query(f'{name}{{slurm_job="{job}"}}[{length}s]', end)
            for name in ("jobs_cpu_percent", "jobs_cpu_time_total")
        )
    )
    assert average == pytest.approx(sum(value for _, value in percents) / len(percents))
    assert dict(percents).keys() <= dict(totals).keys()
    # Each percentage is what the counter has grown by between two samples: the arithmetic is
    # tested with a clock of the test's own, and here only that one of them saw the work.
    assert ask(f"max_over_time(jobs_cpu_percent{{J}}[{length}s])") > 0
    assert [total for _, total in totals] == sorted(total for _, total in totals)
    assert 1 < ask(f"max_over_time(jobs_rss{{J}}[{length}s])") < 200
    assert ask(f"avg_over_time(jobs_opened_files{{J}}[{length}s])") >= 0
    assert ask("jobs_uses_scratch{J}") == 0
    for name in ("jobs_read_mb", "jobs_write_mb", "jobs_read_count", "jobs_write_count"):
        assert ask(f"{name}{{J}}") >= 0
    assert ask("jobs_read_count{J}") > 100
    cores = prometheus.query(f'jobs_cpu_time_core{{slurm_job="{job}"}}', end)
    assert close(sum(float(one["value"][1]) for one in cores), used / 1e9)
    threads = prometheus.query(
        f'max_over_time(jobs_thread_count{{slurm_job="{job}"}}[{length}s])', end
    )
    programs = {one["metric"]["proc_name"]: float(one["value"][1]) for one in threads}
    assert next(value for name, value in programs.items() if name.startswith("python3")) == 2


def alive(prometheus: Prometheus, job_id: int) -> bool:
    return bool(prometheus.query(f'{{__name__=~"jobs.*",slurm_job="{job_id}"}}'))


def test_a_killed_agent_leaves_no_series(held: Held, site: Site, prometheus: Prometheus) -> None:
    assert alive(prometheus, held.job_id)
    site.stop_agent(held.node, signal.SIGKILL)
    # The next scrape fails, and Prometheus marks all that it knew of that node as ended: long
    # before it would have stopped to look back.
    wait_for(lambda: not alive(prometheus, held.job_id), 60)
    site.start_agent(held.node)
    wait_for(lambda: alive(prometheus, held.job_id), 60)


@pytest.mark.long
def test_a_killed_prometheus_forgets_jobs_that_ended_meanwhile(
    held: Held, site: Site, prometheus: Prometheus
) -> None:
    prometheus.stop(signal.SIGKILL)
    release(site.scratch)
    site.cluster.wait(held.job_id, timeout=60)
    time.sleep(4)
    prometheus.arguments = (f"--query.lookback-delta={SHORT}s",)
    prometheus.start()
    # What it read last is taken for the present as long as it looks back, and not longer.
    wait_for(lambda: not alive(prometheus, held.job_id), 60)
    assert prometheus.query(f'jobs_rss{{slurm_job="{held.job_id}"}}[5m]')
