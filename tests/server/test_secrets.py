"""What ``jobsight serve`` prints and logs: no token and no password, unless requested."""

import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobsight.server.serve import BackgroundServer
from tests.server.test_serve import _get, _settings
from tests.waiting import wait_until

pytestmark = pytest.mark.server

PASSWORD = "hunter2secret"


#: The record of a server whose store is a database is in the data directory.
_SERVE = """
import pathlib, sys
from jobsight.cli.main import main
from jobsight.config import paths
paths.data_directory = lambda: pathlib.Path(sys.argv[1])
sys.exit(main(["serve", *sys.argv[2:]]))
"""


@contextmanager
def serving(folder: Path, *options: str, output: int) -> Iterator[None]:
    """The command in a process of its own, which writes everything to one descriptor."""
    command = [sys.executable, "-c", _SERVE, str(folder), "--log-level", "debug", "--port", "0"]
    with subprocess.Popen([*command, *options], stdout=output, stderr=output) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)


def printed(folder: Path, *options: str) -> str:
    """All that a server writes into a file, as it does into the journal, from start to end."""
    file = folder / "output"
    with file.open("wb") as output, serving(folder, *options, output=output.fileno()):
        wait_until(lambda: "server.serve: listening on" in file.read_text())
    return file.read_text()


def test_a_log_gets_neither_token_nor_password(tmp_path: Path, location: str) -> None:
    if location.startswith("postgresql"):
        # The test's PostgreSQL accepts any password.
        location = f"{location}&password={PASSWORD}"
        location = location.replace("postgresql://", f"postgresql://postgres:{PASSWORD}@")
    for _ in ("the first start, which creates the token", "another"):
        text = printed(tmp_path, "--store", location)
        assert (tmp_path / "token").read_text().strip() not in text
        assert PASSWORD not in text
        assert "?code=" not in text
        assert f"  token  {tmp_path / 'token'}\n" in text


def test_the_token_is_printed_on_request(tmp_path: Path) -> None:
    text = printed(tmp_path, "--store", str(tmp_path / "store.db"), "--show-token")
    assert f"  token  {(tmp_path / 'token').read_text().strip()}\n" in text


def test_a_terminal_gets_an_address_that_signs_one_browser_in(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with serving(tmp_path, "--store", str(tmp_path / "store.db"), output=theirs):
            text = ""
            while (found := re.search(r"(http://[^ ]+)/(\?code=[-\w]+)", text)) is None:
                text += os.read(ours, 4096).decode()
            url, query = found.groups()
            wait_until(lambda: _answers(url))
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor()
            )
            with opener.open(f"{url}/{query}", timeout=60) as answer:
                assert (answer.status, answer.url) == (200, f"{url}/")
            assert _get(f"{url}/{query}")[0] == 401
            assert (tmp_path / "token").read_text().strip() not in text
    finally:
        os.close(ours)
        os.close(theirs)


def _answers(url: str) -> bool:
    try:
        return _get(f"{url}/healthz")[0] == 200
    except OSError:
        return False


def test_each_sign_in_url_has_a_code_of_its_own(tmp_path: Path) -> None:
    with BackgroundServer(_settings(tmp_path)) as server:
        urls = [server.sign_in_url() for _ in range(2)]
        assert len(set(urls)) == 2
        assert all(server.token not in url for url in urls)
