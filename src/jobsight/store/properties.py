"""Properties of jobs: names with JSON values that users add to their own jobs.

They belong to a job and its user, not to one of its runs, so that a requeued job keeps them and a
job id that Slurm gives again to another user has none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from jobsight.errors import JobsightError
from jobsight.store.database import Database, Transaction
from jobsight.store.read import pseudonyms
from jobsight.store.sql.load import load_statements

_SQL: Final = load_statements("properties")
#: Limits of one job: bytes of all names and values as JSON, names, and bytes of a name.
MAX_SIZE: Final = 2 * 2**20
MAX_PROPERTIES: Final = 1000
MAX_NAME_SIZE: Final = 200
#: Characters of a value that is taken for a link.
_MAX_LINK: Final = 2000
#: Properties that a report shows, and characters of each.
_MAX_SHOWN: Final = 50
_MAX_TEXT: Final = 200

_encode = msgspec.json.Encoder(order="deterministic").encode


class InvalidProperty(JobsightError):
    """A name or a value that is not stored."""


class TooManyProperties(JobsightError):
    """The job would have more properties than are stored."""


class JobKey(NamedTuple):
    """The job that properties belong to."""

    cluster: str
    job_id: int
    user: str


class Link(msgspec.Struct):
    """A property that is an address of the web."""

    name: str
    url: str


def read_properties(database: Database, job: JobKey) -> dict[str, Any]:
    """The properties of a job by name."""
    with database.query() as transaction:
        return _read(transaction, job)


def read_short_properties(database: Database, job: JobKey) -> dict[str, Any]:
    """Those that a report shows: some, without long values."""
    if pseudonyms.is_active():
        return {}
    with database.query() as transaction:
        values = {**job._asdict(), "size": _MAX_LINK + MAX_NAME_SIZE, "limit": _MAX_SHOWN}
        rows = transaction.execute(_SQL["short_properties"], values).fetchall()
    return {name: msgspec.json.decode(value) for name, value in rows}


def shown_texts(properties: Mapping[str, Any], links: Iterable[Link]) -> dict[str, str]:
    """The properties that are no links as texts of one line."""
    linked = {link.name for link in links}
    texts = {}
    for name, value in properties.items():
        text = value if isinstance(value, str) else _encode(value).decode()
        if name not in linked:
            texts[name] = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
    return texts


def set_properties(
    database: Database, job: JobKey, updates: Mapping[str, Any], now: int | None = None
) -> dict[str, Any]:
    """Add or replace properties, remove those whose new value is None, and return all."""
    rows, removed = [], []
    for name, value in updates.items():
        _check_name(name)
        if value is None:
            removed.append(name)
            continue
        try:
            text = _encode(value).decode()
        except (OverflowError, RecursionError, ValueError) as error:
            raise InvalidProperty(f"the value of {name!r} cannot be stored: {error}") from None
        size = len(name.encode()) + len(text.encode())
        if size > MAX_SIZE:
            raise _too_large(size)
        rows.append({**job._asdict(), "name": name, "value": text, "size": size})
    changed = time.time_ns() if now is None else now
    with database.write() as transaction:
        _remove(transaction, job, removed)
        for row in rows:
            transaction.execute(_SQL["set_property"], {**row, "changed": changed})
        count, total = transaction.execute(_SQL["size_of_properties"], job._asdict()).fetchone()
        # Within the transaction, which an error rolls back.
        if total > MAX_SIZE:
            raise _too_large(int(total))
        if count > MAX_PROPERTIES:
            raise TooManyProperties(
                f"the job would have {count} properties; at most {MAX_PROPERTIES} are stored"
            )
        return _read(transaction, job)


def remove_properties(database: Database, job: JobKey, names: Iterable[str]) -> None:
    """Remove properties; those that do not exist are ignored."""
    with database.write() as transaction:
        _remove(transaction, job, names)


def links_of(properties: Mapping[str, Any]) -> list[Link]:
    """The properties that are addresses of the web, by name.

    Only what a page may link to: http or https, a host, no credentials, printable characters.
    """
    links = []
    for name, value in sorted(properties.items()):
        if isinstance(value, str) and len(value) <= _MAX_LINK and is_web_address(value):
            links.append(Link(name, value))
    return links


def is_web_address(text: str) -> bool:
    """Whether a text is an address that a page may link to."""
    if not text.isprintable() or any(character.isspace() for character in text):
        return False
    try:
        parts = urlsplit(text)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname)
        return is_web and "@" not in parts.netloc
    except ValueError:
        return False


def _read(transaction: Transaction, job: JobKey) -> dict[str, Any]:
    if pseudonyms.is_active():
        return {}
    rows = transaction.execute(_SQL["properties_of_job"], job._asdict()).fetchall()
    return {name: msgspec.json.decode(value) for name, value in rows}


def _remove(transaction: Transaction, job: JobKey, names: Iterable[str]) -> None:
    for name in names:
        transaction.execute(_SQL["remove_property"], {**job._asdict(), "name": name})


def _check_name(name: str) -> None:
    if not name or not name.isprintable() or len(name.encode()) > MAX_NAME_SIZE:
        raise InvalidProperty(
            f"{name[:80]!r} is no name of a property; expected 1 to {MAX_NAME_SIZE} bytes of "
            "printable characters"
        )


def _too_large(size: int) -> TooManyProperties:
    return TooManyProperties(
        f"the properties of the job would have {size} bytes; at most {MAX_SIZE} are stored"
    )
