"""Finished runs as Parquet files, by cluster and month: for DuckDB, and for the pages again."""
