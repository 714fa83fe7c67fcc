"""Time series of nodes as a whole, by day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the days of nodes, and their chunks."""
    op.create_table(
        "node_days",
        sa.Column("id", _ID, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("first_sample", sa.BigInteger(), nullable=False),
        sa.Column("last_sample", sa.BigInteger(), nullable=False),
        sa.Column("open_chunks", sa.Integer(), nullable=False),
        sa.Column("stored_values", sa.BigInteger(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("downsampled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("cpu_time", sa.BigInteger(), nullable=True),
        sa.Column("core_time", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_days")),
        sa.UniqueConstraint("cluster", "node", "day", name=op.f("uq_node_days_cluster_node_day")),
    )
    op.create_index(
        op.f("ix_node_days_cluster_day_cpu_time_core_time"),
        "node_days",
        ["cluster", "day", "cpu_time", "core_time"],
    )
    op.create_index(op.f("ix_node_days_day"), "node_days", ["day"])
    incomplete = sa.text("NOT complete")
    op.create_index(
        "ix_node_days_incomplete",
        "node_days",
        ["cluster", "node", "day"],
        sqlite_where=incomplete,
        postgresql_where=incomplete,
    )
    op.create_table(
        "node_chunks",
        sa.Column("id", _ID, nullable=False),
        sa.Column("node_day_id", _ID, nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("summary", sa.LargeBinary(), nullable=True),
        sa.Column("resolution", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("level BETWEEN 0 AND 2", name=op.f("ck_node_chunks_level")),
        sa.ForeignKeyConstraint(
            ["node_day_id"],
            ["node_days.id"],
            name=op.f("fk_node_chunks_node_day_id_node_days"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_chunks")),
    )
    op.create_index(
        op.f("ix_node_chunks_node_day_id_first"), "node_chunks", ["node_day_id", "first"]
    )
