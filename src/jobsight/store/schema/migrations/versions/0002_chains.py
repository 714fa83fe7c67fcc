"""Chains of jobs that depend on each other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column to runs, and the table of chains."""
    op.add_column("runs", sa.Column("chain_job_id", sa.BigInteger(), nullable=True))
    of_chain = sa.text("chain_job_id IS NOT NULL")
    op.create_index(
        "ix_runs_chain",
        "runs",
        ["chain_job_id", "cluster", "shown_state"],
        sqlite_where=of_chain,
        postgresql_where=of_chain,
    )
    op.create_table(
        "job_chains",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("chain_job_id", sa.BigInteger(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "job_id", "user", name=op.f("pk_job_chains")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_job_chains_chain_job_id_cluster_user"),
        "job_chains",
        ["chain_job_id", "cluster", "user"],
    )
    op.create_index(op.f("ix_job_chains_seen"), "job_chains", ["seen"])
