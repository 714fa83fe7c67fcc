"""A node as a whole: on recorded trees with known figures, and on this kernel."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.agent.collector import Collector
from jobsight.agent.processes.procfs import TICK
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.whole_node import ROWS, WholeNode, parse_cpu_times, parse_memory
from jobsight.metrics import NODE_METRICS
from jobsight.model import MISSING, SECOND, Batch, Series
from tests.agent.samplers.jobs import Job, write
from tests.agent.samplers.test_energy import rapl

GIB = 2**30


def net_dev(job: Job, **links: tuple[int, int, int, int]) -> None:
    """Bytes and packets received and sent of each interface."""
    lines = ["Inter-|   Receive", " face |bytes packets"]
    for name, (received, packets, sent, sent_packets) in links.items():
        lines.append(f"{name}: {received} {packets} 0 0 0 0 0 0 {sent} {sent_packets} 0 0 0 0 0 0")
    write(job.root, {"proc/net/dev": "\n".join(lines) + "\n"})


def interface(job: Job, name: str, *, hardware: bool = True, kind: int = 1) -> None:
    files = {"type": f"{kind}\n"} | ({"device/vendor": "x"} if hardware else {})
    write(job.root / "sys/class/net" / name, files)


def disks(job: Job, **sectors: tuple[int, int]) -> None:
    lines = [f" 8 0 {name} 1 0 {read} 1 1 0 {written} 1 0 1 1" for name, (read, written) in
             sectors.items()]  # fmt: skip
    write(job.root, {"proc/diskstats": "\n".join(lines) + "\n"})


@pytest.fixture
def machine(job: Job) -> Iterator[Job]:
    """A machine with everything that is measured."""
    write(
        job.root,
        {
            "proc/loadavg": "3.50 2.25 1.00 2/300 12345\n",
            "proc/stat": "cpu  100 10 50 900 40 5 5 7 0 0\ncpu0 100 10 50 900 40 5 5 7 0 0\n",
            "proc/meminfo": "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 6291456 kB\n"
            "Buffers: 1024 kB\nCached: 3145728 kB\nSwapTotal: 2048 kB\nSwapFree: 1024 kB\n"
            "Shmem: 1048576 kB\nSReclaimable: 1024 kB\nHugePages_Total: 0\n",
            "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5000\n"
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
            "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=70\n"
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=30\n",
        },
    )
    for name in ("eth0", "eth1"):
        interface(job, name)
    for name in ("lo", "veth7"):
        interface(job, name, hardware=False)
    net_dev(job, lo=(9, 9, 9, 9), eth0=(1000, 10, 2000, 20), eth1=(1, 1, 1, 1), veth7=(5, 5, 5, 5))
    for name in ("sda", "nvme0n1"):
        write(job.root / "sys/block" / name, {"device/vendor": "x"})
    write(job.root / "sys/block/loop0", {"size": "1"})
    disks(job, sda=(10, 20), sda1=(10, 20), nvme0n1=(0, 0), loop0=(500, 500))
    yield job
    job.node.close()


def last(series: Series | None, row: int = -1) -> dict[str, float]:
    assert series is not None
    return {name: column[row] for name, column in series.columns.items()}


def test_a_sample_has_the_figures_of_the_node(machine: Job) -> None:
    node = WholeNode(machine.node)
    node.sample(7 * SECOND)
    series = node.take()
    assert series is not None
    assert list(series.times) == [7 * SECOND]
    assert last(series) == {
        "node.load.1m": 3.5,
        "node.load.5m": 2.25,
        "node.load.15m": 1.0,
        # With nice; the kernel with interrupts.
        "node.cpu.user": 110 * TICK,
        "node.cpu.system": 60 * TICK,
        "node.cpu.idle": 900 * TICK,
        "node.cpu.iowait": 40 * TICK,
        "node.cpu.stolen": 7 * TICK,
        "node.memory.total": 8 * GIB,
        "node.memory.available": 6 * GIB,
        "node.memory.used": 2 * GIB,
        # Without shared memory, which cannot be given back.
        "node.memory.cache": 2 * GIB + 2 * 2**20,
        "node.swap.total": 2 * 2**20,
        "node.swap.used": 2**20,
        "node.network.received_bytes": 0,
        "node.network.received_packets": 0,
        "node.network.sent_bytes": 0,
        "node.network.sent_packets": 0,
        "node.disk.read_bytes": 0,
        "node.disk.written_bytes": 0,
        "node.pressure.cpu": 5_000_000,
        "node.pressure.io": 70_000,
        "node.pressure.io_full": 30_000,
    }
    assert last(series).keys() <= NODE_METRICS.keys()
    assert node.take() is None


def test_physical_devices_are_added_and_others_are_not(machine: Job) -> None:
    node = WholeNode(machine.node)
    node.sample(0)
    machine.clock.go(60)
    net_dev(
        machine, lo=(10**9,) * 4, eth0=(1500, 11, 2600, 22), eth1=(11, 3, 2, 4), veth7=(10**9,) * 4
    )
    disks(machine, sda=(14, 20), sda1=(14, 20), nvme0n1=(0, 2), loop0=(10**6, 10**6))
    node.sample(SECOND)
    row = last(node.take())
    names = ("received_bytes", "received_packets", "sent_bytes", "sent_packets")
    assert [row[f"node.network.{name}"] for name in names] == [510, 3, 601, 5]
    assert (row["node.disk.read_bytes"], row["node.disk.written_bytes"]) == (4 * 512, 2 * 512)


def test_a_device_that_goes_takes_nothing_from_the_sum(machine: Job) -> None:
    node = WholeNode(machine.node)
    node.sample(0)
    machine.clock.go(60)
    net_dev(machine, eth0=(1500, 10, 2000, 20))
    node.sample(1)
    machine.clock.go(60)
    # It is back, with what it counted meanwhile.
    net_dev(machine, eth0=(1500, 10, 2000, 20), eth1=(41, 1, 1, 1))
    node.sample(2)
    series = node.take()
    assert series is not None
    assert list(series.columns["node.network.received_bytes"]) == [0, 500, 540]


def test_a_port_of_infiniband_counts_words_and_not_twice(machine: Job) -> None:
    port = machine.root / "sys/class/infiniband/mlx5_0/ports/1/counters"
    names = ("port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets")
    write(port, dict.fromkeys(names, "100\n"))
    interface(machine, "ib0", kind=32)
    net_dev(machine, eth0=(0, 0, 0, 0), eth1=(0, 0, 0, 0), ib0=(0, 0, 0, 0))
    node = WholeNode(machine.node)
    node.sample(0)
    machine.clock.go(60)
    write(port, dict.fromkeys(names, "350\n"))
    net_dev(machine, eth0=(0, 0, 0, 0), eth1=(0, 0, 0, 0), ib0=(10**6, 0, 10**6, 0))
    node.sample(1)
    row = last(node.take())
    assert row["node.network.received_bytes"] == 250 * 4
    assert row["node.network.sent_packets"] == 250


def test_energy_is_that_of_the_node(machine: Job) -> None:
    stat = (machine.root / "proc/stat").read_text()
    rapl(machine, 1000, 500)
    write(machine.root, {"proc/stat": stat})
    node = WholeNode(machine.node)
    node.sample(0)
    machine.clock.go(60)
    rapl(machine, 1000 + 90_000_000, 500 + 10_000_000)
    write(machine.root, {"proc/stat": stat})
    node.sample(1)
    row = last(node.take())
    assert row["node.energy.cpu"] == 100_000_000
    assert "node.energy.node" not in row


def test_what_cannot_be_read_is_missing_and_comes_back(machine: Job) -> None:
    node = WholeNode(machine.node)
    node.sample(0)
    kept = {}
    for name in ("loadavg", "stat", "meminfo", "net/dev", "diskstats"):
        file = machine.root / "proc" / name
        kept[name] = file.read_bytes()
        # The file is open: it is replaced by nothing.
        file.write_bytes(b"")
    machine.clock.go(60)
    node.sample(1)
    for name, data in kept.items():
        (machine.root / "proc" / name).write_bytes(data)
    machine.clock.go(60)
    node.sample(2)
    series = node.take()
    assert series is not None
    assert all(math.isnan(series.columns[name][1]) for name in ("node.load.1m", "node.load.15m"))
    for name in ("node.cpu.user", "node.memory.used", "node.network.sent_bytes",
                 "node.disk.read_bytes"):  # fmt: skip
        assert series.columns[name][1] == MISSING
        assert MISSING not in (series.columns[name][0], series.columns[name][2])
    assert series.columns["node.pressure.cpu"][1] == 5_000_000
    assert any("node" in cause for cause in machine.node.errors.causes)


def test_a_machine_with_nothing_has_rows_without_columns(job: Job) -> None:
    node = WholeNode(job.node)
    node.sample(0)
    series = node.take()
    assert series is not None
    assert (len(series), dict(series.columns)) == (1, {})


def test_rows_that_nobody_takes_are_bounded(machine: Job) -> None:
    node = WholeNode(machine.node)
    for second in range(ROWS + 3):
        assert node.full is (second >= ROWS)
        write(machine.root, {"proc/loadavg": f"{second}.00 0.00 0.00 1/1 1\n"})
        node.sample(second)
    series = node.take()
    assert series is not None
    assert list(series.times) == list(range(3, ROWS + 3))
    assert list(series.columns["node.load.1m"]) == list(range(3, ROWS + 3))


@pytest.mark.parametrize(
    "data", [b"", b"cpu 1 2\n", b"intr 1 2 3 4 5 6 7 8\n", b"cpu a b c d e f g h"]
)
def test_other_text_is_no_cpu_time(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cpu|invalid"):
        parse_cpu_times(data)


def test_an_old_kernel_has_no_available_memory() -> None:
    found = parse_memory(b"MemTotal: 10 kB\nCached: 4 kB\n")
    assert found == {"node.memory.total": 10240, "node.memory.cache": 4096}


def test_the_collector_sends_the_first_sample_and_then_some_together() -> None:
    collector = Collector(None, cluster="c", node="n")
    sent: list[Batch] = []
    collector.on_batch = sent.append
    node = WholeNode(Node())
    try:
        collector.watch_node(node, 60.0)
        for _ in range(1 + ROWS + 2):
            collector._sample_node()
        assert [len(batch.node_series or ()) for batch in sent] == [1, ROWS]
        assert all(not batch.parts and not batch.jobs for batch in sent)
        # What is left goes with the last batch.
        collector.flush()
        assert len(sent) == 2
        collector.flush(complete=True)
        assert [len(batch.node_series or ()) for batch in sent] == [1, ROWS, 2]
    finally:
        collector.close()
        node.node.close()


def test_on_this_kernel_the_work_of_a_process_is_in_the_figures(tmp_path: Path) -> None:
    node = WholeNode(Node(freshness=0))
    try:
        node.sample(time.time_ns())
        until = time.process_time() + 0.3
        while time.process_time() < until:
            sum(range(1000))
        with open(tmp_path / "written", "wb") as file:
            file.write(os.urandom(2**20))
            os.fsync(file.fileno())
        node.sample(time.time_ns())
        series = node.take()
        assert series is not None
        grown = {name: column[1] - column[0] for name, column in series.columns.items()}
        # Other programs only add to it.
        assert grown["node.cpu.user"] + grown["node.cpu.system"] >= 0.25 * SECOND
        row = last(series)
        assert 0 < row["node.memory.used"] < row["node.memory.total"]
        with open("/proc/meminfo") as text:
            assert row["node.memory.total"] == int(text.readline().split()[1]) * 1024
        assert row["node.load.1m"] >= 0
        assert all(grown.get(f"node.disk.{name}", 0) >= 0 for name in ("read_bytes",))
        assert not [cause for cause in node.node.errors.causes if cause != "node energy"]
    finally:
        node.node.close()
