"""Failed sign-ins that all servers of a store count together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of failed sign-ins."""
    op.create_table(
        "sign_in_failures",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("ends", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_sign_in_failures")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_sign_in_failures_ends"), "sign_in_failures", ["ends"])
