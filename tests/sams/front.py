"""A real nginx with the configuration that we ship, in front of the real receiver."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port

PROJECT = Path(__file__).parents[2]
SHIPPED = PROJECT / "deploy" / "nginx" / "sams-post-receiver.conf"

_MAIN = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


class Front:
    """Where it listens, and the credentials that its clients need."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.incoming = folder / "in"

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    def paper(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.incoming.rglob("*") if path.is_file())


def make_papers(folder: Path) -> None:
    """An authority, a server's certificate for 127.0.0.1, a node's, and one of a stranger."""
    _openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "node"):
        _openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
                 "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                 "-CAcreateserial", "-days", "2", "-extfile", "names", "-out",
                 f"{name}.pem")  # fmt: skip
    _openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=stranger", "-keyout", "stranger.key", "-out",
             "stranger.pem")  # fmt: skip
    password = _openssl(folder, "passwd", "-apr1", "secret").strip()
    (folder / "htpasswd").write_text(f"sams:{password}\n")


def _openssl(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def nginx_for(folder: Path, site: str) -> list[str]:
    """The command of an nginx that serves one site and keeps all its files in a directory."""
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    if nginx is None or shutil.which("openssl") is None:
        pytest.skip("needs nginx and openssl; `make test` as root installs them")
    (folder / "site.conf").write_text(site)
    # Its workers would otherwise be a user who may not enter the directories of the tests.
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(_MAIN.format(folder=folder, user=user))
    return [nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder)]


@contextmanager
def running(folder: Path, *, certificates: bool = False) -> Iterator[Front]:
    """Both programs, until the end of the block."""
    front, back = free_port(), free_port()
    nginx = nginx_for(folder, _adapted(folder, front, back, certificates))
    make_papers(folder)
    config = folder / "receiver.yaml"
    config.write_text(
        "sams.post-receiver:\n"
        f"  base_path: {folder}/in\n  jobid_hash_size: 1000\n  port: {back}\n  loglevel: INFO\n"
    )
    commands = [
        [sys.executable, "-m", "jobsight.cli.compat.post_receiver", "--config", str(config)],
        nginx,
    ]
    programs = []
    try:
        for command, port in zip(commands, (back, front), strict=True):
            with (folder / "programs.log").open("ab") as log:
                programs.append(subprocess.Popen(command, stdout=log, stderr=log))
            wait_for(port, folder)
        yield Front(folder, front)
    finally:
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait(60)


def _adapted(folder: Path, front: int, back: int, certificates: bool) -> str:
    """The shipped file with the places of this test, and nothing else changed."""
    changes = {
        "    listen       [::]:8443 ssl;\n": "",
        "*:8443": f"127.0.0.1:{front}",
        "/var/log/nginx/": f"{folder}/",
        "/etc/grid-security/SERVER.cert.pem": f"{folder}/server.pem",
        "/etc/grid-security/SERVER.key.pem": f"{folder}/server.key",
        "/etc/nginx/allowed.ca.pem": f"{folder}/ca.pem",
        "/etc/nginx/htpasswd;": f"{folder}/htpasswd;",
        "127.0.0.1:8080": f"127.0.0.1:{back}",
    }
    if certificates:
        changes["#ssl_"] = "ssl_"
    return adapted(SHIPPED, changes)


def adapted(shipped: Path, changes: dict[str, str]) -> str:
    """A shipped file with the places of a test, each of which must stand in it."""
    text = shipped.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def wait_for(port: int, folder: Path) -> None:
    """Wait until somebody listens; else the programs' log says why not."""
    deadline = time.monotonic() + 90
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise AssertionError((folder / "programs.log").read_text()) from None
            time.sleep(0.05)
