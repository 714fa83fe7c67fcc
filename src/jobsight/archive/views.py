"""The archive for DuckDB: a view for each table, with the newest version of each run only."""

from __future__ import annotations

from jobsight.archive.schemas import TABLES
from jobsight.config.settings import ArchiveSettings
from jobsight.errors import ConfigError

_RUNS = """CREATE OR REPLACE VIEW runs AS
SELECT * FROM (
    SELECT * FROM {files}
    QUALIFY row_number() OVER (
        PARTITION BY cluster, month, job_id, start ORDER BY archived DESC
    ) = 1
) WHERE NOT withdrawn;"""
_OTHER = """CREATE OR REPLACE VIEW {table} AS
SELECT * FROM {files}
SEMI JOIN runs USING (cluster, month, part, job_id, start);"""


def views(settings: ArchiveSettings) -> str:
    """Statements that DuckDB is given once."""
    if settings.location is None:
        raise ConfigError("there is no archive: set archive.location")
    location = settings.location.rstrip("/")
    statements = list(_secret(settings)) if location.startswith("s3://") else []
    for table in TABLES:
        name = f"{location}/{table}/*/*/*.parquet".replace("'", "''")
        options = ["hive_types = {cluster: VARCHAR, month: VARCHAR}"]
        if table == "series":
            # Months differ in the metrics that were taken.
            options.append("union_by_name = true")
        files = f"read_parquet('{name}', {', '.join(options)})"
        statements.append((_RUNS if table == "runs" else _OTHER).format(table=table, files=files))
    return "\n".join(statements)


def _secret(settings: ArchiveSettings) -> list[str]:
    """How DuckDB reaches the service; the keys are taken from the environment."""
    options = ["TYPE s3", "PROVIDER credential_chain"]
    if settings.s3.endpoint is not None:
        scheme, _, host = settings.s3.endpoint.partition("://")
        options += [
            f"ENDPOINT '{host}'",
            "URL_STYLE 'path'",
            f"USE_SSL {str(scheme == 'https').lower()}",
        ]
    if settings.s3.region is not None:
        options.append(f"REGION '{settings.s3.region}'")
    return [f"CREATE OR REPLACE SECRET jobsight ({', '.join(options)});"]
