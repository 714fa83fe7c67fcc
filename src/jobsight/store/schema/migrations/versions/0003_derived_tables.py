"""Software, sums by day, tokens of agents, and what the scheduler alone knows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _add_columns()
    _add_software()
    _add_tokens()
    _add_sums()
    _add_scheduler()
    _add_exported()


def _add_columns() -> None:
    op.add_column("runs", sa.Column("qos", sa.Text()))
    op.add_column("runs", sa.Column("gpus", sa.BigInteger()))
    op.add_column("runs", sa.Column("tres", sa.LargeBinary()))
    # All runs of an older store wait to be summed up.
    op.add_column(
        "runs", sa.Column("stale", sa.Boolean(), nullable=False, server_default=sa.true())
    )
    op.add_column("runs", sa.Column("archived", sa.Text()))
    op.add_column("runs", sa.Column("archived_updated", sa.BigInteger()))
    op.add_column("runs", sa.Column("archived_start", sa.BigInteger()))
    op.add_column(
        "runs", sa.Column("pruned", sa.SmallInteger(), nullable=False, server_default="0")
    )
    partial = (
        ("stale", ["id"], "stale"),
        ("open", ["end", "cluster"], '"end" IS NULL'),
        ("unarchived", ["end"], 'archived_updated IS NULL AND "end" IS NOT NULL'),
    )
    for name, columns, where in partial:
        op.create_index(
            f"ix_runs_{name}",
            "runs",
            columns,
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
        )
    op.create_index(op.f("ix_runs_end"), "runs", ["end"])
    op.create_index(op.f("ix_runs_pruned_end"), "runs", ["pruned", "end"])
    op.add_column("chunks", sa.Column("resolution", sa.BigInteger()))
    op.add_column("paths", sa.Column("software_id", sa.BigInteger()))
    op.add_column("paths", sa.Column("named", sa.BigInteger()))
    op.create_index(op.f("ix_paths_software_id"), "paths", ["software_id"])


def _add_software() -> None:
    names = ["name", "version", "local_version"]
    flags = ["user_provided", "ignored"]
    op.create_table(
        "software",
        sa.Column("id", _ID, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in names),
        *(sa.Column(name, sa.Boolean(), nullable=False) for name in flags),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_software")),
        sa.UniqueConstraint(*names, *flags, name=op.f(f"uq_software_{'_'.join(names + flags)}")),
    )


def _add_tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", _ID, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger()),
        sa.Column("revoked", sa.BigInteger()),
        sa.Column("used", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )


def _add_sums() -> None:
    op.create_table(
        "contributions",
        sa.Column("run_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("dropped", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_contributions")),
    )
    op.create_index(op.f("ix_contributions_revision"), "contributions", ["revision"])
    op.create_index(
        "ix_contributions_dropped",
        "contributions",
        ["run_id"],
        sqlite_where=sa.text("dropped"),
        postgresql_where=sa.text("dropped"),
    )
    figures = ["runs", "executions", "cpu_time", "core_time", "gpu_time"]
    _add_days("usage_by_day", [], [*figures, "memory_time"])
    counts = ["name_runs", "version_runs", "local_version_runs"]
    _add_days("software_by_day", ["software_id"], [*figures, *counts])
    op.create_index(
        op.f("ix_software_by_day_software_id_day"), "software_by_day", ["software_id", "day"]
    )


def _add_days(table: str, more: list[str], figures: list[str]) -> None:
    texts = ["cluster", "user", "account", "partition"]
    op.create_table(
        table,
        sa.Column("day", sa.Integer(), nullable=False, autoincrement=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in texts),
        *(sa.Column(name, sa.BigInteger(), nullable=False, autoincrement=False) for name in more),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in figures),
        sa.PrimaryKeyConstraint("day", *texts, *more, name=op.f(f"pk_{table}")),
        sqlite_with_rowid=False,
    )


def _add_scheduler() -> None:
    op.create_table(
        "run_details",
        sa.Column("run_id", _ID, nullable=False, autoincrement=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_details_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_details")),
    )
    op.create_index(op.f("ix_run_details_changed"), "run_details", ["changed"])
    op.create_table(
        "cluster_records",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "kind", "name", name=op.f("pk_cluster_records")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "marks",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text()),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_marks")),
    )


def _add_exported() -> None:
    op.create_table(
        "exported",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("digest", sa.LargeBinary(16)),
        sa.PrimaryKeyConstraint("name", "run_id", name=op.f("pk_exported")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_exported_waiting",
        "exported",
        ["name"],
        sqlite_where=sa.text("digest IS NULL"),
        postgresql_where=sa.text("digest IS NULL"),
    )
