"""What Slurm's plugin sends is offered by the agent: bounded, and gone with the step."""

from __future__ import annotations

import json
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobsight.agent.collector import Collector
from jobsight.agent.exporter.exporter import Exporter
from jobsight.agent.exporter.profile_plugin import PluginSocket
from jobsight.errors import JobsightError
from tests.agent.samplers.jobs import Clock
from tests.prometheus.readers import one, samples, values
from tests.prometheus.servers import promtool

SECOND = 1_000_000_000
STEP = {"job": 42, "step": "0", "node": "n1", "dropped": 0, "failed": 0}
JOB = {"cluster": "c", "node": "n1", "slurm_job": "42"}
OWN = JOB | {"step": "0"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plugin(tmp_path: Path, clock: Clock) -> Iterator[PluginSocket]:
    collector = Collector(None, cluster="c", node="n1")
    listener = PluginSocket(
        tmp_path, collector, keep_ended=30, max_samples=10, clock=lambda: clock.now / SECOND
    )
    yield listener
    listener.close()
    collector.close()
    assert not listener.path.exists()


@pytest.fixture
def exporter(plugin: PluginSocket) -> Exporter:
    exporter = Exporter()
    exporter.sources.append(plugin)
    return exporter


def datagram(group: str = "task", task: str = "0", **more: Any) -> bytes:
    fields = {"group": group, "task": task, "time": 1000, "values": {"RSS": 4096}}
    return json.dumps(STEP | fields | more).encode()


END = json.dumps(STEP).encode()


def test_a_sample_in_base_units_and_by_task(plugin: PluginSocket, exporter: Exporter) -> None:
    for task in ("0", "1"):
        plugin.handle(datagram(task=task, dropped=3, values={
            "RSS": 4096, "CPUUtilization": 150.0, "CPUTime": 0.5, "ReadMB": 1.0,
            "jobsight_profile_cpu_seconds_total": 7.5, "VMSize": None,
        }))  # fmt: skip
    plugin.handle(datagram("filesystem", "", values={"ReadMB": 2.0}))
    plugin.handle(datagram("energy", "", values={"Power": 300, "GPU0Power": 70}))
    found = samples(exporter.text())
    for task in ("0", "1"):
        of_task = OWN | {"group": "task", "task": task}
        assert one(found, "jobsight_profile_resident_bytes", **of_task) == 4096 * 1024
        assert one(found, "jobsight_profile_cpu_utilization_ratio", **of_task) == 1.5
        assert one(found, "jobsight_profile_cpu_seconds_total", **of_task) == 7.5
        assert one(found, "jobsight_profile_sample_timestamp_seconds", **of_task) == 1000
    node = OWN | {"group": "filesystem"}
    assert one(found, "jobsight_profile_filesystem_read_bytes", **node) == 2 * 2**20
    assert one(found, "jobsight_profile_energy_gpu0_power", **OWN, group="energy") == 70
    assert one(found, "jobsight_profile_dropped_samples_total", **OWN) == 0
    assert not values(found, "jobsight_profile_virtual_bytes")
    assert promtool("check", "metrics", text=exporter.text()).stderr == ""


def test_the_last_values_stay_for_a_scrape_and_go(
    plugin: PluginSocket, exporter: Exporter, clock: Clock
) -> None:
    plugin.handle(datagram())
    plugin.handle(datagram(step="1"))
    plugin.handle(END)

    def steps() -> list[str]:
        found, name = samples(exporter.text()), "jobsight_profile_resident_bytes"
        return list(values(found, name, **JOB, group="task", task="0"))

    clock.now += 29 * SECOND
    assert steps() == ["0", "1"]
    clock.now += 2 * SECOND
    assert steps() == ["1"]
    plugin.remove_expired()
    assert len(plugin) == 2


def test_a_step_that_was_killed_is_forgotten(plugin: PluginSocket, clock: Clock) -> None:
    plugin.handle(datagram())
    plugin.handle(datagram(step="1"))
    clock.now += 200 * SECOND
    plugin.handle(datagram(step="1"))  # sampled every 200 s
    clock.now += 101 * SECOND
    plugin.remove_expired()
    assert len(plugin) == 2
    clock.now += 500 * SECOND
    plugin.remove_expired()
    assert len(plugin) == 0


def test_more_tasks_than_are_kept_are_counted(plugin: PluginSocket, exporter: Exporter) -> None:
    refused = "jobsight_profile_refused_datagrams_total"
    assert one(samples(exporter.text()), refused, cluster="c", node="n1") == 0
    for task in range(12):
        plugin.handle(datagram(task=str(task)))
    assert len(plugin) == 10
    plugin.handle(datagram(task="0", time=2000))  # one that is known has its place
    found = samples(exporter.text())
    assert one(found, refused, cluster="c", node="n1") == 3
    stamps = values(found, "jobsight_profile_sample_timestamp_seconds", **OWN, group="task")
    assert stamps == {"0": 2000} | dict.fromkeys("12345678", 1000)


@given(data=st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.dictionaries(
        st.sampled_from(["job", "step", "node", "group", "task", "values", "time"])
        | st.text(max_size=5), inner, max_size=6,
    ),
).map(lambda tree: json.dumps(tree).encode()))  # fmt: skip
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
def test_whatever_comes_the_text_stays_readable(
    plugin: PluginSocket, exporter: Exporter, data: bytes
) -> None:
    before, kept = plugin.refused, len(plugin)
    plugin.handle(data)
    samples(exporter.text())
    assert plugin.refused - before in (0, 1)
    assert len(plugin) <= kept + 2


@given(st.text(max_size=20), st.text(max_size=20), st.text(min_size=1, max_size=20))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
def test_names_that_no_one_expects(
    plugin: PluginSocket, exporter: Exporter, clock: Clock, step: str, task: str, field: str
) -> None:
    plugin.handle(datagram("energy", task, step=step, values={field: 1}))
    found = samples(exporter.text())
    # What was refused is of no step.
    refused = {key for key in found if key[0] == "jobsight_profile_refused_datagrams_total"}
    assert len(refused) == 1
    assert len(found) == 5
    for name, labels in found.keys() - refused:
        assert re.fullmatch("[a-z_][a-z0-9_]*", name)
        assert dict(labels)["step"] == step
    plugin.handle(json.dumps(STEP | {"step": step}).encode())
    clock.now += 31 * SECOND
    plugin.remove_expired()
    assert len(plugin) == 0


def test_the_socket_is_root_s_own_and_takes_the_place_of_a_dead_one(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(tmp_path / "profile.sock"))
    collector = Collector(None, cluster="c", node="n1")
    listener = PluginSocket(tmp_path, collector)
    assert stat.S_IMODE(listener.path.stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.sendto(datagram(), str(listener.path))
    listener._read()
    assert len(listener) == 2
    listener.close()
    with pytest.raises(JobsightError, match="cannot be opened"):
        PluginSocket(tmp_path / "nowhere", collector)
    collector.close()
