"""Looks through an archive: what there is, and whether every byte of it is as it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pyarrow.parquet as pq
from sqlalchemy import func, select

from jobsight.archive.part import cluster_and_month
from jobsight.archive.reader import Reader
from jobsight.archive.schema import TABLES
from jobsight.archive.storage import ArchiveError, FileEntry, Storage, digest_of
from jobsight.archive.writer import parts_under_way
from jobsight.store.schema.tables import runs
from jobsight.store.store import Store


class Month(msgspec.Struct, kw_only=True):
    """What an archive holds of one cluster and month."""

    cluster: str
    month: str
    parts: int = 0
    #: Older versions of runs that changed later are counted, too.
    runs: int = 0
    samples: int = 0
    files: int = 0
    size: int = 0


class Checked(msgspec.Struct):
    """What a check looked at, and what it found wrong, a sentence each."""

    parts: int = 0
    files: int = 0
    runs: int = 0
    size: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


def list_months(place: Storage) -> list[Month]:
    """All months of all clusters, in their order."""
    reader = Reader(place)
    sizes = place.names("runs")
    found: dict[tuple[str, str], Month] = {}
    for file in reader.parts():
        cluster, month = cluster_and_month(file)
        manifest = reader.manifest(file)
        row = found.setdefault((cluster, month), Month(cluster=cluster, month=month))
        row.parts += 1
        row.runs += manifest.runs
        row.samples += manifest.samples
        row.files += 1 + len(manifest.files)
        row.size += sizes[file] + sum(entry.size for entry in manifest.files)
    return [found[key] for key in sorted(found)]


def check_archive(
    place: Storage,
    store: Store | None = None,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> Checked:
    """Read every file whole. With a store, look too whether its marks lead somewhere."""
    reader = Reader(place)
    checked = Checked()
    sizes: dict[str, int] = {}
    for table in TABLES:
        sizes |= place.names(table)
    parts = reader.parts()
    known = set(parts)
    for number, file in enumerate(parts, 1):
        for entry in _entries(reader, file, checked):
            known.add(entry.name)
            _check_file(place, entry, sizes, checked)
        checked.parts += 1
        progress(number, len(parts))
    being_written = parts_under_way(store) if store is not None else set()
    for name in sorted(sizes.keys() - known):
        if not any(part in name for part in being_written):
            checked.problems.append(
                f"{name} belongs to no part; an attempt that was killed left it, remove it"
            )
    if store is not None:
        checked.problems += _lost_marks(store, known)
    return checked


def _entries(reader: Reader, file: str, checked: Checked) -> Iterator[FileEntry]:
    """The file of the runs itself, whose digest is in its name, and those that it names."""
    digest = file.removesuffix(".parquet").rpartition("-")[2]
    try:
        manifest = reader.manifest(file)
    except ArchiveError as error:
        checked.problems.append(str(error))
        return
    checked.runs += manifest.runs
    yield FileEntry(file, manifest.runs, -1, digest)
    yield from manifest.files


def _check_file(place: Storage, entry: FileEntry, sizes: dict[str, int], checked: Checked) -> None:
    size = sizes.get(entry.name)
    if size is None:
        checked.problems.append(f"{entry.name} is gone")
        return
    checked.files += 1
    checked.size += size
    try:
        with place.open(entry.name) as source:
            if digest_of(source) != entry.digest:
                checked.problems.append(f"{entry.name} is not as it was written")
                return
        with place.explained(entry.name), place.open(entry.name) as source:
            rows = sum(batch.num_rows for batch in pq.ParquetFile(source).iter_batches())
    except ArchiveError as error:
        checked.problems.append(str(error))
        return
    if rows != entry.rows:
        checked.problems.append(f"{entry.name} has {rows} rows, not {entry.rows}")


def _lost_marks(store: Store, known: set[str]) -> Iterator[str]:
    query = select(runs.c.archived, func.count()).where(runs.c.archived.is_not(None))
    with store.database.read() as connection:
        for file, count in connection.execute(query.group_by(runs.c.archived)):
            if file not in known:
                yield f"{file} is gone, which holds {count:,} runs of the store"
