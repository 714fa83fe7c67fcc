"""A standalone Spark cluster on loopback: a master and three workers, gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import peer_venv
from tests.ports import free_port
from tests.waiting import wait_until

WORKERS = 3
#: Of the driver and of each executor.
OPTIONS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": str(WORKERS),
    "spark.sql.shuffle.partitions": "6",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class Unavailable(Exception):
    """There is no Spark to test with; the text says why."""


@contextmanager
def running(folder: Path, memory: str = "768m") -> Iterator[tuple[str, str]]:
    """The address of the master, and the Python of its environment; ``memory`` is that of each
    worker."""
    if not peer_venv.is_built("spark"):
        raise Unavailable("pyspark is not installed; `python -m bench.peer_venv spark` does it")
    if shutil.which("java") is None:
        raise Unavailable("needs Java 17 (apt install openjdk-17-jre-headless)")
    commands = peer_venv.spark()
    home = next(commands.parent.glob("lib/python*/site-packages/pyspark"))
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOG_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": str(commands / "python"),
    }
    deploy = "org.apache.spark.deploy"
    programs: list[subprocess.Popen[bytes]] = []
    log_file = folder / "spark.log"

    def start(*arguments: str) -> None:
        with log_file.open("ab") as log:
            programs.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), *arguments],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                )
            )  # fmt: skip

    try:
        start(f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port),
              "--webui-port", str(free_port()))  # fmt: skip
        wait_until(lambda: "I have been elected leader" in log_file.read_text(), 120)
        for number in range(WORKERS):
            start(f"{deploy}.worker.Worker", "-c", "1", "-m", memory, "-h", "127.0.0.1",
                  "--webui-port", str(free_port()), "-d", str(folder / f"worker{number}"),
                  address)  # fmt: skip
        registered = "Registering worker"
        wait_until(lambda: log_file.read_text().count(registered) >= WORKERS, 120)
        yield address, str(commands / "python")
    finally:
        for program in reversed(programs):
            program.terminate()
        for program in programs:
            program.wait(60)
