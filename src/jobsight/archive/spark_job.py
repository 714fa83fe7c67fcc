"""Runs one query on a Spark cluster: called by :mod:`jobsight.archive.spark` with a Python that has
pyspark, so it imports nothing of jobsight.

Reads one JSON object from standard input (``master``, ``options``, ``views``, ``query``) and writes
JSON lines: the names of the columns, then the rows.
"""

import json
import sys


def main() -> None:
    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession

    job = json.load(sys.stdin)
    builder = SparkSession.builder.master(job["master"]).appName("jobsight archive")
    for name, value in job["options"].items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        for statement in job["functions"]:
            session.sql(statement)
        for table, statements in job["views"].items():
            try:
                for statement in statements:
                    session.sql(statement)
            except AnalysisException as error:
                # A table without files: no job had a GPU.
                if error.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
                    raise
                print(f"the archive has no {table}", file=sys.stderr)
        found = session.sql(job["query"])
        print(json.dumps(found.columns))
        for row in found.toLocalIterator():
            print(json.dumps(list(row), default=_plain))
    except AnalysisException as error:
        print(f"jobsight: {str(error).splitlines()[0]}", file=sys.stderr)
        sys.exit(2)
    finally:
        session.stop()


def _plain(value: object) -> object:
    """Decimals as numbers, bytes and times as text."""
    if isinstance(value, (bytes, bytearray)):
        return value.decode("latin-1")
    return float(value) if hasattr(value, "as_tuple") else str(value)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
