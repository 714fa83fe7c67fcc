"""Corrupted replies: no traceback, stored data is kept, and the health is true.

Each mutation has a number, which is the seed of its random choices; a failure names it.
"""

import copy
import json
import logging
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobsight.config.settings import Settings
from jobsight.scheduler.records import NodeInfo
from jobsight.scheduler.scraper import Scraper
from jobsight.scheduler.sources.base import Choice, Source
from jobsight.scheduler.sources.recorded import RecordedSource
from jobsight.scheduler.sources.text import TextSource
from jobsight.server.api.health import read_health
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store

DATA = Path(__file__).parents[1] / "data" / "slurm"
#: Mutations in one test; the first test is part of every run, the others are long.
_EACH = 100
_TESTS = 12

#: Stands for a value that json.dumps cannot write.
_RAW = "@@RAW@@"
_RAW_VALUES = [
    "9" * 5000,
    "[" * 5000 + "]" * 5000,
    "[" * 60 + "]" * 60,
    "NaN",
    "-Infinity",
    "1e999",
]
_VALUES: list[Any] = [
    None, True, 0, -1, -5, 2**31, 2**32, 2**63, 2**64, -(2**64), 10**30, 1.5, 1e300, "", "x", "-7",
    "x" * 20000, "\ud800", "a\x00b", "é\udcff", [], {}, [None], [[]], {"": None}, "VANISHED",
    ["VANISHED"], ["RUNNING", 7], {"set": True, "number": -7}, {"number": 2**70},
    {"set": True, "infinite": False, "number": "x"}, "n[1-99999999]", "n[", "gres/gpu=-1",
]  # fmt: skip


def containers(value: Any) -> Iterable[Any]:
    if isinstance(value, dict | list):
        yield value
        for entry in value.values() if isinstance(value, dict) else value:
            yield from containers(entry)


def mutate_document(rng: random.Random, document: Any) -> bytes:
    document = copy.deepcopy(document)
    raw = ""
    for _ in range(rng.randint(1, 4)):
        target = rng.choice([each for each in containers(document) if each] or [document])
        if not target:
            break
        key = rng.choice(list(target)) if isinstance(target, dict) else rng.randrange(len(target))
        action = rng.random()
        if action < 0.2:
            del target[key]
        elif action < 0.3:
            target[key], raw = _RAW, rng.choice(_RAW_VALUES)
        else:
            target[key] = copy.deepcopy(rng.choice(_VALUES))
    data = json.dumps(document).encode().replace(f'"{_RAW}"'.encode(), raw.encode() or b"0")
    return mutate_bytes(rng, data) if rng.random() < 0.2 else data


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(max(len(data), 1))
    action = rng.randrange(5)
    if action == 0:
        return data[:at]
    if action == 1:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if action == 2:
        return data[:at] + b"\xff\xfe\x80" + data[at:]
    if action == 3:
        return rng.choice([b"", b"{}", b"[]", b"null", b"Welcome\n", b'{"jobs":[],"nodes":[]}'])
    error = b'{"errors":[{"error_number":2,"error":"lost"}],'
    return error + data[1:]


class Commands:
    """sacct, squeue and sinfo, whose rows are mutated."""

    def __init__(self) -> None:
        self.rng: random.Random | None = None

    def __call__(
        self, command: Sequence[str], timeout: float, *, given: bytes = b""
    ) -> Iterable[bytes]:
        line = " ".join(command)
        if "--helpformat" in command:
            return [b" ".join(name.encode() for name in ROW)]
        if match := re.search(r"--delimiter=(\S+) --format=(\S+)", line):
            return [self._rows(match[1], match[2].split(","))]
        if match := re.search(r"--Format=(\S+)", line):
            pairs = re.findall(r"([\w-]+):(~\w+~)", match[1])
            return [self._rows(pairs[0][1], [name for name, _ in pairs])]
        return [b""]

    def _rows(self, delimiter: str, columns: Sequence[str]) -> bytes:
        data = b""
        for number in range(1, 4):
            row = dict(ROW, JobIDRaw=str(number), JobID=str(number), NodeList=f"n{number}")
            if self.rng is not None and self.rng.random() < 0.5:
                row[self.rng.choice(columns)] = str(self.rng.choice(_VALUES))
            for name in columns:
                data += row.get(name, "").encode("utf-8", "surrogatepass") + delimiter.encode()
            data += b"\n"
        if self.rng is not None and self.rng.random() < 0.2:
            return mutate_bytes(self.rng, data)
        return data


ROW = {
    "JobIDRaw": "1", "JobID": "1", "State": "COMPLETED", "Start": "1794720981", "End": "1794721281",
    "User": "alice", "JobName": "train", "Name": "train", "NodeList": "n1", "Partition": "main",
    "PartitionName": "main", "UserName": "alice", "AllocTRES": "cpu=4,mem=1G,node=1",
    "AllocCPUS": "4", "ExitCode": "0:0", "TotalCPU": "00:01.000", "StartTime": "1794720981",
    "EndTime": "1794721281", "StateComplete": "idle", "CPUs": "4", "CPUsState": "0/4/0/4",
    "Memory": "1024", "Available": "up", "TimelimitRaw": "10", "Submit": "1794720900",
}  # fmt: skip


class Bench:
    """One store and a scraper, and what the store had before the first mutation."""

    def __init__(self, directory: Path) -> None:
        settings = Settings(cluster="lab")
        settings.store.location = str(directory / "store.db")
        self.store = Store.open(settings.store.location)
        self.replies = directory / "replies"
        self.replies.mkdir()
        self.documents = {
            name: json.loads((DATA / f"{name}.json").read_text())
            for name in ("sacct", "squeue", "sinfo")
        }
        for name in ("sacct", "squeue"):
            self.documents[name]["jobs"] = self.documents[name]["jobs"][:8]
        self.commands = Commands()
        self.recorded: Source = RecordedSource("lab", self.replies)
        self.text: Source = TextSource("lab", run=self.commands)
        self.source = self.recorded
        self.scraper = Scraper(
            self.store, settings, choose=lambda _: Choice(self.source, self.source.name)
        )

    def scrape(self, source: Source) -> bool:
        self.source = source
        self.scraper._choice = None
        state = self.scraper.once()
        assert "internal error" not in state.reason, state.reason
        (cluster,) = read_health(self.store).clusters
        assert (cluster.healthy, cluster.reason) == (state.healthy, state.reason)
        return state.healthy

    def write(self, name: str, data: bytes) -> None:
        (self.replies / f"{name}.json").write_bytes(data)

    def restore(self) -> None:
        self.commands.rng = None
        for name, document in self.documents.items():
            self.write(name, json.dumps(document).encode())

    def ended(self) -> set[tuple[int, int]]:
        return {
            (run.info.job_id, run.start)
            for run in self.store.runs(limit=10000)
            if run.info.end is not None
        }


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=[pytest.mark.long] if n else []) for n in range(_TESTS)],
)
def test_corrupted_replies(number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path)
    bench.restore()
    assert bench.scrape(bench.recorded)
    assert bench.scrape(bench.text)
    known = bench.ended()
    assert len(known) > 5
    for mutation in range(number * _EACH, (number + 1) * _EACH):
        rng = random.Random(mutation)
        source = bench.text if rng.random() < 0.3 else bench.recorded
        bench.restore()
        complete = True
        if source is bench.text:
            bench.commands.rng = rng
        else:
            name = rng.choice(list(bench.documents))
            data = mutate_document(rng, bench.documents[name])
            bench.write(name, data)
            complete = is_complete(data)
        healthy = bench.scrape(source)
        assert complete or not healthy, f"mutation {mutation} is not a reply, but succeeded"
        assert known <= bench.ended(), f"mutation {mutation} lost an end"
        assert read_snapshot(bench.store.database, "lab", "node", NodeInfo), f"mutation {mutation}"
        assert not [record for record in caplog.records if record.exc_info], (
            f"mutation {mutation} has a traceback"
        )
        caplog.clear()
    bench.restore()
    assert bench.scrape(bench.recorded)
    logging.getLogger(__name__).info("%d mutations", _EACH)
    bench.store.close()


def is_complete(data: bytes) -> bool:
    """Whether the reply is a JSON object at all."""
    try:
        return isinstance(json.loads(data.decode("utf-8", "replace"), strict=False), dict)
    except (ValueError, RecursionError):
        # Python refuses integers of thousands of digits, which the scraper reads.
        return b"9" * 4000 in data
