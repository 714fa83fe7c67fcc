"""Counters of the node's links while a job runs."""

import shutil

from jobsight.agent.samplers.network import Network
from tests.agent.samplers.jobs import Job, write


def ethernet(job: Job, name: str, received: int, sent: int, *, hardware: bool = True) -> None:
    files = {
        "statistics/rx_bytes": f"{received}\n",
        "statistics/tx_bytes": f"{sent}\n",
        "statistics/rx_packets": "1\n",
        "statistics/tx_packets": "1\n",
        "statistics/rx_errors": "0\n",
    }
    if hardware:
        files["device/vendor"] = "x"
    write(job.root / "sys/class/net" / name, files)


def infiniband(job: Job, words: int, folder: str = "counters", suffix: str = "") -> None:
    port = job.root / "sys/class/infiniband/mlx5_0/ports/1" / folder
    names = ("port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets")
    write(port, {f"{name}{suffix}": f"{words}\n" for name in names})


def test_growth_since_the_job_began_and_words_of_four_bytes(job: Job) -> None:
    ethernet(job, "eth0.5", 10**12, 5)
    ethernet(job, "lo", 1, 1, hardware=False)
    infiniband(job, 1000)
    network = Network(node=job.node)
    first = network.columns(job.view)
    assert first["network.eth0.5.received_bytes"] == 0
    assert not any(name.startswith("network.lo") for name in first)
    job.clock.go(1)
    ethernet(job, "eth0.5", 10**12 + 700, 9)
    infiniband(job, 1500)
    row = network.columns(job.view)
    assert row["network.eth0.5.received_bytes"] == 700
    assert row["network.eth0.5.sent_bytes"] == 4
    assert row["network.mlx5_0:1.received_bytes"] == 2000
    assert row["network.mlx5_0:1.received_packets"] == 500
    later = Network(node=job.node)
    assert later.columns(job.another(7))["network.eth0.5.received_bytes"] == 0
    assert network.coverage(job.view)["network"].quality == "estimate"
    shutil.rmtree(job.root / "sys")
    job.node.files.close()
    job.clock.go(1)
    assert network.columns(job.view) == {}
    assert network.final(job.view)["mlx5_0:1"]["sent_bytes"] == 2000


def test_counters_of_32_bits_wrap_or_are_full(job: Job) -> None:
    ethernet(job, "eth0", 2**32 - 10, 0)
    infiniband(job, 2**32 - 10)
    network = Network(node=job.node)
    network.columns(job.view)
    job.clock.go(1)
    ethernet(job, "eth0", 10, 0)
    infiniband(job, 2**32 - 1)
    row = network.columns(job.view)
    assert row["network.eth0.received_bytes"] == 20
    assert "network.mlx5_0:1.received_bytes" not in row
    assert "reached its maximum" in job.node.errors.causes["network mlx5_0:1"]


def test_wide_counters_are_preferred(job: Job) -> None:
    infiniband(job, 2**32 - 1)
    infiniband(job, 2**40, "counters_ext", "_64")
    network = Network(node=job.node)
    network.columns(job.view)
    job.clock.go(1)
    infiniband(job, 2**40 + 1, "counters_ext", "_64")
    assert network.columns(job.view)["network.mlx5_0:1.sent_bytes"] == 4


def test_chosen_interfaces_and_none_at_all(job: Job) -> None:
    assert Network(node=job.node).columns(job.view) == {}
    job.clock.go(100)
    ethernet(job, "eth0", 0, 0)
    ethernet(job, "tun1", 0, 0, hardware=False)
    row = Network(node=job.node, interfaces=["tun*"]).columns(job.view)
    assert {name.split(".")[1] for name in row} == {"tun1"}


def test_one_read_for_all_jobs_of_a_round(job: Job) -> None:
    ethernet(job, "eth0", 0, 0)
    jobs = [(Network(node=job.node), job.another(number)) for number in range(1, 20)]
    reads = []
    read = job.node.files.read
    job.node.files.read = lambda path: reads.append(path) or read(path)  # type: ignore[method-assign, func-returns-value]
    for network, view in jobs:
        network.columns(view)
    assert len(reads) == 5
