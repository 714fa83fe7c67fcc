"""SAMS's own chain on the server: its aggregator over a directory of records into SQLite."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path

_CONFIG = """
sams.aggregator:
  loglevel: DEBUG
  loaders: [sams.loader.File]
  aggregators: [sams.aggregator.SoftwareAccounting]
sams.loader.File:
  in_path: {data}
  archive_path: {folder}/archive
  error_path: {folder}/error
  file_pattern: '^.*\\.json$'
sams.aggregator.SoftwareAccounting:
  db_path: {folder}/db
  file_pattern: 'sa-%(jobid_hash)d.db'
  cluster: test
"""

#: User and system seconds by path of the executable.
Booked = dict[str, tuple[float, float]]


class Aggregator:
    """One run of SAMS's aggregator and what it recorded."""

    def __init__(self, sams: Path, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._command = sams / "sams-aggregator.py"
        for name in ("data", "archive", "error", "db"):
            (folder / name).mkdir(exist_ok=True)
        self._config = folder / "aggregator.yaml"
        self._config.write_text(_CONFIG.format(data=self.data, folder=folder))

    def run(self) -> None:
        done = subprocess.run(
            [self._command, "--config", self._config],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def names(self, place: str) -> list[str]:
        return sorted(path.name for path in (self.folder / place).rglob("*") if path.is_file())

    def booked(self, job_id: int) -> Booked:
        rows = self._rows(
            "SELECT s.path, c.user, c.sys FROM command c JOIN jobs j ON j.id = c.jobid "
            "JOIN software s ON s.id = c.software WHERE j.jobid = ?",
            str(job_id),
        )
        return {path: (user, system) for path, user, system in rows}

    def totals(self, job_id: int) -> tuple[float, float]:
        ((user, system),) = self._rows(
            "SELECT user_time, system_time FROM jobs WHERE jobid = ?", str(job_id)
        )
        return user, system

    def owner(self, job_id: int) -> tuple[str, str]:
        ((user, project),) = self._rows(
            "SELECT u.user, p.project FROM jobs j JOIN users u ON u.id = j.user "
            "JOIN projects p ON p.id = j.project WHERE j.jobid = ?",
            str(job_id),
        )
        return user, project

    def _rows(self, statement: str, job_id: str) -> list[tuple]:  # type: ignore[type-arg]
        (file,) = (self.folder / "db").glob("*.db")
        connection = sqlite3.connect(file)
        try:
            return connection.execute(statement, (job_id,)).fetchall()
        finally:
            connection.close()
