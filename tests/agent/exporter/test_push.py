"""A real Pushgateway: never empty while a job runs, and empty when nothing runs any more."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.agent.exporter.exporter import Exporter
from jobsight.agent.exporter.push import Pusher, group_path
from jobsight.agent.exporter.service import ExporterService
from jobsight.agent.job import Sampler
from jobsight.cli.compat.jobs_exporter import parser, settings_of
from jobsight.config.settings import AgentSettings, MetricsSettings, PushSettings
from jobsight.errors import ConfigError
from jobsight.model import SECOND
from tests.agent.exporter.settings import SETTINGS
from tests.agent.samplers.jobs import Clock, Job
from tests.agent.slurm_trees import SlurmNode, available, following
from tests.ports import free_port
from tests.prometheus.readers import one, samples, values
from tests.prometheus.servers import Pushgateway, wait_for
from tests.waiting import wait_until


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Pushgateway]:
    server = Pushgateway(tmp_path / "gateway")
    yield server
    server.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def exporter(clock: Clock) -> Exporter:
    return Exporter(keep_ended=30, clock=lambda: clock.now / SECOND)


def begin(exporter: Exporter, job: Job, number: int = 42, cpu: int = SECOND) -> Sampler:
    view = job.another(number)
    sampler = exporter.plans([])[-1].make(view)
    view.row = {"cpu.time": cpu, "memory.used": 2**20}
    sampler.columns(view)
    return sampler


def pusher(exporter: Exporter, url: str, folder: Path, **settings: float) -> Pusher:
    made = PushSettings(url=url, **settings)  # type: ignore[arg-type]
    return Pusher(exporter, made, folder / "memory" / "pushgateway.json")


def test_a_group_for_each_job_replaced_and_deleted(
    exporter: Exporter, clock: Clock, gateway: Pushgateway, job: Job, tmp_path: Path
) -> None:
    first, _ = begin(exporter, job, 1), begin(exporter, job, 2, 5 * SECOND)
    pushing = pusher(exporter, gateway.url, tmp_path)
    pushing.push()
    groups = [{"job": "jobs_exporter", "instance": "n1", "slurm_job": str(n)} for n in (1, 2)]
    assert sorted(gateway.groups(), key=str) == groups
    found = samples(gateway.text())
    labels = {"job": "jobs_exporter", "instance": "n1"}
    assert one(found, "jobs_cpu_time_total", **labels, slurm_job="2") == 5.0
    assert one(found, "jobsight_job_memory_used_bytes", **labels, cluster="c", node="n1",
               slurm_job="1") == 2**20  # fmt: skip
    # Its last values are there for one scrape, then the group goes and the other stays.
    first.final(job.another(1))
    pushing.push()
    assert len(gateway.groups()) == 2
    clock.go(31)
    pushing.push()
    wait_for(lambda: gateway.groups() == groups[1:], 60)
    assert pushing.failures == 0


def test_it_is_never_empty_while_a_job_runs(
    exporter: Exporter, gateway: Pushgateway, job: Job, tmp_path: Path
) -> None:
    begin(exporter, job)
    pushing = pusher(exporter, gateway.url, tmp_path)
    pushing.push()
    done = threading.Event()
    missing = []

    def look() -> None:
        while not done.is_set():
            found = values(samples(gateway.text()), "jobs_rss", slurm_job="42")
            if not found:
                missing.append(found)

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(30):
        pushing.push()
    done.set()
    looking.join()
    assert missing == []


def test_what_a_killed_agent_left_is_removed_and_what_runs_stays(
    exporter: Exporter, gateway: Pushgateway, job: Job, tmp_path: Path
) -> None:
    for number in (1, 2):
        begin(exporter, job, number)
    pusher(exporter, gateway.url, tmp_path).push()
    # The next agent finds only the second of them.
    other = Exporter()
    begin(other, job, 2)
    pusher(other, gateway.url, tmp_path).push()
    wait_for(lambda: [group["slurm_job"] for group in gateway.groups()] == ["2"], 60)


def test_all_groups_go_with_the_agent(
    exporter: Exporter, gateway: Pushgateway, job: Job, tmp_path: Path
) -> None:
    begin(exporter, job)
    pushing = pusher(exporter, gateway.url, tmp_path, interval=0.05)
    pushing.start()
    wait_until(gateway.groups)
    pushing.stop()
    wait_for(lambda: gateway.groups() == [], 60)


def test_a_gateway_that_went_and_came_back(
    exporter: Exporter, clock: Clock, gateway: Pushgateway, job: Job, tmp_path: Path
) -> None:
    sampler = begin(exporter, job, 1)
    begin(exporter, job, 2)
    pushing = pusher(exporter, gateway.url, tmp_path)
    pushing.push()
    gateway.stop()
    pushing.push()
    assert pushing.failures == 1
    # A job ends meanwhile, and the gateway has kept what it had: its groups go all the same.
    sampler.final(job.another(1))
    clock.go(31)
    pushing.push()
    gateway.start()
    leftover = Exporter()
    begin(leftover, job, 1)
    pusher(leftover, gateway.url, tmp_path / "other").push()
    pushing.push()
    # The gateway answers a deletion before it has done it.
    wait_for(lambda: [group["slurm_job"] for group in gateway.groups()] == ["2"], 60)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 500 no\r\n\r\n", b"nonsense\r\n"])
def test_a_gateway_that_hangs_or_answers_nonsense_is_counted(
    exporter: Exporter, job: Job, tmp_path: Path, answer: bytes
) -> None:
    begin(exporter, job)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        pushing = pusher(exporter, url, tmp_path, timeout=0.3)
        held = []

        def accept() -> None:
            client, _ = server.accept()
            held.append(client)
            if answer:
                client.recv(65536)
                client.sendall(answer)
                client.close()

        thread = threading.Thread(target=accept)
        thread.start()
        pushing.push()
        thread.join()
        for client in held:
            client.close()
    assert pushing.failures == 1
    # What may have been made is remembered for later.
    assert "slurm_job/42" in (tmp_path / "memory" / "pushgateway.json").read_text()


@pytest.mark.root
@pytest.mark.skipif(not available(), reason="needs the hierarchies of cgroup v1")
def test_sampling_goes_on_while_the_gateway_hangs(tmp_path: Path) -> None:
    node = SlurmNode()
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = AgentSettings(
            spool=str(tmp_path),
            metrics=MetricsSettings(listen=""),
            push=PushSettings(
                url=f"http://127.0.0.1:{server.getsockname()[1]}", interval=0.1, timeout=60.0
            ),
        )
        exporting = ExporterService(settings)
        try:
            with following(node.finder(), samplers=exporting.plans([])) as running:
                exporting.start(running.agent)
                node.job(7).step("sleep", "60")
                client, _ = server.accept()
                before = running.agent.collector.rounds
                wait_until(lambda: running.agent.collector.rounds > before + 5)
                assert exporting.pusher is not None
                assert exporting.pusher.failures == 0
                client.close()
        finally:
            server.close()
            exporting.close()
            node.close()


def test_names_that_a_path_cannot_hold() -> None:
    assert group_path("j", {"instance": "n 1"}) == "/metrics/job/j/instance/n%201"
    assert group_path("a/b", {"instance": ""}) == "/metrics/job@base64/YS9i/instance@base64/="


def test_a_wrong_address_is_one_sentence(exporter: Exporter, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent.push.url.*expected"):
        pusher(exporter, "gateway:9091", tmp_path)
    settings = PushSettings(url="http://h", token_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="cannot be read"):
        Pusher(exporter, settings, tmp_path / "memory")


@pytest.mark.root
@pytest.mark.skipif(not available(), reason="needs the hierarchies of cgroup v1")
def test_the_command_pushes_as_petricore_s_does(gateway: Pushgateway, tmp_path: Path) -> None:
    node = SlurmNode()
    config = tmp_path / "jobsight.toml"
    spool = f'spool = "{tmp_path}/spool"'
    settings = SETTINGS.format(folder=tmp_path, root=node.root).replace(
        "[agent]", f"[agent]\n{spool}"
    )
    config.write_text(settings)

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "jobsight.cli.compat.jobs_exporter", "-t", "0.2"]
        return subprocess.Popen([*command, "--config", str(config), "--push", gateway.url])

    exporter = start()
    try:
        node.job(7).step("sleep", "60", tasks=2)
        wait_until(lambda: [group["slurm_job"] for group in gateway.groups()] == ["7"])
        exporter.send_signal(signal.SIGKILL)
        exporter.wait(60)
        # A killed one leaves its group; the next takes it away, since its job has ended.
        assert len(gateway.groups()) == 1
        node.jobs[0].end()
        exporter = start()
        wait_until(lambda: not gateway.groups())
        node.job(8).step("sleep", "60")
        wait_until(gateway.groups)
    finally:
        exporter.send_signal(signal.SIGTERM)
        assert exporter.wait(60) == 0
        node.close()
    wait_for(lambda: gateway.groups() == [], 60)


# Fault 17: -t set the sampling interval and not that of the push.
def test_the_timer_is_also_that_of_the_push(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[agent.push]\ninterval = 7.0\n")
    given = ["--config", str(config)]
    assert settings_of(parser().parse_args(given)).agent.push.interval == 7.0
    assert settings_of(parser().parse_args([*given, "-t", "3"])).agent.push.interval == 3.0


# Fault 17: with a long interval the final values of a job were never pushed.
def test_the_final_values_are_pushed_when_the_job_ends(
    gateway: Pushgateway, job: Job, tmp_path: Path
) -> None:
    exporter = Exporter(keep_ended=3.0)
    sampler = begin(exporter, job, 3)
    pushing = pusher(exporter, gateway.url, tmp_path, interval=3600)
    pushing.push()
    pushing.start()
    view = job.another(3)
    view.row = {"cpu.time": 9 * SECOND}
    sampler.columns(view)

    def pushed() -> list[float]:
        found = values(samples(gateway.text()), "jobs_cpu_time_total", slurm_job="3")
        return list(found.values())

    assert pushed() == [1.0]
    sampler.final(view)
    wait_until(lambda: pushed() == [9.0])
    # The group is deleted when the series expire, not with the next push.
    wait_until(lambda: not gateway.groups())
    pushing.stop()


# Fault 17: the unit contradicted the text about the migration from petricore.
def test_the_unit_pushes_and_listens_on_no_port() -> None:
    unit = Path(__file__).parents[3] / "deploy" / "systemd" / "jobs_exporter.service"
    (command,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    options = parser().parse_args(command.split()[1:])
    agent = settings_of(options).agent
    assert (agent.push.url, agent.metrics.listen) == ("http://localhost:9091", "")


def test_without_options_it_pushes_to_the_gateway_of_its_node(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("")
    given = ["--config", str(config)]
    agent = settings_of(parser().parse_args(given)).agent
    assert (agent.push.url, agent.metrics.listen) == ("http://localhost:9091", "")
    address = f"127.0.0.1:{free_port()}"
    agent = settings_of(parser().parse_args([*given, "--listen", address])).agent
    assert (agent.push.url, agent.metrics.listen) == (None, address)
