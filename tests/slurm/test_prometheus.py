"""Real jobs in a real Prometheus: every name of petricore with the value that the kernel says."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.grafana.generate import dashboards
from jobsight.prometheus import names
from tests.prometheus.servers import Prometheus, scraping, wait_for
from tests.slurm.jobs import ALICE, BOB, burn, script
from tests.slurm.kernel import truth
from tests.slurm.site import Site

TICK = 0.01
LOOKBACK = 5

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
    server = Prometheus(
        folder, scraping(*site.metrics.values()), f"--query.lookback-delta={LOOKBACK}s"
    )
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
        60,
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
    """Every name whose value is not the kernel's, with both."""
    told = truth(held.node, ALICE, held.job_id).figures
    said = {name: prometheus.value(f"{name}{selector(held)}") for name in told}
    return {
        name: (value, told[name])
        for name, value in said.items()
        if value is None or not close(value, told[name])
    }


def selector(held: Held) -> str:
    return f'{{instance="{held.node}",slurm_job="{held.job_id}"}}'


def test_every_name_has_the_kernel_s_value(held: Held, prometheus: Prometheus) -> None:
    # It stands still, but the kernel brings its counters of memory up to date when it has time.
    wait_for(
        lambda: not differences(held, prometheus), 40, lambda: str(differences(held, prometheus))
    )
    said = {name: prometheus.query(f"{name}{selector(held)}") for name in names.SEED}
    told = truth(held.node, ALICE, held.job_id)
    figures = {
        name: float(rows[0]["value"][1]) for name, rows in said.items() if name in told.figures
    }
    assert figures.keys() == told.figures.keys()
    by_core = {row["metric"]["core"]: float(row["value"][1]) for row in said["jobs_cpu_time_core"]}
    assert all(close(time, told.cores[core]) for core, time in by_core.items()), (by_core, told)
    assert close(sum(by_core.values()), figures["jobs_cpu_time_total"])
    programs = {
        row["metric"]["proc_name"]: float(row["value"][1]) for row in said["jobs_thread_count"]
    }
    assert programs == told.threads
    assert programs[next(name for name in programs if name.startswith("python3"))] == 6
    assert [row["value"][1] for row in said["jobs_uses_scratch"]] == ["1"]
    assert {row["metric"]["gpuid"] for row in said["jobs_gpus_used"]} == {"0", "1"}
    for name in ("jobs_cpu_percent", "jobs_cpu_percent_per_core"):
        wait_for(lambda name=name: prometheus.query(f"max({name}{selector(held)}) < 1"), 20)
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
    # This machine has neither a GPU's driver nor pressure of single jobs.
    absent = {
        family.name
        for metric, family in names.OF_METRIC.items()
        if metric.startswith(("gpu.", "pressure."))
    }
    tried = 0
    for dashboard in dashboards():
        for panel in dashboard.panels:
            for expression, _ in panel.targets:
                if any(name in expression for name in absent):
                    continue
                for name, value in filled.items():
                    expression = expression.replace(name, value)
                tried += 1
                found = wait_for(lambda text=expression: prometheus.query(text), 15)
                assert found, (dashboard.name, panel.title)
    assert tried > 50


def test_petricore_s_own_questions(site: Site, prometheus: Prometheus) -> None:
    """As its pages ask them of a job that has ended: at its end, over its length."""
    cluster = site.cluster
    # Two tasks in each of two steps, one step after the other.
    busy = f"srun --ntasks=2 --mem=0 {burn(2.5)}"
    # sacct cuts the end to a whole second; a sample and a scrape are younger than two more.
    lines = (busy, busy, "truth", "sleep 3.5")
    job = cluster.submit(BOB, script(*lines), "--ntasks=2", "--nodes=1", "--mem=200")
    cluster.wait(job, timeout=120)
    row = cluster.sacct(job, ["Start", "End", "NodeList", "TotalCPU"])[0]
    start, end = int(row["Start"]), int(row["End"])
    length = end - start
    used = int(
        next(one.split()[2] for one in cluster.output(BOB, job).splitlines() if "truth" in one)
    )
    time.sleep(2)

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
    # A busy machine scrapes at uneven times, and the first comes after the job has begun: what
    # the percentages stand for in between is what the counter has grown by.
    between = sum(
        value * (moment - before) for (before, _), (moment, value) in itertools.pairwise(percents)
    )
    assert between / 100 == pytest.approx(totals[-1][1] - totals[0][1], rel=0.15)
    assert ask(f"max_over_time(jobs_cpu_percent{{J}}[{length}s])") <= 205
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
    # The next scrape fails, and Prometheus marks all that it knew of that node as ended: before it
    # would have stopped to look back.
    wait_for(lambda: not alive(prometheus, held.job_id), LOOKBACK - 1)
    site.start_agent(held.node)
    wait_for(lambda: alive(prometheus, held.job_id), 20)


def test_a_killed_prometheus_forgets_jobs_that_ended_meanwhile(
    held: Held, site: Site, prometheus: Prometheus
) -> None:
    prometheus.stop(signal.SIGKILL)
    release(site.scratch)
    site.cluster.wait(held.job_id, timeout=60)
    time.sleep(4)
    prometheus.start()
    # What it read last is taken for the present as long as it looks back, and not longer.
    wait_for(lambda: not alive(prometheus, held.job_id), LOOKBACK + 3)
    assert prometheus.query(f'jobs_rss{{slurm_job="{held.job_id}"}}[5m]')
