CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE agents (
	id INTEGER NOT NULL, 
	cluster TEXT NOT NULL, 
	node TEXT NOT NULL, 
	version TEXT NOT NULL, 
	written BIGINT NOT NULL, 
	received BIGINT NOT NULL, 
	clock_skew BIGINT NOT NULL, 
	skew_measured BIGINT NOT NULL, 
	CONSTRAINT pk_agents PRIMARY KEY (id), 
	CONSTRAINT uq_agents_cluster_node UNIQUE (cluster, node)
);
CREATE TABLE checkpoints (
	name TEXT NOT NULL, 
	value BIGINT NOT NULL, 
	text TEXT, 
	CONSTRAINT pk_checkpoints PRIMARY KEY (name)
);
CREATE TABLE cluster_records (
	cluster TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	data BLOB NOT NULL, 
	changed BIGINT NOT NULL, 
	CONSTRAINT pk_cluster_records PRIMARY KEY (cluster, kind, name)
)
 WITHOUT ROWID

;
CREATE TABLE contributions (
	run_id BIGINT NOT NULL, 
	revision BIGINT NOT NULL, 
	dropped BOOLEAN DEFAULT 0 NOT NULL, 
	data BLOB NOT NULL, 
	CONSTRAINT pk_contributions PRIMARY KEY (run_id)
);
CREATE INDEX ix_contributions_dropped ON contributions (run_id) WHERE dropped;
CREATE INDEX ix_contributions_revision ON contributions (revision);
CREATE TABLE dead_letters (
	kind TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	cluster TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	first BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	tries BIGINT NOT NULL, 
	CONSTRAINT pk_dead_letters PRIMARY KEY (kind, "key")
)
 WITHOUT ROWID

;
CREATE TABLE mail_pauses (
	recipient TEXT NOT NULL, 
	cause TEXT NOT NULL, 
	until BIGINT, 
	reason TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	CONSTRAINT pk_mail_pauses PRIMARY KEY (recipient, cause)
)
 WITHOUT ROWID

;
CREATE TABLE mail_log (
	day INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	recipient TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	mails BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	CONSTRAINT pk_mail_log PRIMARY KEY (day, kind, recipient, outcome)
)
 WITHOUT ROWID

;
CREATE INDEX ix_mail_log_recipient_kind ON mail_log (recipient, kind);
CREATE TABLE exported (
	name TEXT NOT NULL, 
	run_id BIGINT NOT NULL, 
	digest BLOB, 
	CONSTRAINT pk_exported PRIMARY KEY (name, run_id)
)
 WITHOUT ROWID

;
CREATE INDEX ix_exported_waiting ON exported (name) WHERE digest IS NULL;
CREATE TABLE paths (
	id INTEGER NOT NULL, 
	digest BLOB NOT NULL, 
	path BLOB NOT NULL, 
	software_id BIGINT, 
	named BIGINT, 
	CONSTRAINT pk_paths PRIMARY KEY (id), 
	CONSTRAINT uq_paths_digest UNIQUE (digest)
);
CREATE INDEX ix_paths_software_id ON paths (software_id);
CREATE TABLE runs (
	id INTEGER NOT NULL, 
	cluster TEXT NOT NULL, 
	job_id BIGINT NOT NULL, 
	start BIGINT NOT NULL, 
	source TEXT NOT NULL, 
	sluid TEXT, 
	restart_count BIGINT, 
	array_job_id BIGINT, 
	array_task_id BIGINT, 
	het_job_id BIGINT, 
	het_offset BIGINT, 
	name TEXT, 
	user TEXT, 
	uid BIGINT, 
	account TEXT, 
	partition TEXT, 
	qos TEXT, 
	command TEXT, 
	nodes BLOB, 
	cpus BIGINT, 
	memory BIGINT, 
	gpus BIGINT, 
	tres BLOB, 
	time_limit BIGINT, 
	submit BIGINT, 
	"end" BIGINT, 
	state TEXT, 
	exit_code BIGINT, 
	exit_signal BIGINT, 
	provisional BOOLEAN NOT NULL, 
	cpu_time BIGINT, 
	memory_used_peak BIGINT, 
	memory_peak BIGINT, 
	open_nodes BIGINT, 
	sightings BIGINT, 
	reporting_nodes BIGINT, 
	first_seen BIGINT, 
	last_seen BIGINT, 
	gpu_count BIGINT, 
	gpu_unused_count BIGINT, 
	gpu_held_time BIGINT, 
	gpu_measured_time BIGINT, 
	gpu_profiled_time BIGINT, 
	gpu_used_time BIGINT, 
	gpu_memory_peak BIGINT, 
	gpu_energy BIGINT, 
	shown_state TEXT GENERATED ALWAYS AS (coalesce(nullif(state, ''), CASE WHEN "end" IS NULL AND (open_nodes IS NULL OR open_nodes > 0) THEN 'RUNNING' ELSE 'UNKNOWN' END)) STORED, 
	elapsed BIGINT GENERATED ALWAYS AS (CASE WHEN start >= 0 AND "end" >= start THEN "end" - start END) STORED, 
	ended_cpu_time BIGINT GENERATED ALWAYS AS (CASE WHEN "end" IS NOT NULL THEN cpu_time END) STORED, 
	cpu_share DOUBLE GENERATED ALWAYS AS (CASE WHEN "end" > start AND cpus > 0 THEN CAST(cpu_time AS DOUBLE PRECISION) / ((CAST("end" AS DOUBLE PRECISION) - start) * cpus) END) STORED, 
	ended_memory_peak BIGINT GENERATED ALWAYS AS (CASE WHEN "end" IS NOT NULL THEN CASE WHEN upper(state) <> 'OUT_OF_MEMORY' OR state IS NULL OR memory_used_peak IS NULL OR memory_peak IS NULL OR memory_used_peak >= memory_peak THEN coalesce(memory_used_peak, memory_peak) WHEN memory IS NULL OR memory_peak <= memory THEN memory_peak WHEN memory_used_peak > memory THEN memory_used_peak ELSE memory END END) STORED, 
	memory_share DOUBLE GENERATED ALWAYS AS (CASE WHEN "end" IS NOT NULL AND memory > 0 THEN CAST(CASE WHEN upper(state) <> 'OUT_OF_MEMORY' OR state IS NULL OR memory_used_peak IS NULL OR memory_peak IS NULL OR memory_used_peak >= memory_peak THEN coalesce(memory_used_peak, memory_peak) WHEN memory IS NULL OR memory_peak <= memory THEN memory_peak WHEN memory_used_peak > memory THEN memory_used_peak ELSE memory END AS DOUBLE PRECISION) / memory END) STORED, 
	gpu_share DOUBLE GENERATED ALWAYS AS (CASE WHEN "end" IS NOT NULL AND gpu_measured_time > 0 THEN CAST(gpu_used_time AS DOUBLE PRECISION) / gpu_measured_time END) STORED, 
	held_gpus BIGINT GENERATED ALWAYS AS (nullif(coalesce(gpu_count, gpus), 0)) STORED, 
	updated BIGINT NOT NULL, 
	stale BOOLEAN DEFAULT 1 NOT NULL, 
	changes BIGINT DEFAULT '0' NOT NULL, 
	unjudged BOOLEAN DEFAULT 1 NOT NULL, 
	script BLOB, 
	archived TEXT, 
	archived_updated BIGINT, 
	archived_start BIGINT, 
	pruned SMALLINT DEFAULT '0' NOT NULL, chain_job_id BIGINT, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT uq_runs_cluster_job_id_start UNIQUE (cluster, job_id, start)
);
CREATE INDEX ix_runs_account_start_id_shown_state ON runs (account, start, id, shown_state);
CREATE INDEX ix_runs_array_job_id_cluster_shown_state ON runs (array_job_id, cluster, shown_state);
CREATE INDEX ix_runs_het_job_id_cluster_shown_state ON runs (het_job_id, cluster, shown_state);
CREATE INDEX ix_runs_cluster_start_id ON runs (cluster, start, id);
CREATE INDEX ix_runs_partition_start_id ON runs (partition, start, id);
CREATE INDEX ix_runs_qos_start_id ON runs (qos, start, id);
CREATE INDEX ix_runs_name_start_id ON runs (name, start, id);
CREATE INDEX ix_runs_cpus_start_id ON runs (cpus, start, id);
CREATE INDEX ix_runs_elapsed ON runs (elapsed, start, id) WHERE elapsed IS NOT NULL;
CREATE INDEX ix_runs_ended_cpu_time ON runs (ended_cpu_time, start, id) WHERE ended_cpu_time IS NOT NULL;
CREATE INDEX ix_runs_cpu_share ON runs (cpu_share, start, id) WHERE cpu_share IS NOT NULL;
CREATE INDEX ix_runs_ended_memory_peak ON runs (ended_memory_peak, start, id) WHERE ended_memory_peak IS NOT NULL;
CREATE INDEX ix_runs_memory_share ON runs (memory_share, start, id) WHERE memory_share IS NOT NULL;
CREATE INDEX ix_runs_gpu_share ON runs (gpu_share, start, id) WHERE gpu_share IS NOT NULL;
CREATE INDEX ix_runs_held_gpus ON runs (held_gpus, start, id) WHERE held_gpus IS NOT NULL;
CREATE INDEX ix_runs_end ON runs ("end");
CREATE INDEX ix_runs_unused_gpus ON runs (start, id) WHERE gpu_unused_count > 0;
CREATE INDEX ix_runs_job_id ON runs (job_id);
CREATE INDEX ix_runs_open ON runs ("end", cluster) WHERE "end" IS NULL;
CREATE INDEX ix_runs_pruned_end ON runs (pruned, "end");
CREATE INDEX ix_runs_unjudged ON runs (id) WHERE unjudged;
CREATE INDEX ix_runs_stale ON runs (cluster, id) WHERE stale;
CREATE INDEX ix_runs_shown_state_start_id ON runs (shown_state, start, id);
CREATE INDEX ix_runs_start_id ON runs (start, id);
CREATE INDEX ix_runs_unarchived ON runs ("end") WHERE archived_updated IS NULL AND "end" IS NOT NULL;
CREATE INDEX ix_runs_user_start_id_shown_state ON runs (user, start, id, shown_state);
CREATE TABLE software (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	version TEXT NOT NULL, 
	local_version TEXT NOT NULL, 
	user_provided BOOLEAN NOT NULL, 
	ignored BOOLEAN NOT NULL, 
	CONSTRAINT pk_software PRIMARY KEY (id), 
	CONSTRAINT uq_software_name_version_local_version_user_provided_ignored UNIQUE (name, version, local_version, user_provided, ignored)
);
CREATE TABLE software_by_day (
	day INTEGER NOT NULL, 
	cluster TEXT NOT NULL, 
	user TEXT NOT NULL, 
	account TEXT NOT NULL, 
	partition TEXT NOT NULL, 
	software_id BIGINT NOT NULL, 
	runs BIGINT NOT NULL, 
	executions BIGINT NOT NULL, 
	cpu_time BIGINT NOT NULL, 
	core_time BIGINT NOT NULL, 
	gpu_time BIGINT NOT NULL, 
	gpu_measured_time BIGINT NOT NULL, 
	gpu_profiled_time BIGINT NOT NULL, 
	gpu_used_time BIGINT NOT NULL, 
	gpu_energy BIGINT NOT NULL, 
	name_runs BIGINT NOT NULL, 
	version_runs BIGINT NOT NULL, 
	local_version_runs BIGINT NOT NULL, 
	CONSTRAINT pk_software_by_day PRIMARY KEY (day, cluster, user, account, partition, software_id), 
	CONSTRAINT ck_software_by_day_within_63_bits CHECK (executions <= 9223372036854775807 AND cpu_time <= 9223372036854775807 AND core_time <= 9223372036854775807 AND gpu_time <= 9223372036854775807 AND gpu_measured_time <= 9223372036854775807 AND gpu_profiled_time <= 9223372036854775807 AND gpu_used_time <= 9223372036854775807 AND gpu_energy <= 9223372036854775807)
)
 WITHOUT ROWID

;
CREATE INDEX ix_software_by_day_software_id_day ON software_by_day (software_id, day);
CREATE TABLE software_by_month (
	month INTEGER NOT NULL, 
	software_id BIGINT NOT NULL, 
	user TEXT NOT NULL, 
	account TEXT NOT NULL, 
	cluster TEXT NOT NULL, 
	partition TEXT NOT NULL, 
	runs BIGINT NOT NULL, 
	executions BIGINT NOT NULL, 
	cpu_time BIGINT NOT NULL, 
	core_time BIGINT NOT NULL, 
	gpu_time BIGINT NOT NULL, 
	gpu_measured_time BIGINT NOT NULL, 
	gpu_profiled_time BIGINT NOT NULL, 
	gpu_used_time BIGINT NOT NULL, 
	gpu_energy BIGINT NOT NULL, 
	name_runs BIGINT NOT NULL, 
	version_runs BIGINT NOT NULL, 
	local_version_runs BIGINT NOT NULL, 
	days BIGINT NOT NULL, 
	CONSTRAINT pk_software_by_month PRIMARY KEY (month, software_id, user, account, cluster, partition), 
	CONSTRAINT ck_software_by_month_within_63_bits CHECK (executions <= 9223372036854775807 AND cpu_time <= 9223372036854775807 AND core_time <= 9223372036854775807 AND gpu_time <= 9223372036854775807 AND gpu_measured_time <= 9223372036854775807 AND gpu_profiled_time <= 9223372036854775807 AND gpu_used_time <= 9223372036854775807 AND gpu_energy <= 9223372036854775807)
)
 WITHOUT ROWID

;
CREATE TABLE tokens (
	id INTEGER NOT NULL, 
	cluster TEXT NOT NULL, 
	digest BLOB NOT NULL, 
	label TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	expires BIGINT, 
	revoked BIGINT, 
	used BIGINT, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT uq_tokens_digest UNIQUE (digest)
);
CREATE TABLE audit_log (
	user TEXT NOT NULL, 
	day INTEGER NOT NULL, 
	viewer TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	first BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	count BIGINT NOT NULL, 
	CONSTRAINT pk_audit_log PRIMARY KEY (user, day, viewer, subject)
)
 WITHOUT ROWID

;
CREATE INDEX ix_audit_log_day ON audit_log (day);
CREATE INDEX ix_audit_log_last ON audit_log (last);
CREATE TABLE coordinators (
	cluster TEXT NOT NULL, 
	account TEXT NOT NULL, 
	user TEXT NOT NULL, 
	since BIGINT NOT NULL, 
	until BIGINT, 
	CONSTRAINT pk_coordinators PRIMARY KEY (cluster, account, user, since)
)
 WITHOUT ROWID

;
CREATE INDEX ix_coordinators_user ON coordinators (user);
CREATE TABLE user_accounts (
	name TEXT NOT NULL, 
	role TEXT NOT NULL, 
	accounts BLOB NOT NULL, 
	password_hash TEXT, 
	origin TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	disabled BIGINT, 
	last_sign_in BIGINT, 
	CONSTRAINT pk_user_accounts PRIMARY KEY (name)
);
CREATE TABLE preferences (
	user TEXT NOT NULL, 
	data BLOB NOT NULL, 
	CONSTRAINT pk_preferences PRIMARY KEY (user), 
	CONSTRAINT fk_preferences_user_user_accounts FOREIGN KEY(user) REFERENCES user_accounts (name)
);
CREATE TABLE sessions (
	digest BLOB NOT NULL, 
	user TEXT, 
	server_token BLOB, 
	created BIGINT NOT NULL, 
	last_seen BIGINT NOT NULL, 
	expires BIGINT NOT NULL, 
	peer_uid BIGINT, 
	address TEXT NOT NULL, 
	user_agent TEXT NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (digest), 
	CONSTRAINT fk_sessions_user_user_accounts FOREIGN KEY(user) REFERENCES user_accounts (name)
)
 WITHOUT ROWID

;
CREATE INDEX ix_sessions_user ON sessions (user);
CREATE INDEX ix_sessions_expires ON sessions (expires);
CREATE TABLE user_tokens (
	id INTEGER NOT NULL, 
	user TEXT NOT NULL, 
	digest BLOB NOT NULL, 
	label TEXT NOT NULL, 
	scope TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	expires BIGINT NOT NULL, 
	revoked BIGINT, 
	used BIGINT, 
	CONSTRAINT pk_user_tokens PRIMARY KEY (id), 
	CONSTRAINT fk_user_tokens_user_user_accounts FOREIGN KEY(user) REFERENCES user_accounts (name), 
	CONSTRAINT uq_user_tokens_digest UNIQUE (digest)
);
CREATE INDEX ix_user_tokens_user ON user_tokens (user);
CREATE TABLE usage_by_day (
	day INTEGER NOT NULL, 
	cluster TEXT NOT NULL, 
	user TEXT NOT NULL, 
	account TEXT NOT NULL, 
	partition TEXT NOT NULL, 
	runs BIGINT NOT NULL, 
	executions BIGINT NOT NULL, 
	cpu_time BIGINT NOT NULL, 
	core_time BIGINT NOT NULL, 
	gpu_time BIGINT NOT NULL, 
	gpu_measured_time BIGINT NOT NULL, 
	gpu_profiled_time BIGINT NOT NULL, 
	gpu_used_time BIGINT NOT NULL, 
	gpu_energy BIGINT NOT NULL, 
	memory_time BIGINT NOT NULL, 
	CONSTRAINT pk_usage_by_day PRIMARY KEY (day, cluster, user, account, partition), 
	CONSTRAINT ck_usage_by_day_within_63_bits CHECK (executions <= 9223372036854775807 AND cpu_time <= 9223372036854775807 AND core_time <= 9223372036854775807 AND gpu_time <= 9223372036854775807 AND gpu_measured_time <= 9223372036854775807 AND gpu_profiled_time <= 9223372036854775807 AND gpu_used_time <= 9223372036854775807 AND gpu_energy <= 9223372036854775807 AND memory_time <= 9223372036854775807)
)
 WITHOUT ROWID

;
CREATE TABLE usage_by_month (
	month INTEGER NOT NULL, 
	user TEXT NOT NULL, 
	account TEXT NOT NULL, 
	cluster TEXT NOT NULL, 
	partition TEXT NOT NULL, 
	runs BIGINT NOT NULL, 
	executions BIGINT NOT NULL, 
	cpu_time BIGINT NOT NULL, 
	core_time BIGINT NOT NULL, 
	gpu_time BIGINT NOT NULL, 
	gpu_measured_time BIGINT NOT NULL, 
	gpu_profiled_time BIGINT NOT NULL, 
	gpu_used_time BIGINT NOT NULL, 
	gpu_energy BIGINT NOT NULL, 
	memory_time BIGINT NOT NULL, 
	days BIGINT NOT NULL, 
	CONSTRAINT pk_usage_by_month PRIMARY KEY (month, user, account, cluster, partition), 
	CONSTRAINT ck_usage_by_month_within_63_bits CHECK (executions <= 9223372036854775807 AND cpu_time <= 9223372036854775807 AND core_time <= 9223372036854775807 AND gpu_time <= 9223372036854775807 AND gpu_measured_time <= 9223372036854775807 AND gpu_profiled_time <= 9223372036854775807 AND gpu_used_time <= 9223372036854775807 AND gpu_energy <= 9223372036854775807 AND memory_time <= 9223372036854775807)
)
 WITHOUT ROWID

;
CREATE TABLE run_details (
	run_id INTEGER NOT NULL, 
	changed BIGINT NOT NULL, 
	data BLOB NOT NULL, 
	CONSTRAINT pk_run_details PRIMARY KEY (run_id), 
	CONSTRAINT fk_run_details_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_run_details_changed ON run_details (changed);
CREATE TABLE run_nodes (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	cluster TEXT NOT NULL, 
	job_id BIGINT NOT NULL, 
	node TEXT NOT NULL, 
	boot_id TEXT NOT NULL, 
	birth BIGINT NOT NULL, 
	sluid TEXT, 
	restart_count BIGINT, 
	epoch TEXT NOT NULL, 
	written BIGINT NOT NULL, 
	totals BLOB, 
	cpu_time BIGINT, 
	memory_used_peak BIGINT, 
	memory_peak BIGINT, 
	coverage BLOB, 
	first_sample BIGINT, 
	last_sample BIGINT, 
	final BOOLEAN DEFAULT 0 NOT NULL, 
	open_chunks INTEGER DEFAULT '0' NOT NULL, 
	stored_values BIGINT DEFAULT '0' NOT NULL, 
	stored_rows BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_run_nodes PRIMARY KEY (id), 
	CONSTRAINT fk_run_nodes_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT uq_run_nodes_cluster_job_id_node_boot_id_birth UNIQUE (cluster, job_id, node, boot_id, birth)
);
CREATE INDEX ix_run_nodes_run_id_node ON run_nodes (run_id, node);
CREATE INDEX ix_run_nodes_cluster_node_birth ON run_nodes (cluster, node, birth);
CREATE INDEX ix_run_nodes_node_run_id ON run_nodes (node, run_id);
CREATE TABLE spools (
	id INTEGER NOT NULL, 
	agent_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	CONSTRAINT pk_spools PRIMARY KEY (id), 
	CONSTRAINT fk_spools_agent_id_agents FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT uq_spools_agent_id_name UNIQUE (agent_id, name)
);
CREATE TABLE batches (
	spool_id INTEGER NOT NULL, 
	first BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	CONSTRAINT pk_batches PRIMARY KEY (spool_id, first), 
	CONSTRAINT fk_batches_spool_id_spools FOREIGN KEY(spool_id) REFERENCES spools (id)
)
 WITHOUT ROWID

;
CREATE TABLE chunks (
	id INTEGER NOT NULL, 
	run_node_id INTEGER NOT NULL, 
	first BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	rows INTEGER NOT NULL, 
	level SMALLINT NOT NULL, 
	data BLOB NOT NULL, 
	summary BLOB, 
	resolution BIGINT, 
	CONSTRAINT pk_chunks PRIMARY KEY (id), 
	CONSTRAINT ck_chunks_level CHECK (level BETWEEN 0 AND 2), 
	CONSTRAINT fk_chunks_run_node_id_run_nodes FOREIGN KEY(run_node_id) REFERENCES run_nodes (id)
);
CREATE INDEX ix_chunks_run_node_id_first ON chunks (run_node_id, first);
CREATE TABLE executables (
	run_node_id INTEGER NOT NULL, 
	path_id INTEGER NOT NULL, 
	path_known BOOLEAN NOT NULL, 
	epoch BIGINT NOT NULL, 
	sequence BIGINT NOT NULL, 
	own_namespace BOOLEAN NOT NULL, 
	executions BIGINT NOT NULL, 
	processes BIGINT NOT NULL, 
	cpu_time BIGINT NOT NULL, 
	cpu_user BIGINT NOT NULL, 
	cpu_system BIGINT NOT NULL, 
	cpu_estimated BIGINT NOT NULL, 
	read_bytes BIGINT NOT NULL, 
	written_bytes BIGINT NOT NULL, 
	failures BIGINT NOT NULL, 
	gpu_time BIGINT NOT NULL, 
	peak_memory BIGINT NOT NULL, 
	gpu_memory_peak BIGINT NOT NULL, 
	first_seen BIGINT NOT NULL, 
	last_seen BIGINT NOT NULL, 
	CONSTRAINT pk_executables PRIMARY KEY (run_node_id, path_id, path_known, epoch), 
	CONSTRAINT fk_executables_path_id_paths FOREIGN KEY(path_id) REFERENCES paths (id), 
	CONSTRAINT fk_executables_run_node_id_run_nodes FOREIGN KEY(run_node_id) REFERENCES run_nodes (id)
)
 WITHOUT ROWID

;
CREATE INDEX ix_executables_path_id ON executables (path_id);
CREATE TABLE steps (
	run_node_id INTEGER NOT NULL, 
	step TEXT NOT NULL, 
	tasks BIGINT NOT NULL, 
	cpu_time BIGINT, 
	cpu_overhead BIGINT, 
	memory_peak BIGINT, 
	oom_kills BIGINT, 
	first_seen BIGINT NOT NULL, 
	last_seen BIGINT NOT NULL, 
	ended BOOLEAN NOT NULL, 
	gpu_time BIGINT, 
	gpu_memory_peak BIGINT, 
	gpu_epoch BIGINT, 
	gpu_epoch_time BIGINT, 
	CONSTRAINT pk_steps PRIMARY KEY (run_node_id, step), 
	CONSTRAINT fk_steps_run_node_id_run_nodes FOREIGN KEY(run_node_id) REFERENCES run_nodes (id)
)
 WITHOUT ROWID

;
CREATE TABLE gpus (
	run_node_id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	sequence BIGINT NOT NULL, 
	uuid TEXT NOT NULL, 
	name TEXT NOT NULL, 
	parent TEXT, 
	first_seen BIGINT NOT NULL, 
	last_seen BIGINT NOT NULL, 
	held_time BIGINT NOT NULL, 
	used BOOLEAN, 
	shared BOOLEAN NOT NULL, 
	active_time BIGINT, 
	multiprocessor_time BIGINT, 
	occupancy_time BIGINT, 
	tensor_time BIGINT, 
	fp64_time BIGINT, 
	fp32_time BIGINT, 
	fp16_time BIGINT, 
	bandwidth_time BIGINT, 
	memory_total BIGINT, 
	memory_peak BIGINT, 
	memory_time BIGINT, 
	energy BIGINT, 
	pcie_received_bytes BIGINT, 
	pcie_sent_bytes BIGINT, 
	nvlink_received_bytes BIGINT, 
	nvlink_sent_bytes BIGINT, 
	throttled_time BLOB, 
	faults BLOB, 
	coverage BLOB, 
	measured_time BIGINT NOT NULL, 
	used_time BIGINT, 
	CONSTRAINT pk_gpus PRIMARY KEY (run_node_id, "key", epoch), 
	CONSTRAINT fk_gpus_run_node_id_run_nodes FOREIGN KEY(run_node_id) REFERENCES run_nodes (id)
)
 WITHOUT ROWID

;
CREATE TABLE works (
	id INTEGER NOT NULL, 
	cluster TEXT NOT NULL, 
	user TEXT NOT NULL, 
	account TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	"key" BLOB NOT NULL, 
	name TEXT NOT NULL, 
	CONSTRAINT pk_works PRIMARY KEY (id), 
	CONSTRAINT uq_works_cluster_user_account_kind_key UNIQUE (cluster, user, account, kind, "key")
);
CREATE INDEX ix_works_key ON works ("key");
CREATE INDEX ix_works_user_name ON works (user, name);
CREATE TABLE scripts (
	"key" BLOB NOT NULL, 
	text TEXT NOT NULL, 
	CONSTRAINT pk_scripts PRIMARY KEY ("key")
);
CREATE TABLE run_figures (
	run_id INTEGER NOT NULL, 
	work_id INTEGER, 
	revision BIGINT NOT NULL, 
	data BLOB NOT NULL, 
	CONSTRAINT pk_run_figures PRIMARY KEY (run_id), 
	CONSTRAINT fk_run_figures_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT fk_run_figures_work_id_works FOREIGN KEY(work_id) REFERENCES works (id)
);
CREATE INDEX ix_run_figures_work_id_run_id ON run_figures (work_id, run_id);
CREATE TABLE findings (
	run_id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	severity SMALLINT NOT NULL, 
	audience TEXT NOT NULL, 
	state TEXT NOT NULL, 
	first BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	core_time BIGINT, 
	gpu_time BIGINT, 
	memory_time BIGINT, 
	energy BIGINT, 
	weight BIGINT NOT NULL, 
	cluster TEXT NOT NULL, 
	user TEXT NOT NULL, 
	account TEXT NOT NULL, 
	partition TEXT NOT NULL, 
	day INTEGER NOT NULL, 
	work_id INTEGER, 
	data BLOB NOT NULL, 
	reply_user TEXT, 
	reply_time BIGINT, 
	CONSTRAINT pk_findings PRIMARY KEY (run_id, kind), 
	CONSTRAINT ck_findings_severity CHECK (severity BETWEEN 0 AND 2), 
	CONSTRAINT fk_findings_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT fk_findings_work_id_works FOREIGN KEY(work_id) REFERENCES works (id)
)
 WITHOUT ROWID

;
CREATE INDEX ix_findings_day_kind ON findings (day, kind);
CREATE INDEX ix_findings_user_day ON findings (user, day);
CREATE INDEX ix_findings_account_day ON findings (account, day);
CREATE INDEX ix_findings_kind_day ON findings (kind, day);
CREATE INDEX ix_findings_work_id_kind ON findings (work_id, kind);
CREATE TABLE findings_by_day (
	day INTEGER NOT NULL, 
	cluster TEXT NOT NULL, 
	user TEXT NOT NULL, 
	account TEXT NOT NULL, 
	partition TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	runs BIGINT NOT NULL, 
	acknowledged BIGINT NOT NULL, 
	not_helpful BIGINT NOT NULL, 
	core_time BIGINT NOT NULL, 
	gpu_time BIGINT NOT NULL, 
	memory_time BIGINT NOT NULL, 
	energy BIGINT NOT NULL, 
	CONSTRAINT pk_findings_by_day PRIMARY KEY (day, cluster, user, account, partition, kind), 
	CONSTRAINT ck_findings_by_day_within_63_bits CHECK (core_time <= 9223372036854775807 AND gpu_time <= 9223372036854775807 AND memory_time <= 9223372036854775807 AND energy <= 9223372036854775807)
)
 WITHOUT ROWID

;
CREATE INDEX ix_findings_by_day_kind_day ON findings_by_day (kind, day);
CREATE TABLE findings_shown (
	run_id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	viewer TEXT NOT NULL, 
	place TEXT NOT NULL, 
	first BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	count BIGINT NOT NULL, 
	CONSTRAINT pk_findings_shown PRIMARY KEY (run_id, kind, viewer, place), 
	CONSTRAINT fk_findings_shown_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
)
 WITHOUT ROWID

;
CREATE INDEX ix_findings_shown_kind_first ON findings_shown (kind, first);
CREATE TABLE job_properties (
	cluster TEXT NOT NULL, 
	job_id BIGINT NOT NULL, 
	user TEXT NOT NULL, 
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	changed BIGINT NOT NULL, 
	CONSTRAINT pk_job_properties PRIMARY KEY (cluster, job_id, user, name)
);
CREATE INDEX ix_job_properties_name ON job_properties (name);
CREATE INDEX ix_job_properties_user ON job_properties (user);
CREATE VIRTUAL TABLE run_search USING fts5(text, content='', columnsize=0, detail='none', tokenize='trigram');
CREATE TRIGGER run_search_insert AFTER INSERT ON runs BEGIN INSERT INTO run_search (rowid, text) VALUES (new.id, lower((char(10) || coalesce(substr(new."name", 1, 1000), '') || char(10) || coalesce(substr(new."user", 1, 1000), '') || char(10) || coalesce(substr(new."account", 1, 1000), '') || char(10) || coalesce(substr(new."partition", 1, 1000), '') || char(10) || coalesce(substr(new."command", 1, 1000), '') || char(10)))); END;
CREATE TRIGGER run_search_update AFTER UPDATE OF "name", "user", "account", "partition", "command" ON runs WHEN old."name" IS NOT new."name" OR old."user" IS NOT new."user" OR old."account" IS NOT new."account" OR old."partition" IS NOT new."partition" OR old."command" IS NOT new."command" BEGIN INSERT INTO run_search (run_search, rowid, text) VALUES ('delete', old.id, lower((char(10) || coalesce(substr(old."name", 1, 1000), '') || char(10) || coalesce(substr(old."user", 1, 1000), '') || char(10) || coalesce(substr(old."account", 1, 1000), '') || char(10) || coalesce(substr(old."partition", 1, 1000), '') || char(10) || coalesce(substr(old."command", 1, 1000), '') || char(10)))); INSERT INTO run_search (rowid, text) VALUES (new.id, lower((char(10) || coalesce(substr(new."name", 1, 1000), '') || char(10) || coalesce(substr(new."user", 1, 1000), '') || char(10) || coalesce(substr(new."account", 1, 1000), '') || char(10) || coalesce(substr(new."partition", 1, 1000), '') || char(10) || coalesce(substr(new."command", 1, 1000), '') || char(10)))); END;
CREATE TRIGGER run_search_delete AFTER DELETE ON runs BEGIN INSERT INTO run_search (run_search, rowid, text) VALUES ('delete', old.id, lower((char(10) || coalesce(substr(old."name", 1, 1000), '') || char(10) || coalesce(substr(old."user", 1, 1000), '') || char(10) || coalesce(substr(old."account", 1, 1000), '') || char(10) || coalesce(substr(old."partition", 1, 1000), '') || char(10) || coalesce(substr(old."command", 1, 1000), '') || char(10)))); END;
CREATE INDEX ix_runs_chain ON runs (chain_job_id, cluster, shown_state) WHERE chain_job_id IS NOT NULL;
CREATE TABLE job_chains (
	cluster TEXT NOT NULL, 
	job_id BIGINT NOT NULL, 
	user TEXT NOT NULL, 
	chain_job_id BIGINT NOT NULL, 
	seen BIGINT NOT NULL, 
	CONSTRAINT pk_job_chains PRIMARY KEY (cluster, job_id, user)
)
 WITHOUT ROWID

;
CREATE INDEX ix_job_chains_chain_job_id_cluster_user ON job_chains (chain_job_id, cluster, user);
CREATE INDEX ix_job_chains_seen ON job_chains (seen);
CREATE TABLE node_days (
	id INTEGER NOT NULL, 
	cluster TEXT NOT NULL, 
	node TEXT NOT NULL, 
	day INTEGER NOT NULL, 
	first_sample BIGINT NOT NULL, 
	last_sample BIGINT NOT NULL, 
	open_chunks INTEGER NOT NULL, 
	stored_values BIGINT NOT NULL, 
	complete BOOLEAN NOT NULL, 
	downsampled BOOLEAN DEFAULT 0 NOT NULL, 
	cpu_time BIGINT, 
	core_time BIGINT, 
	CONSTRAINT pk_node_days PRIMARY KEY (id), 
	CONSTRAINT uq_node_days_cluster_node_day UNIQUE (cluster, node, day)
);
CREATE INDEX ix_node_days_cluster_day_cpu_time_core_time ON node_days (cluster, day, cpu_time, core_time);
CREATE INDEX ix_node_days_day ON node_days (day);
CREATE INDEX ix_node_days_incomplete ON node_days (cluster, node, day) WHERE NOT complete;
CREATE TABLE node_chunks (
	id INTEGER NOT NULL, 
	node_day_id INTEGER NOT NULL, 
	first BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	rows INTEGER NOT NULL, 
	level SMALLINT NOT NULL, 
	data BLOB NOT NULL, 
	summary BLOB, 
	resolution BIGINT, 
	CONSTRAINT pk_node_chunks PRIMARY KEY (id), 
	CONSTRAINT ck_node_chunks_level CHECK (level BETWEEN 0 AND 2), 
	CONSTRAINT fk_node_chunks_node_day_id_node_days FOREIGN KEY(node_day_id) REFERENCES node_days (id)
);
CREATE INDEX ix_node_chunks_node_day_id_first ON node_chunks (node_day_id, first);
CREATE TABLE sign_in_failures (
	"key" BLOB NOT NULL, 
	ends BIGINT NOT NULL, 
	failures INTEGER NOT NULL, 
	CONSTRAINT pk_sign_in_failures PRIMARY KEY ("key")
)
 WITHOUT ROWID

;
CREATE INDEX ix_sign_in_failures_ends ON sign_in_failures (ends);
INSERT INTO alembic_version VALUES ('0004')
