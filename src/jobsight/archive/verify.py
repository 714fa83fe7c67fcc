"""Listing and verification of an archive: its months, and the digest of every file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pyarrow.parquet as pq

from jobsight.archive.part import cluster_and_month
from jobsight.archive.reader import Reader
from jobsight.archive.schema import TABLES
from jobsight.archive.storage import ArchiveError, FileEntry, Storage, digest_of
from jobsight.store.read.archiving import archived_files
from jobsight.store.store import Store
from jobsight.store.write.archiving import parts_in_progress


class Month(msgspec.Struct, kw_only=True):
    """The content of an archive for one cluster and month."""

    cluster: str
    month: str
    parts: int = 0
    #: Including older versions of runs that changed later.
    runs: int = 0
    samples: int = 0
    files: int = 0
    size: int = 0


class Checked(msgspec.Struct):
    """The result of a verification; problems are a sentence each."""

    parts: int = 0
    files: int = 0
    runs: int = 0
    size: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


def list_months(storage: Storage) -> list[Month]:
    """All months of all clusters, sorted."""
    reader = Reader(storage)
    sizes = storage.names("runs")
    months: dict[tuple[str, str], Month] = {}
    for file in reader.parts():
        cluster, month = cluster_and_month(file)
        manifest = reader.manifest(file)
        row = months.setdefault((cluster, month), Month(cluster=cluster, month=month))
        row.parts += 1
        row.runs += manifest.runs
        row.samples += manifest.samples
        row.files += 1 + len(manifest.files)
        row.size += sizes[file] + sum(entry.size for entry in manifest.files)
    return [months[key] for key in sorted(months)]


def check_archive(
    storage: Storage,
    store: Store | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Checked:
    """Read all files completely; with a store, verify that the files it refers to exist."""
    reader = Reader(storage)
    checked = Checked()
    sizes: dict[str, int] = {}
    for table in TABLES:
        sizes |= storage.names(table)
    parts = reader.parts()
    known = set(parts)
    for number, file in enumerate(parts, 1):
        for entry in _entries(reader, file, checked):
            known.add(entry.name)
            _check_file(storage, entry, sizes, checked)
        checked.parts += 1
        progress(number, len(parts))
    in_progress = parts_in_progress(store.database) if store is not None else []
    for name in sorted(sizes.keys() - known):
        if not any(record.part in name for record in in_progress):
            checked.problems.append(
                f"{name} belongs to no part; a killed process left it behind: remove it"
            )
    if store is not None:
        checked.problems += [
            f"{file} is missing, with {count:,} runs of the store"
            for file, count in archived_files(store.database)
            if file not in known
        ]
    return checked


def _entries(reader: Reader, file: str, checked: Checked) -> Iterator[FileEntry]:
    """The file of the runs, whose digest is in its name, and the files of its manifest."""
    digest = file.removesuffix(".parquet").rpartition("-")[2]
    try:
        manifest = reader.manifest(file)
    except ArchiveError as error:
        checked.problems.append(str(error))
        return
    checked.runs += manifest.runs
    yield FileEntry(file, manifest.runs, -1, digest)
    yield from manifest.files


def _check_file(
    storage: Storage, entry: FileEntry, sizes: dict[str, int], checked: Checked
) -> None:
    size = sizes.get(entry.name)
    if size is None:
        checked.problems.append(f"{entry.name} is missing")
        return
    checked.files += 1
    checked.size += size
    try:
        with storage.open(entry.name) as source:
            if digest_of(source) != entry.digest:
                checked.problems.append(f"{entry.name} differs from its digest")
                return
        with storage.explained(entry.name), storage.open(entry.name) as source:
            rows = sum(batch.num_rows for batch in pq.ParquetFile(source).iter_batches())
    except ArchiveError as error:
        checked.problems.append(str(error))
        return
    if rows != entry.rows:
        checked.problems.append(f"{entry.name} has {rows} rows, expected {entry.rows}")
