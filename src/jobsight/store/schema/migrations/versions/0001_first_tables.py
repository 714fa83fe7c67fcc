"""The first tables: runs with their nodes, series and executables; agents, spools and batches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# A revision is history: it names every column itself and does not follow tables.py.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("id", _ID, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("written", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("clock_skew", sa.BigInteger(), nullable=False),
        sa.Column("skew_found", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
        sa.UniqueConstraint("cluster", "node", name=op.f("uq_agents_cluster_node")),
    )
    op.create_table(
        "paths",
        sa.Column("id", _ID, nullable=False),
        sa.Column("digest", sa.LargeBinary(length=16), nullable=False),
        sa.Column("path", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_paths")),
        sa.UniqueConstraint("digest", name=op.f("uq_paths_digest")),
    )
    op.create_table(
        "runs",
        sa.Column("id", _ID, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("sluid", sa.Text()),
        sa.Column("restart_count", sa.BigInteger()),
        sa.Column("array_job_id", sa.BigInteger()),
        sa.Column("array_task_id", sa.BigInteger()),
        sa.Column("het_job_id", sa.BigInteger()),
        sa.Column("het_offset", sa.BigInteger()),
        sa.Column("name", sa.Text()),
        sa.Column("user", sa.Text()),
        sa.Column("uid", sa.BigInteger()),
        sa.Column("account", sa.Text()),
        sa.Column("partition", sa.Text()),
        sa.Column("command", sa.Text()),
        sa.Column("nodes", sa.LargeBinary()),
        sa.Column("cpus", sa.BigInteger()),
        sa.Column("memory", sa.BigInteger()),
        sa.Column("time_limit", sa.BigInteger()),
        sa.Column("submit", sa.BigInteger()),
        sa.Column("end", sa.BigInteger()),
        sa.Column("state", sa.Text()),
        sa.Column("exit_code", sa.BigInteger()),
        sa.Column("exit_signal", sa.BigInteger()),
        sa.Column("provisional", sa.Boolean(), nullable=False),
        sa.Column("cpu_time", sa.BigInteger()),
        sa.Column("memory_used_peak", sa.BigInteger()),
        sa.Column("memory_peak", sa.BigInteger()),
        sa.Column("first_seen", sa.BigInteger()),
        sa.Column("last_seen", sa.BigInteger()),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint(
            "cluster", "job_id", "start", name=op.f("uq_runs_cluster_job_id_start")
        ),
    )
    op.create_index(op.f("ix_runs_account_start"), "runs", ["account", "start"])
    op.create_index(op.f("ix_runs_array_job_id"), "runs", ["array_job_id"])
    op.create_index(op.f("ix_runs_het_job_id"), "runs", ["het_job_id"])
    op.create_index(op.f("ix_runs_job_id"), "runs", ["job_id"])
    op.create_index(op.f("ix_runs_start"), "runs", ["start"])
    op.create_index(op.f("ix_runs_user_start"), "runs", ["user", "start"])
    op.create_table(
        "run_nodes",
        sa.Column("id", _ID, nullable=False),
        sa.Column("run_id", _ID, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("birth", sa.BigInteger(), nullable=False),
        sa.Column("sluid", sa.Text()),
        sa.Column("restart_count", sa.BigInteger()),
        sa.Column("epoch", sa.Text(), nullable=False),
        sa.Column("written", sa.BigInteger(), nullable=False),
        sa.Column("totals", sa.LargeBinary()),
        sa.Column("cpu_time", sa.BigInteger()),
        sa.Column("memory_used_peak", sa.BigInteger()),
        sa.Column("memory_peak", sa.BigInteger()),
        sa.Column("coverage", sa.LargeBinary()),
        sa.Column("first_sample", sa.BigInteger()),
        sa.Column("last_sample", sa.BigInteger()),
        sa.Column("final", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("open_chunks", sa.Integer(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_nodes_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run_nodes")),
        sa.UniqueConstraint(
            "cluster",
            "job_id",
            "node",
            "boot_id",
            "birth",
            name=op.f("uq_run_nodes_cluster_job_id_node_boot_id_birth"),
        ),
    )
    op.create_index(op.f("ix_run_nodes_run_id_node"), "run_nodes", ["run_id", "node"])
    op.create_table(
        "spools",
        sa.Column("id", _ID, nullable=False),
        sa.Column("agent_id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("fk_spools_agent_id_agents")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_spools")),
        sa.UniqueConstraint("agent_id", "name", name=op.f("uq_spools_agent_id_name")),
    )
    op.create_table(
        "batches",
        sa.Column("spool_id", _ID, nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["spool_id"], ["spools.id"], name=op.f("fk_batches_spool_id_spools")
        ),
        sa.PrimaryKeyConstraint("spool_id", "first", name=op.f("pk_batches")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "chunks",
        sa.Column("id", _ID, nullable=False),
        sa.Column("run_node_id", _ID, nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("summary", sa.LargeBinary()),
        sa.CheckConstraint("level BETWEEN 0 AND 2", name=op.f("ck_chunks_level")),
        sa.ForeignKeyConstraint(
            ["run_node_id"], ["run_nodes.id"], name=op.f("fk_chunks_run_node_id_run_nodes")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chunks")),
    )
    op.create_index(op.f("ix_chunks_run_node_id_first"), "chunks", ["run_node_id", "first"])
    op.create_table(
        "executables",
        sa.Column("run_node_id", _ID, nullable=False),
        sa.Column("path_id", _ID, nullable=False),
        sa.Column("path_known", sa.Boolean(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("executions", sa.BigInteger(), nullable=False),
        sa.Column("processes", sa.BigInteger(), nullable=False),
        sa.Column("cpu_time", sa.BigInteger(), nullable=False),
        sa.Column("cpu_user", sa.BigInteger(), nullable=False),
        sa.Column("cpu_system", sa.BigInteger(), nullable=False),
        sa.Column("cpu_estimated", sa.BigInteger(), nullable=False),
        sa.Column("read_bytes", sa.BigInteger(), nullable=False),
        sa.Column("written_bytes", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("peak_memory", sa.BigInteger(), nullable=False),
        sa.Column("first_seen", sa.BigInteger(), nullable=False),
        sa.Column("last_seen", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["path_id"], ["paths.id"], name=op.f("fk_executables_path_id_paths")
        ),
        sa.ForeignKeyConstraint(
            ["run_node_id"], ["run_nodes.id"], name=op.f("fk_executables_run_node_id_run_nodes")
        ),
        sa.PrimaryKeyConstraint(
            "run_node_id", "path_id", "path_known", "epoch", name=op.f("pk_executables")
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_executables_path_id"), "executables", ["path_id"])
