"""Real servers of the Prometheus world from Debian, on loopback and in private directories."""

from __future__ import annotations

import abc
import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port


class Process(abc.ABC):
    """A server that can be killed and started again on the same port and directory."""

    program = ""
    ready = "/-/ready"

    def __init__(self, folder: Path, *arguments: str) -> None:
        if shutil.which(self.program) is None:
            pytest.skip(f"needs {self.program}; `make test` as root installs it")
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.arguments = arguments
        folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @abc.abstractmethod
    def command(self) -> list[str]:
        """The arguments of the program."""

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, *self.command(), *self.arguments], stdout=log, stderr=log
            )
        wait_for(self._is_ready, 90, lambda: (self.folder / "log").read_text()[-2000:])

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + self.ready, timeout=60) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None

    def get(self, path: str, **parameters: Any) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=60) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}?{query}: {error.read().decode()[:500]}") from None

    def query(self, expression: str, moment: float | None = None) -> list[dict[str, Any]]:
        """What an expression gives now."""
        parameters = {} if moment is None else {"time": moment}
        found = self.get("/api/v1/query", query=expression, **parameters)["data"]["result"]
        assert isinstance(found, list)
        return found

    def value(self, expression: str, moment: float | None = None) -> float | None:
        """The only value that an expression gives; None where it gives none."""
        found = self.query(expression, moment)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None


class Prometheus(Process):
    program = "prometheus"

    def __init__(self, folder: Path, configuration: str, *arguments: str) -> None:
        self.configuration = folder / "prometheus.yml"
        folder.mkdir(parents=True, exist_ok=True)
        self.configuration.write_text(configuration)
        super().__init__(folder, *arguments)

    def command(self) -> list[str]:
        return [
            f"--config.file={self.configuration}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-remote-write-receiver",
        ]


def scraping(*ports: int, rules: str = "") -> str:
    """A configuration that reads what listens on these ports, twice a second."""
    targets = [f"127.0.0.1:{port}" for port in ports]
    return (
        "global: {scrape_interval: 500ms, evaluation_interval: 500ms}\n"
        f"rule_files: {[rules] if rules else []}\n"
        "scrape_configs:\n  - job_name: jobsight\n    honor_labels: true\n"
        f"    static_configs: [{{targets: {targets}}}]\n"
    )


class Pushgateway(Process):
    program = "prometheus-pushgateway"

    def command(self) -> list[str]:
        return [f"--web.listen-address=127.0.0.1:{self.port}"]

    def groups(self) -> list[dict[str, str]]:
        return [group["labels"] for group in self.get("/api/v1/metrics")["data"]]

    def text(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as reply:
            return str(reply.read().decode())


class VictoriaMetrics(Process):
    program = "victoria-metrics"
    ready = "/health"

    def command(self) -> list[str]:
        return [
            f"-storageDataPath={self.folder / 'data'}",
            f"-httpListenAddr=127.0.0.1:{self.port}",
            "-search.latencyOffset=0s",
            "-memory.allowedBytes=64MB",
        ]


def with_flush(server: VictoriaMetrics) -> None:
    """What was written becomes visible at once."""
    with urllib.request.urlopen(f"{server.url}/internal/force_flush", timeout=60):
        pass


def wait_for(
    condition: Callable[[], Any], seconds: float, log: Callable[[], str] | None = None
) -> Any:
    """Wait for something that is about to happen, and give it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"it did not happen in time: {log() if log else ''}")


def promtool(*arguments: str, text: bytes | None = None) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool; `make test` as root installs it")
    done = subprocess.run(
        ["promtool", *arguments], input=text, capture_output=True, check=False, timeout=60
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )
