"""Textfile, unix socket, Carbon and collectd, each against a real peer."""

import os
import socket
import socketserver
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobsight.agent.job import JobView
from jobsight.agent.outputs.carbon import CarbonOptions, CarbonOutput
from jobsight.agent.outputs.collectd import CollectdOptions, CollectdOutput, CollectdRefused
from jobsight.agent.outputs.listener import ListenerError, ListenerOptions, PrometheusListener
from jobsight.agent.outputs.textfile import TextfileOptions, TextfileOutput
from jobsight.errors import ConfigError
from tests.agent.outputs.conftest import HOSTILE

METRICS: dict[str, Any] = {"metrics": {r"^sams.x/(?P<metric>.*)": 'sa{m="%(metric)s"}'}}


def textfile(folder: Path) -> TextfileOptions:
    return TextfileOptions(path=str(folder / "slurm_%(jobid)s.prom"), **METRICS)


def test_the_textfile_is_replaced_and_removed(tmp_path: Path, view: JobView) -> None:
    output = TextfileOutput(textfile(tmp_path), view)
    output.store(view, "sams.x", {"word": "max"})
    assert os.listdir(tmp_path) == []
    for number in range(3):
        output.store(view, "sams.x", {"zero": 0, "number": number})
    file = tmp_path / "slurm_1234.prom"
    assert 'sa{m="number"} 2\nsa{m="zero"} 0\n' in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    # A second collector's start leaves the files of the living alone.
    view.sighting = msgspec.structs.replace(view.sighting, job_id=99)
    TextfileOutput(textfile(tmp_path), view)
    assert os.listdir(tmp_path) == ["slurm_1234.prom"]
    output.write(view, {})
    assert os.listdir(tmp_path) == []


def test_the_file_of_a_killed_collector_goes_at_the_next_start(
    tmp_path: Path, view: JobView
) -> None:
    program = f"""
import os, signal
from jobsight.agent.outputs.textfile import TextfileOptions, TextfileOutput
from jobsight.cli.compat.collector import view_of
view = view_of(7, "n1")
options = TextfileOptions(path={str(tmp_path / "slurm_%(jobid)s.prom")!r}, metrics={{".*": "x"}})
TextfileOutput(options, view).store(view, "s", {{"v": 1}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    (tmp_path / "slurm_8.prom").write_text("not_ours 1\n")
    assert sorted(os.listdir(tmp_path)) == ["slurm_7.prom", "slurm_8.prom"]
    TextfileOutput(textfile(tmp_path), view)
    assert os.listdir(tmp_path) == ["slurm_8.prom"]


def test_a_wrong_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="mode: 'rw' is not octal"):
        TextfileOptions(mode="rw")


def ask(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        return b"".join(iter(lambda: client.recv(4096), b"")).decode()


def test_the_socket_gives_the_newest_text_and_hangs_up(short_folder: Path, view: JobView) -> None:
    listener = PrometheusListener(
        ListenerOptions(socketdir=str(short_folder / "s"), **METRICS), view
    )
    path = short_folder / "s" / "sams.listener.Prometheus_1234.socket"
    assert ask(path) == ""
    listener.store(view, "sams.x", {"a": 0})
    listener.store(view, "sams.x", {"a": 5})
    # A client that says nothing and reads nothing keeps nobody out.
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        assert ask(path).endswith('sa{m="a"} 5\n')
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with pytest.raises(ListenerError, match="in use by another collector"):
        PrometheusListener(ListenerOptions(socketdir=str(path.parent)), view)
    listener.write(view, {})
    listener.close()
    assert not path.exists()


def test_what_a_crash_left_is_replaced(short_folder: Path, view: JobView) -> None:
    path = short_folder / "sams.listener.Prometheus_1234.socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    PrometheusListener(ListenerOptions(socketdir=str(short_folder)), view).close()


def test_a_folder_that_others_can_write_is_refused(short_folder: Path, view: JobView) -> None:
    short_folder.chmod(0o777)
    with pytest.raises(ListenerError, match="writable by others"):
        PrometheusListener(ListenerOptions(socketdir=str(short_folder)), view)


def carbon(**more: Any) -> CarbonOptions:
    return CarbonOptions(metrics={r"^sams.x/(?P<metric>.*)": "a.%(node)s.%(metric)s"}, **more)


def test_carbon_gets_every_value_zeros_too(view: JobView) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        one.settimeout(60)
        port = one.getsockname()[1]
        options = carbon(server="127.0.0.1", port=port, servers=[f"127.0.0.1:{port}"])
        assert options.addresses() == [("127.0.0.1", port)]
        output = CarbonOutput(options, view, clock=lambda: 1700000000.9)
        output.store(view, "sams.x", {"zero": 0, "half": "0.5", "word": "max"})
        received = [one.recv(1000) for _ in range(2)]
        assert received == [b"a.n1.zero 0 1700000000\n", b"a.n1.half 0.5 1700000000\n"]
        assert output.mapper.not_numeric == 1
        output.close()


@pytest.mark.parametrize("text", HOSTILE)
def test_carbon_lines_stay_lines(view: JobView, text: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        one.settimeout(60)
        output = CarbonOutput(carbon(server="127.0.0.1", port=one.getsockname()[1]), view)
        output.store(view, "sams.x", {text.replace("\n", "\r"): 1})
        name, number, _ = one.recv(9000).decode().split(" ")
        assert (name.startswith("a.n1."), number) == (True, "1")
        output.close()


class Lines(socketserver.StreamRequestHandler):
    """Takes lines; closes the connection after some when told to."""

    def handle(self) -> None:
        for line in self.rfile:
            self.server.lines.append(line)  # type: ignore[attr-defined]
            self.server.received.set()  # type: ignore[attr-defined]


@pytest.fixture
def carbon_server() -> Iterator[Any]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Lines) as server:
        server.daemon_threads = True
        server.lines, server.received = [], threading.Event()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_dead_carbon_does_not_keep_values_from_the_others(
    view: JobView, carbon_server: Any
) -> None:
    port = carbon_server.server_address[1]
    options = carbon(servers=["127.0.0.1:1", f"127.0.0.1:{port}"], protocol="tcp")
    output = CarbonOutput(options, view)
    with pytest.raises(ConnectionError, match=r"Carbon cannot be reached at 127\.0\.0\.1:1: "):
        output.store(view, "sams.x", {"v": 1})
    assert carbon_server.received.wait(60)
    assert carbon_server.lines[0].startswith(b"a.n1.v 1 ")
    output.close()


def test_servers_are_checked() -> None:
    assert carbon(servers=["[::1]:2004", "host"]).addresses() == [("::1", 2004), ("host", 2003)]
    assert carbon().addresses() == [("localhost", 2003)]
    with pytest.raises(ConfigError, match="'a b' is not a server; expected host:2003"):
        carbon(servers=["a b"])


class Collectd(socketserver.StreamRequestHandler):
    """Answers as collectd's unixsock plugin does."""

    def handle(self) -> None:
        for line in self.rfile:
            self.server.lines.append(line.decode())  # type: ignore[attr-defined]
            if b"refuse" in line:
                self.wfile.write(b"-1 Parsing the values string failed.\n")
            else:
                self.wfile.write(b"0 Success: 1 value has been dispatched.\n")
            if b"hangup" in line:
                return


@pytest.fixture
def collectd(short_folder: Path) -> Iterator[Any]:
    path = str(short_folder / "collectd")
    with socketserver.ThreadingUnixStreamServer(path, Collectd) as server:
        server.daemon_threads = True
        server.lines = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_collectd_gets_values_quoted(view: JobView, collectd: Any) -> None:
    options = CollectdOptions(
        socket=collectd.server_address,
        metrics={r"^sams.x/(?P<metric>.*)": '%(node)s/sams "x"/gauge-%(metric)s'},
    )
    output = CollectdOutput(options, view, clock=lambda: 1700000000.0)
    output.store(view, "sams.x", {"hangup": 0, "a/b\n": 1, "after": 2})
    assert collectd.lines == [
        'PUTVAL "n1/sams \\"x\\"/gauge-hangup" interval=30 1700000000:0\n',
        'PUTVAL "n1/sams \\"x\\"/gauge-a_b" interval=30 1700000000:1\n',
        'PUTVAL "n1/sams \\"x\\"/gauge-after" interval=30 1700000000:2\n',
    ]
    with pytest.raises(CollectdRefused, match=r"collectd refused .*Parsing"):
        output.store(view, "sams.x", {"refuse": 1, "fine": 2})
    assert collectd.lines[-1].endswith(":2\n")
    assert output.refused == 1
    output.close()


def test_no_collectd_is_an_error(tmp_path: Path, view: JobView) -> None:
    options = CollectdOptions(socket=str(tmp_path / "none"), metrics={".*": "x"})
    with pytest.raises(OSError, match="No such file"):
        CollectdOutput(options, view).store(view, "s", {"v": 1})
