"""The steps of a run on each of its nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "steps",
        sa.Column("run_node_id", _ID, nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("tasks", sa.BigInteger(), nullable=False),
        sa.Column("cpu_time", sa.BigInteger()),
        sa.Column("cpu_overhead", sa.BigInteger()),
        sa.Column("memory_peak", sa.BigInteger()),
        sa.Column("oom_kills", sa.BigInteger()),
        sa.Column("first_seen", sa.BigInteger(), nullable=False),
        sa.Column("last_seen", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_node_id"], ["run_nodes.id"], name=op.f("fk_steps_run_node_id_run_nodes")
        ),
        sa.PrimaryKeyConstraint("run_node_id", "step", name=op.f("pk_steps")),
        sqlite_with_rowid=False,
    )
