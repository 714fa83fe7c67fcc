"""The initial tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from jobsight.store.schema import search_index

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

#: SQLite numbers rows by itself only where the type is exactly INTEGER.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SHOWN_STATE = (
    "coalesce(nullif(state, ''), CASE WHEN \"end\" IS NULL "
    "AND (open_nodes IS NULL OR open_nodes > 0) THEN 'RUNNING' ELSE 'UNKNOWN' END)"
)
_ENDED = '"end" IS NOT NULL'
_USED_MEMORY = (
    "CASE WHEN upper(state) <> 'OUT_OF_MEMORY' OR state IS NULL OR memory_used_peak IS NULL"
    " OR memory_peak IS NULL OR memory_used_peak >= memory_peak"
    " THEN coalesce(memory_used_peak, memory_peak)"
    " WHEN memory IS NULL OR memory_peak <= memory THEN memory_peak"
    " WHEN memory_used_peak > memory THEN memory_used_peak ELSE memory END"
)
_ENDED_FIGURES = {
    "elapsed": (sa.BigInteger, 'CASE WHEN start >= 0 AND "end" >= start THEN "end" - start END'),
    "ended_cpu_time": (sa.BigInteger, f"CASE WHEN {_ENDED} THEN cpu_time END"),
    "cpu_share": (
        sa.Double,
        'CASE WHEN "end" > start AND cpus > 0 THEN CAST(cpu_time AS DOUBLE PRECISION)'
        ' / ((CAST("end" AS DOUBLE PRECISION) - start) * cpus) END',
    ),
    "ended_memory_peak": (sa.BigInteger, f"CASE WHEN {_ENDED} THEN {_USED_MEMORY} END"),
    "memory_share": (
        sa.Double,
        f"CASE WHEN {_ENDED} AND memory > 0"
        f" THEN CAST({_USED_MEMORY} AS DOUBLE PRECISION) / memory END",
    ),
    "gpu_share": (
        sa.Double,
        f"CASE WHEN {_ENDED} AND gpu_measured_time > 0"
        " THEN CAST(gpu_used_time AS DOUBLE PRECISION) / gpu_measured_time END",
    ),
    "held_gpus": (sa.BigInteger, "nullif(coalesce(gpu_count, gpus), 0)"),
}


def _within_63_bits(*names: str) -> str:
    return " AND ".join(f"{name} <= {2**63 - 1}" for name in names)


_USAGE = (
    *("executions", "cpu_time", "core_time", "gpu_time", "gpu_measured_time"),
    *("gpu_profiled_time", "gpu_used_time", "gpu_energy", "memory_time"),
)


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
        sa.Column("skew_measured", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
        sa.UniqueConstraint("cluster", "node", name=op.f("uq_agents_cluster_node")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text()),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_checkpoints")),
    )
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
        "contributions",
        sa.Column("run_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("dropped", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_contributions")),
    )
    op.create_index(
        "ix_contributions_dropped",
        "contributions",
        ["run_id"],
        sqlite_where=sa.text("dropped"),
        postgresql_where=sa.text("dropped"),
    )
    op.create_index(op.f("ix_contributions_revision"), "contributions", ["revision"])
    op.create_table(
        "dead_letters",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "key", name=op.f("pk_dead_letters")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "mail_pauses",
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("until", sa.BigInteger()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("recipient", "cause", name=op.f("pk_mail_pauses")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "mail_log",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("mails", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "kind", "recipient", "outcome", name=op.f("pk_mail_log")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_mail_log_recipient_kind"), "mail_log", ["recipient", "kind"])
    op.create_table(
        "exported",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.LargeBinary(length=16)),
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
    op.create_table(
        "paths",
        sa.Column("id", _ID, nullable=False),
        sa.Column("digest", sa.LargeBinary(length=16), nullable=False),
        sa.Column("path", sa.LargeBinary(), nullable=False),
        sa.Column("software_id", sa.BigInteger()),
        sa.Column("named", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_paths")),
        sa.UniqueConstraint("digest", name=op.f("uq_paths_digest")),
    )
    op.create_index(op.f("ix_paths_software_id"), "paths", ["software_id"])
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
        sa.Column("qos", sa.Text()),
        sa.Column("command", sa.Text()),
        sa.Column("nodes", sa.LargeBinary()),
        sa.Column("cpus", sa.BigInteger()),
        sa.Column("memory", sa.BigInteger()),
        sa.Column("gpus", sa.BigInteger()),
        sa.Column("tres", sa.LargeBinary()),
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
        sa.Column("open_nodes", sa.BigInteger()),
        sa.Column("sightings", sa.BigInteger()),
        sa.Column("reporting_nodes", sa.BigInteger()),
        sa.Column("first_seen", sa.BigInteger()),
        sa.Column("last_seen", sa.BigInteger()),
        sa.Column("gpu_count", sa.BigInteger()),
        sa.Column("gpu_unused_count", sa.BigInteger()),
        sa.Column("gpu_held_time", sa.BigInteger()),
        sa.Column("gpu_measured_time", sa.BigInteger()),
        sa.Column("gpu_profiled_time", sa.BigInteger()),
        sa.Column("gpu_used_time", sa.BigInteger()),
        sa.Column("gpu_memory_peak", sa.BigInteger()),
        sa.Column("gpu_energy", sa.BigInteger()),
        sa.Column("shown_state", sa.Text(), sa.Computed(_SHOWN_STATE, persisted=True)),
        *(
            sa.Column(name, kind(), sa.Computed(expression, persisted=True))
            for name, (kind, expression) in _ENDED_FIGURES.items()
        ),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.Column("stale", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("changes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("unjudged", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("script", sa.LargeBinary(length=16)),
        sa.Column("archived", sa.Text()),
        sa.Column("archived_updated", sa.BigInteger()),
        sa.Column("archived_start", sa.BigInteger()),
        sa.Column("pruned", sa.SmallInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint(
            "cluster", "job_id", "start", name=op.f("uq_runs_cluster_job_id_start")
        ),
    )
    op.create_index(
        op.f("ix_runs_account_start_id_shown_state"),
        "runs",
        ["account", "start", "id", "shown_state"],
    )
    for name in ("array_job_id", "het_job_id"):
        columns = [name, "cluster", "shown_state"]
        op.create_index(op.f(f"ix_runs_{name}_cluster_shown_state"), "runs", columns)
    for name in ("cluster", "partition", "qos", "name", "cpus"):
        op.create_index(op.f(f"ix_runs_{name}_start_id"), "runs", [name, "start", "id"])
    for name in _ENDED_FIGURES:
        known = sa.text(f"{name} IS NOT NULL")
        op.create_index(
            f"ix_runs_{name}",
            "runs",
            [name, "start", "id"],
            sqlite_where=known,
            postgresql_where=known,
        )
    op.create_index(op.f("ix_runs_end"), "runs", ["end"])
    op.create_index(
        "ix_runs_unused_gpus",
        "runs",
        ["start", "id"],
        sqlite_where=sa.text("gpu_unused_count > 0"),
        postgresql_where=sa.text("gpu_unused_count > 0"),
    )
    op.create_index(op.f("ix_runs_job_id"), "runs", ["job_id"])
    op.create_index(
        "ix_runs_open",
        "runs",
        ["end", "cluster"],
        sqlite_where=sa.text('"end" IS NULL'),
        postgresql_where=sa.text('"end" IS NULL'),
    )
    op.create_index(op.f("ix_runs_pruned_end"), "runs", ["pruned", "end"])
    op.create_index(
        "ix_runs_unjudged",
        "runs",
        ["id"],
        sqlite_where=sa.text("unjudged"),
        postgresql_where=sa.text("unjudged"),
    )
    op.create_index(
        "ix_runs_stale",
        "runs",
        ["cluster", "id"],
        sqlite_where=sa.text("stale"),
        postgresql_where=sa.text("stale"),
    )
    op.create_index(op.f("ix_runs_shown_state_start_id"), "runs", ["shown_state", "start", "id"])
    op.create_index(op.f("ix_runs_start_id"), "runs", ["start", "id"])
    op.create_index(
        "ix_runs_unarchived",
        "runs",
        ["end"],
        sqlite_where=sa.text('archived_updated IS NULL AND "end" IS NOT NULL'),
        postgresql_where=sa.text('archived_updated IS NULL AND "end" IS NOT NULL'),
    )
    op.create_index(
        op.f("ix_runs_user_start_id_shown_state"), "runs", ["user", "start", "id", "shown_state"]
    )
    op.create_table(
        "software",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("local_version", sa.Text(), nullable=False),
        sa.Column("user_provided", sa.Boolean(), nullable=False),
        sa.Column("ignored", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_software")),
        sa.UniqueConstraint(
            "name",
            "version",
            "local_version",
            "user_provided",
            "ignored",
            name=op.f("uq_software_name_version_local_version_user_provided_ignored"),
        ),
    )
    op.create_table(
        "software_by_day",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("account", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("software_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("executions", sa.BigInteger(), nullable=False),
        sa.Column("cpu_time", sa.BigInteger(), nullable=False),
        sa.Column("core_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_measured_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_profiled_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_used_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_energy", sa.BigInteger(), nullable=False),
        sa.Column("name_runs", sa.BigInteger(), nullable=False),
        sa.Column("version_runs", sa.BigInteger(), nullable=False),
        sa.Column("local_version_runs", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            _within_63_bits(*_USAGE[:-1]),
            name=op.f("ck_software_by_day_within_63_bits"),
        ),
        sa.PrimaryKeyConstraint(
            "day",
            "cluster",
            "user",
            "account",
            "partition",
            "software_id",
            name=op.f("pk_software_by_day"),
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_software_by_day_software_id_day"), "software_by_day", ["software_id", "day"]
    )
    op.create_table(
        "software_by_month",
        sa.Column("month", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("software_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("account", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("executions", sa.BigInteger(), nullable=False),
        sa.Column("cpu_time", sa.BigInteger(), nullable=False),
        sa.Column("core_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_measured_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_profiled_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_used_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_energy", sa.BigInteger(), nullable=False),
        sa.Column("name_runs", sa.BigInteger(), nullable=False),
        sa.Column("version_runs", sa.BigInteger(), nullable=False),
        sa.Column("local_version_runs", sa.BigInteger(), nullable=False),
        sa.Column("days", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            _within_63_bits(*_USAGE[:-1]),
            name=op.f("ck_software_by_month_within_63_bits"),
        ),
        sa.PrimaryKeyConstraint(
            "month",
            "software_id",
            "user",
            "account",
            "cluster",
            "partition",
            name=op.f("pk_software_by_month"),
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tokens",
        sa.Column("id", _ID, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger()),
        sa.Column("revoked", sa.BigInteger()),
        sa.Column("used", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_table(
        "audit_log",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("viewer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("user", "day", "viewer", "subject", name=op.f("pk_audit_log")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_audit_log_day"), "audit_log", ["day"])
    op.create_index(op.f("ix_audit_log_last"), "audit_log", ["last"])
    op.create_table(
        "coordinators",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("until", sa.BigInteger()),
        sa.PrimaryKeyConstraint(
            "cluster", "account", "user", "since", name=op.f("pk_coordinators")
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_coordinators_user"), "coordinators", ["user"])
    op.create_table(
        "user_accounts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("accounts", sa.LargeBinary(), nullable=False),
        sa.Column("password_hash", sa.Text()),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("disabled", sa.BigInteger()),
        sa.Column("last_sign_in", sa.BigInteger()),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_user_accounts")),
    )
    op.create_table(
        "preferences",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user"], ["user_accounts.name"], name=op.f("fk_preferences_user_user_accounts")
        ),
        sa.PrimaryKeyConstraint("user", name=op.f("pk_preferences")),
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("user", sa.Text()),
        sa.Column("server_token", sa.LargeBinary(length=32)),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("last_seen", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("peer_uid", sa.BigInteger()),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("user_agent", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user"], ["user_accounts.name"], name=op.f("fk_sessions_user_user_accounts")
        ),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_sessions")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_sessions_user"), "sessions", ["user"])
    op.create_index(op.f("ix_sessions_expires"), "sessions", ["expires"])
    op.create_table(
        "user_tokens",
        sa.Column("id", _ID, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("revoked", sa.BigInteger()),
        sa.Column("used", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["user"], ["user_accounts.name"], name=op.f("fk_user_tokens_user_user_accounts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_user_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_user_tokens_digest")),
    )
    op.create_index(op.f("ix_user_tokens_user"), "user_tokens", ["user"])
    op.create_table(
        "usage_by_day",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("account", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("executions", sa.BigInteger(), nullable=False),
        sa.Column("cpu_time", sa.BigInteger(), nullable=False),
        sa.Column("core_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_measured_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_profiled_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_used_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_energy", sa.BigInteger(), nullable=False),
        sa.Column("memory_time", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            _within_63_bits(*_USAGE),
            name=op.f("ck_usage_by_day_within_63_bits"),
        ),
        sa.PrimaryKeyConstraint(
            "day", "cluster", "user", "account", "partition", name=op.f("pk_usage_by_day")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "usage_by_month",
        sa.Column("month", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("account", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("executions", sa.BigInteger(), nullable=False),
        sa.Column("cpu_time", sa.BigInteger(), nullable=False),
        sa.Column("core_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_measured_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_profiled_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_used_time", sa.BigInteger(), nullable=False),
        sa.Column("gpu_energy", sa.BigInteger(), nullable=False),
        sa.Column("memory_time", sa.BigInteger(), nullable=False),
        sa.Column("days", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            _within_63_bits(*_USAGE),
            name=op.f("ck_usage_by_month_within_63_bits"),
        ),
        sa.PrimaryKeyConstraint(
            "month",
            "user",
            "account",
            "cluster",
            "partition",
            name=op.f("pk_usage_by_month"),
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_details",
        sa.Column("run_id", _ID, autoincrement=False, nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_details_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_details")),
    )
    op.create_index(op.f("ix_run_details_changed"), "run_details", ["changed"])
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
        sa.Column("stored_values", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("stored_rows", sa.BigInteger(), server_default="0", nullable=False),
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
    op.create_index(
        op.f("ix_run_nodes_cluster_node_birth"), "run_nodes", ["cluster", "node", "birth"]
    )
    op.create_index(op.f("ix_run_nodes_node_run_id"), "run_nodes", ["node", "run_id"])
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
        sa.Column("resolution", sa.BigInteger()),
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
        sa.Column("own_namespace", sa.Boolean(), nullable=False),
        sa.Column("executions", sa.BigInteger(), nullable=False),
        sa.Column("processes", sa.BigInteger(), nullable=False),
        sa.Column("cpu_time", sa.BigInteger(), nullable=False),
        sa.Column("cpu_user", sa.BigInteger(), nullable=False),
        sa.Column("cpu_system", sa.BigInteger(), nullable=False),
        sa.Column("cpu_estimated", sa.BigInteger(), nullable=False),
        sa.Column("read_bytes", sa.BigInteger(), nullable=False),
        sa.Column("written_bytes", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("gpu_time", sa.BigInteger(), nullable=False),
        sa.Column("peak_memory", sa.BigInteger(), nullable=False),
        sa.Column("gpu_memory_peak", sa.BigInteger(), nullable=False),
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
        sa.Column("gpu_time", sa.BigInteger()),
        sa.Column("gpu_memory_peak", sa.BigInteger()),
        sa.Column("gpu_epoch", sa.BigInteger()),
        sa.Column("gpu_epoch_time", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["run_node_id"], ["run_nodes.id"], name=op.f("fk_steps_run_node_id_run_nodes")
        ),
        sa.PrimaryKeyConstraint("run_node_id", "step", name=op.f("pk_steps")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "gpus",
        sa.Column("run_node_id", _ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text()),
        sa.Column("first_seen", sa.BigInteger(), nullable=False),
        sa.Column("last_seen", sa.BigInteger(), nullable=False),
        sa.Column("held_time", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.Boolean()),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("active_time", sa.BigInteger()),
        sa.Column("multiprocessor_time", sa.BigInteger()),
        sa.Column("occupancy_time", sa.BigInteger()),
        sa.Column("tensor_time", sa.BigInteger()),
        sa.Column("fp64_time", sa.BigInteger()),
        sa.Column("fp32_time", sa.BigInteger()),
        sa.Column("fp16_time", sa.BigInteger()),
        sa.Column("bandwidth_time", sa.BigInteger()),
        sa.Column("memory_total", sa.BigInteger()),
        sa.Column("memory_peak", sa.BigInteger()),
        sa.Column("memory_time", sa.BigInteger()),
        sa.Column("energy", sa.BigInteger()),
        sa.Column("pcie_received_bytes", sa.BigInteger()),
        sa.Column("pcie_sent_bytes", sa.BigInteger()),
        sa.Column("nvlink_received_bytes", sa.BigInteger()),
        sa.Column("nvlink_sent_bytes", sa.BigInteger()),
        sa.Column("throttled_time", sa.LargeBinary()),
        sa.Column("faults", sa.LargeBinary()),
        sa.Column("coverage", sa.LargeBinary()),
        sa.Column("measured_time", sa.BigInteger(), nullable=False),
        sa.Column("used_time", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["run_node_id"], ["run_nodes.id"], name=op.f("fk_gpus_run_node_id_run_nodes")
        ),
        sa.PrimaryKeyConstraint("run_node_id", "key", "epoch", name=op.f("pk_gpus")),
        sqlite_with_rowid=False,
    )
    _create_findings()
    # The index of the text search: a table, functions and triggers.
    for statement in search_index.statements(op.get_bind().dialect.name == "postgresql"):
        op.execute(statement)


_COSTS = ("core_time", "gpu_time", "memory_time", "energy")


def _create_findings() -> None:
    """What the rules see, find and have shown."""
    op.create_table(
        "works",
        sa.Column("id", _ID, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_works")),
        sa.UniqueConstraint(
            "cluster",
            "user",
            "account",
            "kind",
            "key",
            name=op.f("uq_works_cluster_user_account_kind_key"),
        ),
    )
    op.create_index(op.f("ix_works_key"), "works", ["key"])
    op.create_index(op.f("ix_works_user_name"), "works", ["user", "name"])
    op.create_table(
        "scripts",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_scripts")),
    )
    op.create_table(
        "run_figures",
        sa.Column("run_id", _ID, autoincrement=False, nullable=False),
        sa.Column("work_id", _ID),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_figures_run_id_runs")),
        sa.ForeignKeyConstraint(
            ["work_id"], ["works.id"], name=op.f("fk_run_figures_work_id_works")
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_figures")),
    )
    op.create_index(op.f("ix_run_figures_work_id_run_id"), "run_figures", ["work_id", "run_id"])
    op.create_table(
        "findings",
        sa.Column("run_id", _ID, autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("severity", sa.SmallInteger(), nullable=False),
        sa.Column("audience", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.BigInteger()) for name in _COSTS),
        sa.Column("weight", sa.BigInteger(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("work_id", _ID),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("reply_user", sa.Text()),
        sa.Column("reply_time", sa.BigInteger()),
        sa.CheckConstraint("severity BETWEEN 0 AND 2", name=op.f("ck_findings_severity")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_findings_run_id_runs")),
        sa.ForeignKeyConstraint(["work_id"], ["works.id"], name=op.f("fk_findings_work_id_works")),
        sa.PrimaryKeyConstraint("run_id", "kind", name=op.f("pk_findings")),
        sqlite_with_rowid=False,
    )
    for names in (
        ("day", "kind"),
        ("user", "day"),
        ("account", "day"),
        ("kind", "day"),
        ("work_id", "kind"),
    ):
        op.create_index(op.f(f"ix_findings_{'_'.join(names)}"), "findings", list(names))
    op.create_table(
        "findings_by_day",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("acknowledged", sa.BigInteger(), nullable=False),
        sa.Column("not_helpful", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _COSTS),
        sa.CheckConstraint(
            _within_63_bits(*_COSTS), name=op.f("ck_findings_by_day_within_63_bits")
        ),
        sa.PrimaryKeyConstraint(
            "day",
            "cluster",
            "user",
            "account",
            "partition",
            "kind",
            name=op.f("pk_findings_by_day"),
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_findings_by_day_kind_day"), "findings_by_day", ["kind", "day"])
    op.create_table(
        "findings_shown",
        sa.Column("run_id", _ID, autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("viewer", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_findings_shown_run_id_runs")
        ),
        sa.PrimaryKeyConstraint(
            "run_id", "kind", "viewer", "place", name=op.f("pk_findings_shown")
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_findings_shown_kind_first"), "findings_shown", ["kind", "first"])
    op.create_table(
        "job_properties",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "cluster", "job_id", "user", "name", name=op.f("pk_job_properties")
        ),
    )
    op.create_index(op.f("ix_job_properties_name"), "job_properties", ["name"])
    op.create_index(op.f("ix_job_properties_user"), "job_properties", ["user"])
