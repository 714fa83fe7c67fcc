"""``jobsight setup``: from nothing to a server and a node that work with each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from jobsight.cli import setup
from jobsight.cli.main import main
from jobsight.config.load import load_settings
from jobsight.server.serve import BackgroundServer
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]


def contents(directory: Path) -> dict[str, bytes]:
    files = [file for file in directory.rglob("*") if file.is_file()]
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


class Site:
    """A directory for the server's files and one for the node's."""

    def __init__(self, place: Path) -> None:
        self.server_directory = place / "server"
        self.node_directory = place / "node"
        self.store = place / "data" / "store.db"
        self.port = free_port()

    def server(self, *more: str) -> int:
        arguments = ["--cluster", "alpha", "--host", "localhost", "--port", str(self.port)]
        arguments += ["--directory", str(self.server_directory), "--store", str(self.store)]
        return main(["setup", "server", "--interval", "0", "--yes", *arguments, *more])

    def node(self, *more: str) -> int:
        arguments = ["--cluster", "alpha", "--server", f"https://localhost:{self.port}"]
        arguments += ["--directory", str(self.node_directory), "--yes"]
        return main(["setup", "node", *arguments, *more])

    def copies(self) -> list[str]:
        token, ca = self.server_directory / "alpha.token", self.server_directory / "ca" / "ca.pem"
        return ["--token", str(token), "--ca", str(ca)]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.delenv("JOBSIGHT_CONFIG", raising=False)
    made = Site(tmp_path)
    made.store.parent.mkdir(mode=0o700)
    return made


def test_a_server_and_a_node_that_work(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.server() == 0
    said = capsys.readouterr().out
    assert f"add-port={site.port}/tcp" in said
    assert "Prolog=/etc/slurm/jobsight/prolog" in said
    assert f"jobsight setup node --cluster alpha --server https://localhost:{site.port}" in said
    settings = load_settings(site.server_directory / "jobsight.toml", {})
    for secret in ("alpha.token", "server.key", "ca/ca.key"):
        assert stat.S_IMODE((site.server_directory / secret).stat().st_mode) == 0o600
    settings.server.host = "127.0.0.1"
    with BackgroundServer(settings):
        assert site.node(*site.copies()) == 0
        said = capsys.readouterr().out
        assert "the server accepts it" in said
        assert "FAIL" not in said
        # The token of the cluster permits nothing else.
        token = (site.node_directory / "token").read_text().strip()
        reply = httpx2.get(
            f"https://localhost:{site.port}/api/v1/jobs",
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=str(site.node_directory / "ca.pem")),
        )
        assert reply.status_code == 403
        capsys.readouterr()
        config = str(site.node_directory / "jobsight.toml")
        assert main(["doctor", "--config", config]) == 0
        assert "the server accepts it" in capsys.readouterr().out
    # The server is gone: the node says so, and its exit code too.
    assert site.node() == 1
    assert "systemctl status jobsight-server" in capsys.readouterr().out
    assert main(["doctor", "--config", config]) == 1


def test_a_second_time_changes_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.server() == 0
    assert site.node("--no-check", *site.copies()) == 0
    before = contents(site.server_directory), contents(site.node_directory)
    capsys.readouterr()
    assert site.server() == 0
    assert site.node("--no-check", *site.copies()) == 0
    assert (contents(site.server_directory), contents(site.node_directory)) == before
    said = capsys.readouterr().out
    assert "wrote" not in said
    assert said.count("kept") >= 6


def test_other_settings_are_kept_without_force(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.server() == 0
    config = site.server_directory / "jobsight.toml"
    mine = config.read_text() + "\n# ours\n"
    config.write_text(mine)
    assert site.server() == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert config.read_text() == mine
    before = (site.server_directory / "alpha.token").read_text()
    assert site.server("--force") == 0
    assert "# ours" not in config.read_text()
    # Neither the token nor the key are made again: agents use them.
    assert (site.server_directory / "alpha.token").read_text() == before


def test_the_settings_of_the_packages_are_replaced(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """They set nothing: every line is a comment. A line that sets something is the site's."""
    from deploy.packages.manual import sample_settings

    for directory in (site.server_directory, site.node_directory):
        directory.mkdir()
        (directory / "jobsight.toml").write_text(sample_settings())
    assert site.server() == 0
    assert "replaced" in capsys.readouterr().out
    assert load_settings(site.server_directory / "jobsight.toml", {}).cluster == "alpha"
    assert site.node(*site.copies(), "--no-check") == 0
    assert load_settings(site.node_directory / "jobsight.toml", {}).cluster == "alpha"
    own = sample_settings().replace("#cluster = ", "cluster = ")
    (site.server_directory / "jobsight.toml").write_text(own)
    assert site.server() == 2
    assert "--force replaces" in capsys.readouterr().err
    assert (site.server_directory / "jobsight.toml").read_text() == own


def test_the_socket_of_the_packages_listens_where_the_settings_say(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd opens the socket, so the port of the settings alone would have no effect."""
    monkeypatch.setattr(setup, "DIRECTORY", site.server_directory)
    monkeypatch.setattr(setup, "UNITS", ROOT / "deploy" / "systemd")
    monkeypatch.setattr(setup, "SITE_UNITS", tmp_path / "units")
    assert site.server() == 0
    text = (tmp_path / "units/jobsight-server.socket.d/jobsight-setup.conf").read_text()
    assert text.splitlines()[-3:] == [
        "[Socket]", "ListenStream=", f"ListenStream=0.0.0.0:{site.port}",
    ]  # fmt: skip
    assert site.server() == 0
    # Behind a proxy it is loopback, as in the unit itself.
    monkeypatch.setattr(setup, "SITE_UNITS", tmp_path / "others")
    assert site.server("--behind-proxy", "--force") == 0
    assert not (tmp_path / "others").exists()


def test_a_dry_run_writes_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.server("--dry-run") == 0
    said = capsys.readouterr().out
    assert 'cluster = "alpha"' in said
    assert "would write" in said
    assert not site.server_directory.exists()
    assert not site.store.exists()


def test_behind_a_proxy(site: Site) -> None:
    assert site.server("--behind-proxy") == 0
    settings = load_settings(site.server_directory / "jobsight.toml", {})
    assert (settings.server.host, settings.server.tls_certificate) == ("127.0.0.1", None)
    assert settings.server.trusted_proxies == ["127.0.0.1"]
    assert not (site.server_directory / "ca").exists()


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--ca", "--ca: {file} holds no certificate (PEM)"),
        ("--token", "the token file {file} must hold one word"),
        ("--certificate", "--certificate {file} and --key {file} cannot be used together"),
    ],
)
def test_a_file_of_another_kind_is_refused_before_anything_is_written(
    site: Site, tmp_path: Path, option: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes"
    file.write_text("some words of prose\n")
    token = tmp_path / "alpha.token"
    token.write_text("a-token-of-the-cluster-alpha\n")
    more = ["--key", str(file)] if option == "--certificate" else []
    given = [] if option == "--token" else ["--token", str(token)]
    assert site.node(option, str(file), *given, *more) == 2
    said = capsys.readouterr().err
    assert sentence.format(file=file) in said
    assert said.count("\n") == 1
    assert not site.node_directory.exists()
    if option == "--certificate":
        assert site.server(option, str(file), *more) == 2
        assert not site.server_directory.exists()


def test_settings_have_no_relative_paths(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service runs in another directory than the command."""
    place = site.store.parent
    monkeypatch.chdir(place)
    assert site.server("--directory", "server", "--store", "own.db") == 0
    settings = load_settings(place / "server" / "jobsight.toml", {})
    assert settings.store.location == str(place / "own.db")
    assert settings.server.tls_key == str(place / "server" / "server.key")
    pair = ["--certificate", "server/server.pem", "--key", "server/server.key"]
    assert site.server("--directory", "other", "--store", "own.db", *pair) == 0
    settings = load_settings(place / "other" / "jobsight.toml", {})
    assert settings.server.tls_certificate == str(place / "server" / "server.pem")
    given = ["--token", "server/alpha.token", "--ca", "server/ca/ca.pem", "--no-check"]
    assert site.node("--directory", "node", *given) == 0
    settings = load_settings(place / "node" / "jobsight.toml", {})
    assert settings.server.token_file == str(place / "node" / "token")
    assert settings.agent.tls_ca == str(place / "node" / "ca.pem")


def test_it_says_how_to_start_with_settings_elsewhere(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.server("--dry-run") == 0
    said = capsys.readouterr().out
    assert f"jobsight serve --config {site.server_directory}/jobsight.toml" in said
    monkeypatch.setattr(setup, "DIRECTORY", site.server_directory)
    assert site.server("--dry-run") == 0
    assert "systemctl enable --now jobsight-server" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["server", "--cluster", "a b", "--yes"], "is not a name"),
        (["server", "--cluster", "a", "--yes", "--key", "x"], "belong together"),
        (["node", "--cluster", "a", "--yes"], "--server is required"),
        (["node", "--cluster", "a", "--server", "server", "--yes"], "expected a URL such as"),
        (["node", "--cluster", "a", "--server", "http://x", "--token", "/no", "--yes"], "/no"),
    ],
)
def test_mistakes_are_one_sentence(
    site: Site, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", *arguments, "--directory", str(site.node_directory)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not site.node_directory.exists()


def test_the_settings_have_a_comment_for_each(site: Site) -> None:
    assert site.server() == 0
    lines = (site.server_directory / "jobsight.toml").read_text().splitlines()
    assert sum(line.startswith("#") for line in lines) >= 10


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = os.openpty()
        os.set_blocking(self._ours, False)
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jobsight.cli.main", *words],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            # A machine without Slurm: nothing there names the cluster.
            env=os.environ | {"SLURM_CONF": "/dev/null"},
        )  # fmt: skip
        os.close(theirs)

    def _read(self) -> str:
        # EIO: the command has closed the terminal.
        with contextlib.suppress(BlockingIOError, OSError):
            self.shown += os.read(self._ours, 65536).decode().replace("\r\n", "\n")
        return self.shown

    def type(self, question: str, answer: str) -> None:
        """Wait for the question and answer it."""
        wait_until(lambda: re.search(question, self._read()) or self.process.poll() is not None)
        assert re.search(question, self.shown), self.shown
        os.write(self._ours, answer.encode())

    def end(self) -> int:
        wait_until(lambda: self._read() is not None and self.process.poll() is not None)
        self._read()
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


@contextlib.contextmanager
def asked(site: Site) -> Iterator[Terminal]:
    terminal = Terminal(
        "setup", "server", "--directory", str(site.server_directory), "--store", str(site.store),
        "--port", str(site.port), "--interval", "0",
    )  # fmt: skip
    try:
        yield terminal
    finally:
        terminal.close()


def test_on_a_terminal_it_asks_what_no_option_gives(site: Site) -> None:
    with asked(site) as terminal:
        terminal.type(r"Name of the cluster \(ClusterName\).*: $", "beta\n")
        # The default is taken by return.
        terminal.type(rf"Name of this server for nodes \[{re.escape(socket.getfqdn())}\]: $", "\n")
        assert terminal.end() == 0, terminal.shown
    settings = load_settings(site.server_directory / "jobsight.toml", {})
    assert settings.own_cluster() == "beta"
    assert (site.server_directory / "beta.token").exists()
    assert f"--server https://{socket.getfqdn()}:{site.port}" in terminal.shown


def test_an_answer_that_is_no_name_is_refused_before_anything_is_written(site: Site) -> None:
    with asked(site) as terminal:
        terminal.type(r"\(ClusterName\).*: $", "two words\n")
        terminal.type(r"for nodes \[.*\]: $", "localhost\n")
        assert terminal.end() != 0
    assert "--cluster" in terminal.shown
    assert "Traceback" not in terminal.shown
    assert not site.server_directory.exists()


@pytest.mark.parametrize(("key", "status"), [("\x03", 130), ("\x04", 2)])
def test_a_question_is_left_by_control_c_and_control_d(site: Site, key: str, status: int) -> None:
    """Control-D is the default, and no answer where there is none."""
    with asked(site) as terminal:
        terminal.type(r"\(ClusterName\): $", key)
        left = terminal.end()
    assert left == status, terminal.shown
    assert "Traceback" not in terminal.shown
    assert not site.server_directory.exists()
