"""What the store has about a user: exported as records, or erased under a pseudonym.

Erasing keeps what sums need: runs with their figures, and rollups, belong to a pseudonym that
nothing leads back from. Names and commands of jobs, scripts and details of the scheduler are
deleted; in paths of programs, figures and findings the user's name is replaced.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import zstandard

from jobsight.store.accounts.accounts import AccountError, check_user_name
from jobsight.store.database import Database, Transaction
from jobsight.store.rollups.rollups import decode_contribution
from jobsight.store.schema.statements import path_digest
from jobsight.store.sql.load import load_statements

_SQL: Final = load_statements("privacy")
#: Secrets and internal data are left out of an export.
_INTERNAL: Final = frozenset({"password_hash", "digest", "server_token", "key", "script"})
#: Figures of a run that are the user's own words.
_OWN_WORDS: Final = frozenset({"run.name", "run.submit_line"})
#: Bytes of a decompressed document.
_MAX_SIZE: Final = 16 * 2**20
_EXPORT: Final = "export_"
_ERASE: Final = "erase_"


class Erased(msgspec.Struct, frozen=True):
    """The result of erasing a user."""

    pseudonym: str
    runs: int


def export_user(database: Database, name: str) -> Iterator[dict[str, Any]]:
    """Every record about a user, with the table that it is in."""
    check_user_name(name)
    found = False
    with database.query() as transaction:
        for statement in _SQL:
            if not statement.startswith(_EXPORT):
                continue
            for row in transaction.mappings(_SQL[statement], {"user": name}):
                found = True
                columns = {
                    column: _readable(value)
                    for column, value in row.items()
                    if column not in _INTERNAL
                }
                yield {"table": statement.removeprefix(_EXPORT)} | columns
    if not found:
        raise AccountError(f"the store has nothing about a user {name!r}")


def erase_user(database: Database, name: str) -> Erased:
    """Replace the user by a new pseudonym, in one transaction, and delete what identifies them."""
    check_user_name(name)
    pseudonym = f"erased-{secrets.token_hex(4)}"
    values = {"user": name, "pseudonym": pseudonym}
    with database.write() as transaction:
        transaction.lock_out_writers()
        (runs,) = transaction.execute(_SQL["count_runs"], values).fetchone()
        (known,) = transaction.execute(_SQL["count_accounts"], values).fetchone()
        if not runs and not known:
            raise AccountError(f"the store has nothing about a user {name!r}")
        _rename_in_documents(transaction, values)
        _rename_in_figures(transaction, values)
        _remove_scheduler_records(transaction, name)
        _rename_paths(transaction, values)
        for statement in _SQL:
            if statement.startswith(_ERASE):
                transaction.execute(_SQL[statement], values)
    return Erased(pseudonym, int(runs))


def _rename_in_documents(transaction: Transaction, values: dict[str, Any]) -> None:
    """Shares of runs in the rollups and findings have the name inside of a document."""
    name, pseudonym = values["user"], values["pseudonym"]
    for run_id, data in transaction.execute(_SQL["contributions"], values).fetchall():
        share = msgspec.structs.replace(decode_contribution(bytes(data)), user=pseudonym)
        row = {"run_id": run_id, "data": msgspec.msgpack.encode(share)}
        transaction.execute(_SQL["set_contribution"], row)
    for run_id, kind, data in transaction.execute(_SQL["findings"], values).fetchall():
        document = _renamed(msgspec.msgpack.decode(bytes(data)), name, pseudonym)
        row = {"run_id": run_id, "kind": kind, "data": msgspec.msgpack.encode(document)}
        transaction.execute(_SQL["set_finding"], row)


def _rename_in_figures(transaction: Transaction, values: dict[str, Any]) -> None:
    """A change of the rules judges from the figures again, and would write the name once more."""
    name, pseudonym = values["user"], values["pseudonym"]
    compress = zstandard.ZstdCompressor(level=3, write_content_size=True).compress
    for run_id, data in transaction.execute(_SQL["figures"], values).fetchall():
        document = _renamed(_unpack(bytes(data)), name, pseudonym)
        row = {"run_id": run_id, "data": compress(msgspec.msgpack.encode(document))}
        transaction.execute(_SQL["set_figures"], row)


def _remove_scheduler_records(transaction: Transaction, name: str) -> None:
    """Waiting jobs and shares of the user, until the scheduler reports them again."""
    rows = transaction.execute(_SQL["scheduler_records"], {}).fetchall()
    for cluster, kind, record, data in rows:
        if _belongs_to(_unpack(bytes(data)), name):
            row = {"cluster": cluster, "kind": kind, "name": record}
            transaction.execute(_SQL["remove_scheduler_record"], row)


def _belongs_to(document: Any, name: str) -> bool:
    return isinstance(document, dict) and (
        document.get("user") == name or any(_belongs_to(value, name) for value in document.values())
    )


def _rename_paths(transaction: Transaction, values: dict[str, Any]) -> None:
    """Directories with the name of the user, such as /home/alice, in paths of programs."""
    old, new = (f"/{values[key]}/".encode() for key in ("user", "pseudonym"))
    rows = transaction.execute(_SQL["paths"], values).fetchall()
    for path_id, path in rows:
        changed = bytes(path).replace(old, new)
        if changed != bytes(path):
            row = {"id": path_id, "path": changed, "digest": path_digest(changed)}
            transaction.execute(_SQL["set_path"], row)


def _renamed(value: Any, name: str, pseudonym: str) -> Any:
    match value:
        case str():
            return pseudonym if value == name else value.replace(f"/{name}/", f"/{pseudonym}/")
        case list():
            return [_renamed(each, name, pseudonym) for each in value]
        case dict():
            return {
                key: _renamed(each, name, pseudonym)
                for key, each in value.items()
                if key not in _OWN_WORDS
            }
        case _:
            return value


def _readable(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return _unpack(bytes(value))
        except (msgspec.DecodeError, zstandard.ZstdError):
            return bytes(value).hex()
    return value


def _unpack(data: bytes) -> Any:
    """A document of the store, compressed or not."""
    if data.startswith(zstandard.FRAME_HEADER):
        data = zstandard.ZstdDecompressor().decompress(data, max_output_size=_MAX_SIZE)
    return msgspec.msgpack.decode(data)
