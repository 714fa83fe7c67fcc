"""Real jobs in a real Pushgateway and a real VictoriaMetrics, which are killed in between."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.prometheus.readers import samples, values
from tests.prometheus.servers import (
    Prometheus,
    Pushgateway,
    VictoriaMetrics,
    scraping,
    wait_for,
    with_flush,
)
from tests.slurm.jobs import ALICE, Gate, burn, script
from tests.slurm.site import Site
from tests.slurm.test_prometheus import close

MORE = """
[agent.push]
url = "{gateway}"
interval = 0.5
[agent.remote_write]
url = "{victoria}/api/v1/write"
petricore_names = true
"""


class Places:
    """Where the series of one node go."""

    def __init__(self, folder: Path, site: Site) -> None:
        self.node = site.cluster.nodes[0]
        self.gateway = Pushgateway(folder / "gateway", f"--persistence.file={folder}/groups")
        self.victoria = VictoriaMetrics(folder / "victoria")
        self.prometheus = Prometheus(folder / "prometheus", scraping(self.gateway.port))

    def stop(self) -> None:
        for server in (self.gateway, self.victoria, self.prometheus):
            server.stop()


@pytest.fixture(scope="module")
def places(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    made = Places(tmp_path_factory.mktemp("pushing"), site)
    site.more[made.node] = MORE.format(gateway=made.gateway.url, victoria=made.victoria.url)
    site.stop_agent(made.node)
    site.start_agent(made.node)
    yield made
    del site.more[made.node]
    site.stop_agent(made.node)
    site.start_agent(made.node)
    made.stop()


def job(site: Site, places: Places, *lines: str) -> int:
    options = (f"--nodelist={places.node}", "--ntasks=2", "--mem=200")
    return site.cluster.submit(ALICE, script(*lines), *options)


def groups(places: Places, job_id: int) -> list[dict[str, str]]:
    return [group for group in places.gateway.groups() if group.get("slurm_job") == str(job_id)]


def told(site: Site, job_id: int) -> float | None:
    """CPU seconds that the job's own cgroup said; None before it has spoken."""
    try:
        output = site.cluster.output(ALICE, job_id).splitlines()
    except FileNotFoundError:
        return None
    said = [row.split()[2] for row in output if row.startswith("truth")]
    return int(said[0]) / 1e9 if said else None


@pytest.mark.long
def test_two_steps_of_two_tasks_arrive_everywhere_and_leave(site: Site, places: Places) -> None:
    step = f"srun --ntasks=2 --mem=0 {burn(0.7)}"
    with Gate(site.cluster.settings.path()) as gate:
        number = job(site, places, step, step, "truth", gate.line)
        used = arrived(site, places, number)
        gate.open()
        site.cluster.wait(number, timeout=60)
    question = f'jobs_cpu_time_total{{slurm_job="{number}"}}'
    # The group goes when its last values have stood for a while, and Prometheus ends its series.
    wait_for(lambda: not groups(places, number), 60)
    wait_for(lambda: not places.prometheus.query(question), 60)

    def written() -> bool:
        with_flush(places.victoria)
        return close(places.victoria.value(f"last_over_time({question}[10m])") or 0, used)

    wait_for(written, 60, lambda: str(places.victoria.query("jobs_cpu_time_total[10m]")))

    # Its end is written, too.
    def ended() -> bool:
        with_flush(places.victoria)
        return places.victoria.query(question) == []

    wait_for(ended, 60)


def arrived(site: Site, places: Places, number: int) -> float:
    """Wait until what a job has used is at the gateway and in Prometheus, and give it."""
    wait_for(lambda: groups(places, number), 60)
    used: float = wait_for(lambda: told(site, number), 120)
    labels = {"job": "jobs_exporter", "instance": places.node, "slurm_job": str(number)}
    selector = ",".join(f'{name}="{value}"' for name, value in labels.items())

    def at_gateway() -> bool:
        found = values(samples(places.gateway.text()), "jobs_cpu_time_total", **labels)
        return close(found.get("", 0.0), used)

    wait_for(at_gateway, 60)
    question = f"jobs_cpu_time_total{{{selector}}}"
    wait_for(lambda: close(places.prometheus.value(question) or 0, used), 60)
    return used


@pytest.mark.long
def test_a_gateway_killed_in_mid_job_keeps_nothing_of_it(site: Site, places: Places) -> None:
    number = job(site, places, "sleep 6")
    wait_for(lambda: groups(places, number), 60)
    # It writes its groups to disk when it ends, and has them again at its next start.
    places.gateway.stop(signal.SIGTERM)
    site.cluster.wait(number, timeout=60)
    places.gateway.start()
    assert len(groups(places, number)) <= 1
    wait_for(lambda: not groups(places, number), 60)


@pytest.mark.long
def test_what_a_killed_agent_pushed_goes_with_the_next(site: Site, places: Places) -> None:
    number = job(site, places, "sleep 5")
    wait_for(lambda: groups(places, number), 60)
    site.stop_agent(places.node, signal.SIGKILL)
    site.cluster.wait(number, timeout=60)
    assert groups(places, number)
    site.start_agent(places.node)
    wait_for(lambda: not groups(places, number), 60)
