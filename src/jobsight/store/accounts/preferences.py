"""What a user chose for the pages: language, time zone, rows, columns of lists."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from jobsight.store.accounts.accounts import SQL
from jobsight.store.database import Database

#: Rows of a list that can be chosen.
ROW_CHOICES: Final = (25, 50, 100, 200)
_Short = Annotated[str, msgspec.Meta(max_length=64)]


class Preferences(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a user chose; what is None is decided by the browser or the server."""

    #: "en" or "fr".
    language: _Short | None = None
    #: A name of the tz database.
    time_zone: _Short | None = None
    rows: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    #: Names of columns by list, such as "jobs".
    columns: dict[_Short, Annotated[list[_Short], msgspec.Meta(max_length=100)]] = msgspec.field(
        default_factory=dict
    )


NO_PREFERENCES: Final = Preferences()


def read_preferences(database: Database, user: str) -> Preferences:
    """What the user chose; defaults if nothing."""
    with database.query() as transaction:
        row = transaction.execute(SQL["get_preferences"], {"user": user}).fetchone()
    if row is None:
        return NO_PREFERENCES
    try:
        return msgspec.msgpack.decode(row[0], type=Preferences)
    except msgspec.DecodeError:
        return NO_PREFERENCES


def write_preferences(database: Database, user: str, preferences: Preferences) -> None:
    with database.write() as transaction:
        values = {"user": user, "data": msgspec.msgpack.encode(preferences)}
        transaction.execute(SQL["set_preferences"], values)
