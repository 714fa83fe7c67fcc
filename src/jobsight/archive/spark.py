"""The archive on Spark: its views in Spark's SQL, and queries on a cluster.

The same queries as for DuckDB run: identifiers in double quotes, ``epoch_ns``, and one view for
each table with the newest version of each run. pyspark is not a dependency of jobsight; a Python
that has it runs :mod:`jobsight.archive.spark_job`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from jobsight.archive.schema import TABLES, quoted
from jobsight.config.settings import ArchiveSettings
from jobsight.errors import ConfigError, JobsightError

#: What the views need of the session. Times are integers of nanoseconds: Spark has none.
OPTIONS: Final = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}
FUNCTIONS: Final = (
    "CREATE OR REPLACE TEMPORARY FUNCTION epoch_ns(moment BIGINT) RETURNS BIGINT RETURN moment",
)
_FILES: Final = """CREATE OR REPLACE TEMPORARY VIEW {table}_files
USING parquet OPTIONS (path {path}, mergeSchema 'true')"""
_RUNS: Final = """CREATE OR REPLACE TEMPORARY VIEW runs AS
SELECT * EXCEPT (version_number) FROM (
    SELECT *, row_number() OVER (
        PARTITION BY cluster, month, job_id, start ORDER BY archived DESC
    ) AS version_number
    FROM runs_files
) WHERE version_number = 1 AND NOT withdrawn"""
_OTHER: Final = """CREATE OR REPLACE TEMPORARY VIEW {table} AS
SELECT * FROM {table}_files
LEFT SEMI JOIN runs USING (cluster, month, part, job_id, start)"""


class Answer(NamedTuple):
    """The columns and the rows of a query."""

    columns: list[str]
    rows: list[list[Any]]


def statements(settings: ArchiveSettings) -> dict[str, list[str]]:
    """The statements that create the view of each table."""
    if settings.location is None:
        raise ConfigError("there is no archive: set archive.location")
    location = settings.location.rstrip("/")
    if location.startswith("s3://"):
        # Hadoop's file system for S3 has a name of its own.
        location = f"s3a://{location.removeprefix('s3://')}"
    elif "://" not in location:
        location = str(Path(location).absolute())
    views = {}
    for table in TABLES:
        files = _FILES.format(table=table, path=quoted(f"{location}/{table}"))
        views[table] = [files, (_RUNS if table == "runs" else _OTHER).format(table=table)]
    return views


def script(settings: ArchiveSettings) -> str:
    """All of it as a script for ``spark-sql -i``."""
    lines = [f"SET {name} = {value};" for name, value in OPTIONS.items() if ".sql." in name]
    lines += [f"{function};" for function in FUNCTIONS]
    for created in statements(settings).values():
        lines += [f"{statement};" for statement in created]
    return "\n".join(lines)


def query(
    settings: ArchiveSettings,
    master: str,
    text: str,
    *,
    python: str | None = None,
    options: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Answer:
    """Run a query on the cluster ``master`` (spark://HOST:PORT, or local[N])."""
    job = {
        "master": master,
        "options": {**OPTIONS, **(options or {})},
        "functions": FUNCTIONS,
        "views": {
            table: created
            for table, created in statements(settings).items()
            # Each view reads the footers of all its files; those of others need that of the runs.
            if table == "runs" or re.search(rf"\b{table}\b", text, re.IGNORECASE)
        },
        "query": text,
    }
    interpreter = find_python(python)
    environment = {**os.environ, "PYSPARK_PYTHON": interpreter}
    done = subprocess.run(
        [interpreter, str(Path(__file__).with_name("spark_job.py"))],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=timeout,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        own = [line.removeprefix("jobsight: ") for line in said if line.startswith("jobsight: ")]
        raise JobsightError(f"Spark at {master}: {(own or said or ['no reason given'])[-1]}")
    lines = done.stdout.splitlines()
    return Answer(json.loads(lines[0]), [json.loads(line) for line in lines[1:]])


def find_python(python: str | None) -> str:
    """A Python with pyspark: the given one, else our own."""
    chosen = shutil.which(python or sys.executable)
    if chosen is None:
        raise ConfigError(f"--python {python!r} is not a program")
    found = subprocess.run(
        [chosen, "-c", "import pyspark"], capture_output=True, check=False, timeout=60
    )
    if found.returncode:
        raise ConfigError(
            f"{chosen} has no pyspark; expected --python PATH of a Python in which "
            "`pip install pyspark` was run, of the version of the cluster"
        )
    return chosen
