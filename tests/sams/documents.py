"""SAMS records for the tests, and what the store made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jobsight.model import SECOND
from jobsight.sams.settings import FALLBACK, FILE, LoaderSettings, load_aggregator
from jobsight.store.store import Store
from jobsight.text import readable_path

START = 1_704_103_200
INFO = {
    "account": "p1",
    "cpus": "4",
    "jobname": "j",
    "nodes": "1",
    "partition": "batch",
    "starttime": "2024-01-01T10:00:00",
    "starttimestamp": float(START),
    "uid": "1001",
    "username": "u1",
}
EXECS = {
    "/sw/GROMACS/2023.1/bin/gmx": {"system": 2.5, "user": 100.5},
    "/usr/bin/bash": {"system": 0.1, "user": 0.1},
}


def document(
    job_id: int = 100,
    node: str = "n1",
    *,
    start: int = START,
    info: dict[str, Any] | None = INFO,
    execs: dict[str, Any] = EXECS,
    length: int = 3600,
) -> dict[str, Any]:
    """A record as SAMS's collector writes it; without ``info`` it does not say whose it is."""
    made: dict[str, Any] = {
        "sams.sampler.Core": {"jobid": job_id, "node": node},
        "sams.sampler.Software": {"execs": execs, "start_time": start, "end_time": start + length},
    }
    if info is not None:
        given = dict(info)
        if info.get("starttimestamp") == float(START):
            given["starttimestamp"] = float(start)
        made["sams.sampler.SlurmInfo"] = given
    return made


def encode(made: dict[str, Any]) -> bytes:
    return json.dumps(made, sort_keys=True, separators=(",", ":")).encode()


class Site:
    """The directories and the settings of a site that runs the aggregator."""

    def __init__(
        self,
        folder: Path,
        *,
        fallback: bool = False,
        sacct: str = "/bin/false",
        store: str | None = None,
    ) -> None:
        self.folder = folder
        self.store = store or str(folder / "store.db")
        for name in ("in", "archive", "error"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        loader = FALLBACK if fallback else FILE
        self.config = folder / "aggregator.yaml"
        self.config.write_text(
            "sams.aggregator:\n"
            f"  loaders: [{loader}]\n"
            "  aggregators: [sams.aggregator.SoftwareAccounting]\n"
            f"  store: '{self.store}'\n"
            f"{loader}:\n"
            f"  in_path: {folder}/in\n"
            f"  archive_path: {folder}/archive\n"
            f"  error_path: {folder}/error\n"
            "  file_pattern: '^.*\\.json$'\n"
            + (f"  sacct: {sacct}\n" if fallback else "")
            + "sams.aggregator.SoftwareAccounting:\n"
            f"  db_path: {folder}/db\n"
            "  cluster: test\n"
        )

    def loader(self) -> LoaderSettings:
        return load_aggregator(self.config).loaders[0]

    def put(self, made: dict[str, Any] | bytes, name: str | None = None) -> Path:
        if isinstance(made, dict):
            core = made["sams.sampler.Core"]
            name = name or f"{core['jobid'] // 1000}/{core['jobid']}.{core['node']}.json"
            made = encode(made)
        file = self.folder / "in" / (name or "0/1.n1.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(made)
        return file

    def names(self, tree: str) -> list[str]:
        root = self.folder / tree
        found = (path for path in root.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(root)) for path in found if path.name[:5] != ".sams")


#: User and system seconds by node and path, for each run by job id and start in seconds.
Booked = dict[tuple[int, int], dict[tuple[str, str], tuple[float, float]]]


def booked(store: Store) -> Booked:
    """Everything that a store holds."""
    found: Booked = {}
    for run in store.runs(limit=100_000):
        rows = found.setdefault((run.info.job_id, run.start // SECOND), {})
        for one in store.executables(run.id):
            key = (one.node, readable_path(one.use.path))
            rows[key] = (one.use.cpu_user / SECOND, one.use.cpu_system / SECOND)
    return found
