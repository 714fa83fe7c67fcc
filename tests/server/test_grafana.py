"""The queries of docs/grafana.md against the API, and the widget for Open OnDemand."""

import json
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from jobsight.server.app import create_app
from jobsight.store.store import Store
from tests.server.batches import batch
from tests.server.conftest import TOKEN
from tests.server.site import client_of, fill
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
QUERIES = [
    json.loads(block)
    for block in re.findall(
        r"^```json\n(.*?)^```", (ROOT / "docs/grafana.md").read_text(), re.DOTALL | re.MULTILINE
    )
]
VARIABLES = {"run": "12", "user": "alice", "__from:date:iso": "2026-11-01T00:00:00.000Z"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("grafana") / "store.db") as store:
        fill(store)
        store.write(batch(14, end=None, state="RUNNING", name="<b>now</b>"))
        yield store


@pytest.fixture(scope="module")
def client(site: Store) -> TestClient:
    return client_of(site)


def _select(document: Any, selector: str) -> Any:
    for name in selector.split("."):
        document = document[name]
    return document


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query["url"].partition("?")[0])
def test_a_documented_query_is_answered(client: TestClient, query: dict[str, Any]) -> None:
    url = re.sub(r"\$\{([^}]*)\}", lambda match: VARIABLES[match[1]], query["url"])
    reply = client.get(url)
    assert reply.status_code == 200, reply.text
    rows = _select(reply.json(), query["root_selector"])
    assert rows
    for column in query["columns"]:
        values = [_select(row, column["selector"]) for row in rows]
        known = [value for value in values if value is not None]
        if column["type"] == "timestamp":
            assert known
            for value in known:
                datetime.fromisoformat(value)
        else:
            kinds = {"string": str, "number": (int, float)}[column["type"]]
            assert all(isinstance(value, kinds) for value in known)


def test_there_are_queries() -> None:
    assert len(QUERIES) == 8


@pytest.fixture(scope="module")
def url(site: Store) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(site, TOKEN, delay=0), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_until(lambda: server.started)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


def _widget(home: Path, login: dict[str, str] | None = None) -> str:
    if shutil.which("erb") is None:
        pytest.skip("the Debian package ruby is not installed")
    if login is not None:
        (home / "jobsight").mkdir(exist_ok=True)
        (home / "jobsight/login.json").write_text(json.dumps(login))
    done = subprocess.run(
        ["erb", "-T", "-", str(ROOT / "deploy/ondemand/_jobsight.html.erb")],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "XDG_CONFIG_HOME": str(home), "LANG": "C.UTF-8"},
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.server
def test_the_widget_shows_the_jobs(url: str, tmp_path: Path) -> None:
    page = _widget(tmp_path, {"url": f"{url}/", "token": TOKEN})
    assert f'<a href="{url}/jobs/alpha%3A12%3A20261115T043312Z">12</a>' in page
    assert "failed with exit code 7" in page
    assert "<td>50 %</td>" in page
    assert "&lt;b&gt;now&lt;/b&gt;" in page
    assert "<b>now" not in page
    assert TOKEN not in page


@pytest.mark.server
def test_the_widget_says_what_is_missing(url: str, tmp_path: Path) -> None:
    assert "jobsight login" in _widget(tmp_path)
    assert "cannot be shown" in _widget(tmp_path, {})
    refused = _widget(tmp_path, {"url": url, "token": "a-token-that-is-wrong"})
    assert "the token is invalid" in refused
    with socket.create_server(("127.0.0.1", 0)) as closed:
        away = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert "cannot be shown" in _widget(tmp_path, {"url": away, "token": TOKEN})
