"""The index of the text search in runs: the trigrams of some of their columns.

Triggers keep it up to date, so that no writer has to know it. SQLite has a full-text table without
content, PostgreSQL a table with the searched text and a GIN index of its trigrams. It is apart from
``runs``, of which each batch writes new rows in PostgreSQL. It is derived: backups do not contain
it.
"""

from __future__ import annotations

from typing import Final

from jobsight.store.schema.statements import quoted

#: The columns that are searched.
SEARCHED: Final = ("name", "user", "account", "partition", "command")
#: Characters of each column that are searched; a command may be long.
MAX_LENGTH: Final = 1000

TABLE: Final = "run_search"


def searched_text(row: str, postgresql: bool) -> str:
    """The searched text of a row of ``runs`` in SQL: in lower case, each column in a line.

    Every column begins and ends with a line break, so that a trigram can contain its beginning or
    its end. Lower case is that of ASCII on both engines.
    """
    line_break = "chr(10)" if postgresql else "char(10)"
    columns = [f"coalesce(substr({row}{quoted(name)}, 1, {MAX_LENGTH}), '')" for name in SEARCHED]
    text = f" || {line_break} || ".join(columns)
    collation = ' COLLATE "C"' if postgresql else ""
    return f"lower(({line_break} || {text} || {line_break}){collation})"


def statements(postgresql: bool) -> list[str]:
    """The statements that create the index and its triggers, after ``runs``."""
    return _postgresql() if postgresql else _sqlite()


def rebuild_statements(postgresql: bool) -> list[str]:
    """The statements that fill the index again."""
    text = searched_text("", postgresql)
    if postgresql:
        return [f"DELETE FROM {TABLE}", f"INSERT INTO {TABLE} SELECT id, {text} FROM runs"]
    return [
        f"INSERT INTO {TABLE} ({TABLE}) VALUES ('delete-all')",
        f"INSERT INTO {TABLE} (rowid, text) SELECT id, {text} FROM runs",
    ]


def _sqlite() -> list[str]:
    old, new = searched_text("old.", False), searched_text("new.", False)
    insert = f"INSERT INTO {TABLE} (rowid, text) VALUES (new.id, {new});"
    delete = f"INSERT INTO {TABLE} ({TABLE}, rowid, text) VALUES ('delete', old.id, {old});"
    columns = ", ".join(map(quoted, SEARCHED))
    changed = " OR ".join(f"old.{quoted(name)} IS NOT new.{quoted(name)}" for name in SEARCHED)
    return [
        # Without positions: they would triple the size, and a match is compared with the text.
        f"CREATE VIRTUAL TABLE {TABLE} USING fts5("
        "text, content='', columnsize=0, detail='none', tokenize='trigram')",
        f"CREATE TRIGGER {TABLE}_insert AFTER INSERT ON runs BEGIN {insert} END",
        f"CREATE TRIGGER {TABLE}_update AFTER UPDATE OF {columns} ON runs WHEN {changed} "
        f"BEGIN {delete} {insert} END",
        f"CREATE TRIGGER {TABLE}_delete AFTER DELETE ON runs BEGIN {delete} END",
    ]


def _postgresql() -> list[str]:
    changed = " OR ".join(
        f"old.{quoted(name)} IS DISTINCT FROM new.{quoted(name)}" for name in SEARCHED
    )
    columns = ", ".join(map(quoted, SEARCHED))
    return [
        f'CREATE TABLE {TABLE} (run_id BIGINT PRIMARY KEY, text TEXT COLLATE "C" NOT NULL)',
        f"CREATE OR REPLACE FUNCTION {TABLE}_terms(text) RETURNS text[] "
        "LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT array_agg(substr($1, place, 3)) "
        "FROM generate_series(1, length($1) - 2) AS place $$",
        f"CREATE INDEX ix_{TABLE}_terms ON {TABLE} USING gin ({TABLE}_terms(text))",
        f"CREATE OR REPLACE FUNCTION {TABLE}_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"INSERT INTO {TABLE} (run_id, text) VALUES (new.id, {searched_text('new.', True)}) "
        "ON CONFLICT (run_id) DO UPDATE SET text = excluded.text; RETURN NULL; END $$",
        f"CREATE OR REPLACE FUNCTION {TABLE}_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"DELETE FROM {TABLE} WHERE run_id = old.id; RETURN NULL; END $$",
        f"CREATE TRIGGER {TABLE}_insert AFTER INSERT ON runs FOR EACH ROW "
        f"EXECUTE FUNCTION {TABLE}_write()",
        f"CREATE TRIGGER {TABLE}_update AFTER UPDATE OF {columns} ON runs FOR EACH ROW "
        f"WHEN ({changed}) EXECUTE FUNCTION {TABLE}_write()",
        f"CREATE TRIGGER {TABLE}_delete AFTER DELETE ON runs FOR EACH ROW "
        f"EXECUTE FUNCTION {TABLE}_delete()",
    ]
