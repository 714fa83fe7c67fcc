"""The cluster's name where neither the settings nor a slurm.conf have it: Slurm is queried.

Issue 14, fault 18: a server that queries Slurm over SSH or REST stored what the scheduler knows
under the name of its own host, and what the agents send under that of the cluster.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobsight.cli.main import main
from jobsight.config.settings import Settings, short_host_name
from jobsight.errors import ConfigError
from jobsight.model import JobInfo
from jobsight.scheduler.adapters.sacct import COLUMNS
from jobsight.scheduler.cluster_name import ClusterNameError, cluster_of_agents, with_cluster_name
from jobsight.scheduler.records import SourceError
from jobsight.scheduler.scraper import scraping
from jobsight.scheduler.sources.base import Choice, Source, open_source
from jobsight.scheduler.sources.json import JsonSource
from jobsight.scheduler.sources.onsite import OnsiteSource
from jobsight.scheduler.sources.onsite_script import FORMAT
from jobsight.scheduler.sources.recorded import RecordedSource
from jobsight.scheduler.sources.rest import RestSource
from jobsight.scheduler.sources.text import TextSource
from jobsight.scheduler.state import cluster_of_records, read_state
from jobsight.store.store import Store
from jobsight.store.tokens import Tokens
from jobsight.util.workers import worker_states
from tests.scheduler import shapes, sshd
from tests.scheduler.sources.test_pyslurm import NEW, OLD, pyslurm
from tests.scheduler.sources.test_sources import JOB, REPLIES, STEP, slurmrestd
from tests.waiting import wait_until

__all__ = ["pyslurm"]

DATA = Path(__file__).parents[1] / "data" / "slurm"
#: The first lines of ``scontrol show config``, and those around the name.
CONFIG = """Configuration data as of 2026-11-15T06:30:00
AccountingStorageBackupHost = (null)
AuthInfo                = (null)
CliFilterPlugins        = (null)
ClusterName             = {name}
CommunicationParameters = (null)
SlurmctldParameters     = ClusterName=no
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def commands(folder: Path, name: str | None = "Beluga") -> str:
    """A directory of Slurm's commands; without a name the controller does not answer."""
    folder.mkdir(exist_ok=True)
    config = folder / "config"
    config.write_text(CONFIG.format(name=name))
    answer = f"cat '{config}'" if name else "echo 'Unable to contact slurm controller' >&2; exit 1"
    script = folder / "scontrol"
    script.write_text(f'#!/bin/sh\ntest "$*" = "show config" || exit 2\n{answer}\n')
    script.chmod(0o755)
    return str(folder)


def settings_of(folder: str) -> Settings:
    settings = Settings()
    settings.scheduler.source = "text"
    settings.scheduler.slurm_directory = folder
    return settings


@pytest.mark.parametrize("make", [TextSource, JsonSource])
@pytest.mark.parametrize(
    ("name", "expected"), [("lab", "lab"), ("C-1.x", "C-1.x"), ("(null)", None), ("", None)]
)
def test_commands_report_the_name(
    make: type[TextSource | JsonSource], name: str, expected: str | None
) -> None:
    def run(command: Sequence[str], timeout: float) -> list[bytes]:
        assert command == ["scontrol", "show", "config"]
        return [CONFIG.format(name=name).encode()]

    assert make("", run=run).cluster_name() == expected


def clusters(*names: str) -> dict[str, Any]:
    return {"meta": {}, "errors": [], "clusters": [{"name": name} for name in names]}


#: Without the name in its meta data, as before 23.02.
PING = {"meta": {"Slurm": {"release": "22.05.8"}}, "errors": [], "pings": []}


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ({}, "hpc"),
        ({"ping": PING, "clusters": clusters("alpha")}, "alpha"),
        # Several clusters in one accounting: the controller's jobs have theirs.
        ({"ping": PING, "clusters": clusters("a", "b")}, "lab"),
        ({"ping": PING, "clusters": 500}, "lab"),
        ({"ping": PING, "clusters": clusters("a", "b"), "jobs": shapes.reply()}, None),
        ({"ping": PING, "clusters": {"clusters": [7]}, "jobs": shapes.reply()}, None),
    ],
)
def test_slurmrestd_reports_the_name(replies: dict[str, Any], expected: str | None) -> None:
    recorded = json.loads((DATA / "squeue.json").read_text())
    served = {
        "/openapi/v3": REPLIES["/openapi/v3"],
        "/slurm/v0.0.41/ping": replies.get("ping", shapes.reply()),
        "/slurm/v0.0.41/jobs": replies.get("jobs", recorded),
        "/slurmdb/v0.0.41/clusters": replies.get("clusters"),
    }
    with slurmrestd(served) as (url, _):
        assert RestSource("", url, timeout=60).cluster_name() == expected


def _reasons() -> dict[str, str]:
    return {each.name: each.reason for each in worker_states()}


def test_slurmrestd_that_is_away_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not answer"):
        RestSource("", f"unix:{tmp_path}/nothing", timeout=60).cluster_name()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            OLD + "class config:\n    def get(self): return {'cluster_name': 'lab', 'x': b'y'}\n",
            "lab",
        ),
        (
            NEW + "class slurmctld:\n    class Config:\n        cluster_name = 'lab'\n"
            "        @classmethod\n        def load(cls): return cls()\n",
            "lab",
        ),
        (OLD + "class config:\n    def get(self): return {}\n", None),
    ],
)
def test_pyslurm_reports_the_name(
    text: str, expected: str | None, pyslurm: Callable[[str], Any]
) -> None:
    assert pyslurm(text).cluster_name() == expected


def test_pyslurm_without_a_configuration(pyslurm: Callable[[str], Any]) -> None:
    with pytest.raises(SourceError, match="has none of config"):
        pyslurm(OLD).cluster_name()


def test_records_name_their_cluster(tmp_path: Path) -> None:
    assert RecordedSource("", DATA).cluster_name() == "lab"
    # Whatever the settings call it.
    assert RecordedSource("other", DATA).cluster_name() == "lab"
    two = [shapes.new_accounting(cluster=name) for name in ("a", "b")]
    (tmp_path / "sacct.json").write_text(json.dumps(shapes.reply(*two)))
    assert RecordedSource("", tmp_path).cluster_name() is None


@pytest.mark.parametrize(("rows", "expected"), [([JOB, STEP], "hpc"), ([], None)])
def test_the_document_of_the_on_site_script_has_the_name(
    rows: list[dict[str, str]], expected: str | None
) -> None:
    output = "".join("".join(f"{row.get(name, '')}~~" for name in COLUMNS) + "\n" for row in rows)
    reply = {"name": "sacct", "columns": COLUMNS, "mark": "~~", "output": output}
    document = json.dumps({"format": FORMAT, "written": 0, "replies": [reply]}).encode()
    assert OnsiteSource("", lambda: document).cluster_name() == expected


# --- the settings, the store and Slurm ------------------------------------------------------------


def test_slurm_names_a_cluster_without_a_name(store: Store, tmp_path: Path) -> None:
    settings = settings_of(commands(tmp_path / "bin"))
    # In lower case, as the accounting and the agents have it.
    assert with_cluster_name(settings, store.database).cluster == "beluga"
    settings.cluster = "own"
    commands(tmp_path / "bin", None)
    assert with_cluster_name(settings, store.database).cluster == "own"


def test_a_controller_that_is_away_later_changes_nothing(store: Store, tmp_path: Path) -> None:
    settings = settings_of(commands(tmp_path / "bin"))
    with_cluster_name(settings, store.database)
    commands(tmp_path / "bin", None)
    assert with_cluster_name(settings, store.database).cluster == "beluga"
    assert cluster_of_records(store.database, settings) == "beluga"
    # Another Slurm, in the same store.
    settings.scheduler.ssh.host = "login.example.org"
    with pytest.raises(ClusterNameError):
        with_cluster_name(settings, store.database, lambda _: away())
    assert cluster_of_records(store.database, settings) == short_host_name()


def test_a_cluster_that_was_renamed(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(commands(tmp_path / "bin"))
    with_cluster_name(settings, store.database)
    commands(tmp_path / "bin", "narval")
    caplog.set_level(logging.WARNING)
    assert with_cluster_name(settings, store.database).cluster == "narval"
    assert caplog.messages == ["the cluster beluga is named narval now"]


def away() -> Choice:
    raise SourceError("slurmrestd at x does not answer: refused")


class Nameless(TextSource):
    """A Slurm that answers without the name, or with one that cannot be stored."""

    def __init__(self, name: str | None) -> None:
        super().__init__("")
        self._name = name

    def cluster_name(self) -> str | None:
        return self._name


@pytest.mark.parametrize(
    ("choose", "why"),
    [
        (lambda _: away(), "slurmrestd at x does not answer: refused"),
        (lambda _: Choice(Nameless(None), ""), "Slurm does not report it to the source text"),
        (lambda _: Choice(Nameless("x" * 300), ""), "has 300 bytes"),
        (lambda _: Choice(Nameless("a\x1bb"), ""), "control character"),
    ],
)
def test_a_name_that_is_not_known_is_one_sentence(
    choose: Callable[[Settings], Choice], why: str, store: Store
) -> None:
    with pytest.raises(ClusterNameError) as caught:
        with_cluster_name(Settings(), store.database, choose)
    message = str(caught.value)
    assert message.startswith("the name of the cluster is not known: ")
    assert why in message
    assert "set `cluster` to the ClusterName that `scontrol show config` prints" in message
    assert "\n" not in message


def test_a_server_without_a_scheduler_keeps_the_name_of_the_host(store: Store) -> None:
    def never(settings: Settings) -> Choice:
        raise AssertionError("Slurm was queried")

    assert cluster_of_agents(Settings(), store.database, never) == short_host_name()
    settings = Settings()
    settings.clusters = {"one": settings.scheduler}
    assert cluster_of_agents(settings, store.database, never) == "one"
    settings.clusters["two"] = settings.scheduler
    with pytest.raises(ConfigError, match="expected --cluster with one of one, two"):
        cluster_of_agents(settings, store.database, never)


# --- as it is used --------------------------------------------------------------------------------


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    monkeypatch.delenv("JOBSIGHT_CLUSTER", raising=False)
    return str(tmp_path / "store.db")


def test_a_scrape_and_a_token_have_the_name_of_slurm(
    location: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agents' batches, the token and the scraper's records meet under one name."""
    monkeypatch.setenv("JOBSIGHT_SCHEDULER__RECORDED", str(DATA))
    assert main(["token", "add", "--store", location]) == 0
    assert "of cluster lab" in capsys.readouterr().err
    assert main(["scrape", "--once", "--store", location]) == 0
    with Store.open(location) as store:
        assert {run.info.cluster for run in store.runs(limit=500)} == {"lab"}
        assert [token.cluster for token in Tokens(store.database).list(None)] == ["lab"]
        seen = JobInfo(cluster="lab", job_id=15, source="agent")
        before = store.count_runs()
        store.record_jobs([seen])
        assert store.count_runs() == before


def test_a_scrape_without_a_name_fails_with_one_line(
    location: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["scrape", "--once", "--source", "text", "--store", location]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("jobsight: the name of the cluster is not known: scontrol cannot be run")
    with Store.open(location) as store:
        assert store.count_runs() == 0


def test_a_server_starts_while_slurm_is_away_and_asks_again(
    location: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings()
    settings.store.location = location
    settings.scheduler.recorded = str(tmp_path / "replies")
    settings.scheduler.interval = 0.01
    with Store.open(location) as store, scraping(settings, store):
        wait_until(lambda: "is not known" in _reasons()["scrape"])
        # The directory appears with all of its files.
        (tmp_path / "replies").symlink_to(DATA)
        wait_until(lambda: read_state(store.database, "lab").healthy)
        wait_until(lambda: _reasons()["scrape"] == "")
        assert {run.info.cluster for run in store.runs(limit=500)} == {"lab"}


@pytest.mark.root
def test_slurm_on_another_host_names_the_cluster(store: Store, tmp_path: Path) -> None:
    (tmp_path / "sshd").mkdir()
    settings = settings_of(commands(tmp_path / "bin"))
    try:
        with sshd.running(tmp_path / "sshd", {"LANG": "C"}) as host:
            settings.scheduler.ssh = host
            assert with_cluster_name(settings, store.database).cluster == "beluga"
    except sshd.Unavailable as reason:
        pytest.skip(str(reason))
    # That host is unreachable now.
    assert with_cluster_name(settings, store.database).cluster == "beluga"


def test_slurmrestd_names_the_cluster(store: Store) -> None:
    settings = Settings()
    with slurmrestd(REPLIES) as (url, _):
        settings.scheduler.rest.url = url
        source: Source = open_source(settings).source
        assert isinstance(source, RestSource)
        assert with_cluster_name(settings, store.database).cluster == "hpc"
    settings.scheduler.source = "rest"
    # It is unreachable now.
    assert with_cluster_name(settings, store.database).cluster == "hpc"
