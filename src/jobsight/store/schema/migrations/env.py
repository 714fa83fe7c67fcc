"""Runs the revisions on the connection that jobsight.store.schema.versions hands over."""

from __future__ import annotations

from alembic import context

from jobsight.store.schema.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite can change a table only by copying it.
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
