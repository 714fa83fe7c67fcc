"""``jobsight cluster``: the figures of the last scrape, in words, bars and JSON."""

import json
from pathlib import Path

import pytest

from jobsight.cli.main import main
from jobsight.model import SECOND
from jobsight.scheduler.records import PartitionInfo
from jobsight.scheduler.state import ScrapeState, write_state
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store
from tests.scheduler.sinks.site import START, book, keep, node, record


@pytest.fixture
def location(tmp_path: Path) -> str:
    place = str(tmp_path / "store.db")
    with Store.open(place) as store:
        book(store, [record(1, end=None, state="RUNNING")])
        waits = record(2, None, array_tasks="1-4")
        waits.reason = "Resources"
        keep(store, waiting=[waits], nodes=[
            node("n1", partitions=("main",), memory_allocated=2**35),
            node("n2", partitions=("main", "long"), state="IDLE", cpus_allocated=0, gres_used={}),
            node("n3", partitions=("long",), state="DOWN", state_flags=("DRAIN",),
                 reason="no\x1b[31m power", reason_user="root", cpus_allocated=0, gres={}),
        ])  # fmt: skip
        partitions = [
            PartitionInfo(cluster="c1", name="main", state="UP", time_limit=3600 * SECOND),
            PartitionInfo(cluster="c1", name="long", state="UP"),
        ]
        Snapshot(store.database, "c1").replace("partition", [(one.name, one) for one in partitions])
        write_state(store.database, ScrapeState(cluster="c1", attempted=START, succeeded=START))
    return place


def test_at_a_glance(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "--store", location]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("c1   1 running, 4 pending   scraped ")
    lines = [line.split() for line in shown.splitlines()]
    cpus = next(words for words in lines if words[:1] == ["CPUs"])
    assert cpus[2:] == ["12.5", "%", "13", "24"]
    # A third of the bar belongs to the node that is lost.
    assert cpus[1].count("x") == 10
    assert ["GPUs", "a100"] in [words[:2] for words in lines]
    assert "nodes    1 mixed, 1 idle, 1 down+drain" in shown
    assert "pending  4 Resources" in shown
    (main_row,) = [words for words in lines if words[:2] == ["main", "up"]]
    assert main_row[2:] == ["2", "18.8", "%", "13", "16", "7/8", "01:00:00", "1", "4"]
    assert "1/2" in next(words for words in lines if words[:2] == ["long", "up"])
    assert "no\\x1b[31m power" in shown
    assert "\x1b" not in shown


def test_every_node_and_json(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "c1", "--nodes", "--store", location]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("n")] == [
        "node", "n1", "n2", "n3",
    ]  # fmt: skip
    assert main(["cluster", "--json", "--store", location]) == 0
    (view,) = json.loads(capsys.readouterr().out)
    assert view["cpus"] == {"allocated": 3, "idle": 13, "total": 24}
    assert view["scraped"].endswith("Z")
    assert {row["time_limit_seconds"] for row in view["partitions"]} == {None, 3600}
    assert view["partitions"][0]["nodes_usable"] == 1
    assert view["unavailable"][0]["user"] == "root"


def test_wrong_words_are_one_line(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "c9", "--store", location]) != 0
    assert "there is no cluster 'c9' in the store; there are c1" in capsys.readouterr().err
    assert main(["cluster", "--store", str(tmp_path / "none.db")]) != 0
    assert capsys.readouterr().err.count("\n") == 1
    empty = str(tmp_path / "empty.db")
    Store.open(empty).close()
    assert main(["cluster", "--store", empty]) != 0
    assert "no cluster has been scraped yet" in capsys.readouterr().err
