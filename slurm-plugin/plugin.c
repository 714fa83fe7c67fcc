/* SPDX-License-Identifier: GPL-2.0-or-later */
/* acct_gather_profile/prometheus: what Slurm calls. The hooks run in threads of slurmstepd that
 * also enforce limits and reap tasks, so none of them waits for anything. */
#include "release.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "profile.h"
#include "sender.h"

_Static_assert(PROFILE_WORD_NONE == ACCT_GATHER_PROFILE_NONE &&
		       PROFILE_WORD_ENERGY == ACCT_GATHER_PROFILE_ENERGY &&
		       PROFILE_WORD_TASK == ACCT_GATHER_PROFILE_TASK &&
		       PROFILE_WORD_FILESYSTEM == ACCT_GATHER_PROFILE_LUSTRE &&
		       PROFILE_WORD_NETWORK == ACCT_GATHER_PROFILE_NETWORK &&
		       PROFILE_WORD_ALL == ACCT_GATHER_PROFILE_ALL,
	       "the bits of profile.h are Slurm's");

/* Everything else is hidden: names of slurmstepd itself would take its place. */
#pragma GCC visibility push(default)
const char plugin_name[] = "AcctGatherProfile prometheus plugin";
const char plugin_type[] = "acct_gather_profile/prometheus";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

#include "hooks.h"
#pragma GCC visibility pop

#define KEY_HOST "ProfilePrometheusHost"
#define KEY_DEFAULT "ProfilePrometheusDefault"
#define KEY_KEEP "ProfilePrometheusKeep"

enum { KEEP_SECONDS = 20, KEEP_SECONDS_MAX = 600 };

static char host[512]; /* never freed: the sender may still speak of it */
static uint32_t default_profile = ACCT_GATHER_PROFILE_ALL;
static uint32_t keep_seconds = KEEP_SECONDS;
static uint32_t running = ACCT_GATHER_PROFILE_NOT_SET;

static void say(const char *line)
{
	/* As information: an error of slurmstepd would be shown to the user of the job. */
	info("%s: %s: %s", plugin_type, host, line);
}

int init(void)
{
	return SLURM_SUCCESS;
}

int fini(void)
{
	sender_finish();
	return SLURM_SUCCESS;
}

/* --- settings -------------------------------------------------------------------------------- */

void acct_gather_profile_p_conf_options(s_p_options_t **all, int *count)
{
	s_p_options_t options[] = {
		{.key = KEY_HOST, .type = S_P_STRING},
		{.key = KEY_DEFAULT, .type = S_P_STRING},
		{.key = KEY_KEEP, .type = S_P_UINT32},
		{.key = NULL},
	};

	transfer_s_p_options(all, options, count);
}

/* Slurm ends a daemon whose settings are wrong; so it is seen when they are changed. */
void acct_gather_profile_p_conf_set(s_p_hashtbl_t *table)
{
	char *words = NULL, *address = NULL;

	default_profile = ACCT_GATHER_PROFILE_ALL;
	keep_seconds = KEEP_SECONDS;
	if (table) {
		s_p_get_string(&address, KEY_HOST, table);
		s_p_get_uint32(&keep_seconds, KEY_KEEP, table);
		if (s_p_get_string(&words, KEY_DEFAULT, table) &&
		    !profile_parse(words, &default_profile))
			fatal("acct_gather.conf: %s=%s: right is all, none, or a list of energy, "
			      "task, filesystem and network",
			      KEY_DEFAULT, words);
		xfree(words);
	}
	if (!address)
		fatal("acct_gather.conf: %s is missing: unix: and the path of the agent's socket, "
		      "or the address of a Pushgateway",
		      KEY_HOST);
	const char *wrong = target_parse(&sender.target, address);
	if (wrong)
		fatal("acct_gather.conf: %s=%s: %s", KEY_HOST, address, wrong);
	snprintf(host, sizeof(host), "%s", address);
	xfree(address);
	if (keep_seconds > KEEP_SECONDS_MAX)
		fatal("acct_gather.conf: %s=%" PRIu32 ": at most %d seconds", KEY_KEEP,
		      keep_seconds, KEEP_SECONDS_MAX);
}

static void add_value(settings_list list, const char *key, const char *value)
{
	config_key_pair_t *pair = xmalloc(sizeof(*pair));

	pair->name = xstrdup(key);
	pair->value = xstrdup(value);
	list_append(list, pair);
}

/* For `scontrol show config`. */
void acct_gather_profile_p_conf_values(settings_list *data)
{
	char number[16];

	snprintf(number, sizeof(number), "%" PRIu32, keep_seconds);
	add_value(*data, KEY_HOST, host);
	add_value(*data, KEY_DEFAULT, acct_gather_profile_to_string(default_profile));
	add_value(*data, KEY_KEEP, number);
}

void acct_gather_profile_p_get(enum acct_gather_profile_info which, void *data)
{
	if (which == ACCT_GATHER_PROFILE_DIR)
		*(char **)data = xstrdup(host);
	else if (which == ACCT_GATHER_PROFILE_DEFAULT)
		*(uint32_t *)data = default_profile;
	else if (which == ACCT_GATHER_PROFILE_RUNNING)
		*(uint32_t *)data = running;
}

/* --- the step -------------------------------------------------------------------------------- */

static void name_step(char *name, size_t size, const slurm_step_id_t *id)
{
	if (id->step_id == SLURM_BATCH_SCRIPT)
		snprintf(name, size, "batch");
	else if (id->step_id == SLURM_EXTERN_CONT)
		snprintf(name, size, "extern");
	else if (id->step_id == SLURM_INTERACTIVE_STEP)
		snprintf(name, size, "interactive");
	else if (id->step_het_comp != NO_VAL)
		snprintf(name, size, "%" PRIu32 "+%" PRIu32, id->step_id, id->step_het_comp);
	else
		snprintf(name, size, "%" PRIu32, id->step_id);
}

static uint32_t profile_of(const stepd_step_rec_t *job)
{
	if (job->profile != ACCT_GATHER_PROFILE_NOT_SET)
		return job->profile;
	/* Slurm does not tell this step what the job wants, which may be nothing. */
	if (job->step_id.step_id == SLURM_EXTERN_CONT)
		return ACCT_GATHER_PROFILE_NONE;
	return default_profile;
}

int acct_gather_profile_p_node_step_start(stepd_step_rec_t *job)
{
	running = profile_of(job);
	sender.step.job = job->step_id.job_id;
	name_step(sender.step.name, sizeof(sender.step.name), &job->step_id);
	snprintf(sender.step.node, sizeof(sender.step.node), "%s",
		 job->node_name ? job->node_name : "");
	sender.keep_ms = keep_seconds * 1000;
	sender.say = say;
	return SLURM_SUCCESS;
}

/* The last task on this node has ended, and its last sample was given to us before. */
int acct_gather_profile_p_node_step_end(void)
{
	sender_finish();
	return SLURM_SUCCESS;
}

/* A task has nothing of ours: descriptors close at exec, and threads are not inherited. */
int acct_gather_profile_p_child_forked(void)
{
	return SLURM_SUCCESS;
}

int acct_gather_profile_p_task_start(uint32_t task)
{
	(void)task;
	return SLURM_SUCCESS;
}

/* Others of the step may run on. */
int acct_gather_profile_p_task_end(pid_t pid)
{
	(void)pid;
	return SLURM_SUCCESS;
}

bool acct_gather_profile_p_is_active(uint32_t type)
{
	if (running <= ACCT_GATHER_PROFILE_NONE)
		return false;
	return type == ACCT_GATHER_PROFILE_NOT_SET || (running & type);
}

/* --- samples --------------------------------------------------------------------------------- */

/* Slurm's only group is that of the tasks. */
int64_t acct_gather_profile_p_create_group(const char *name)
{
	(void)name;
	return 0;
}

int acct_gather_profile_p_create_dataset(const char *name, int64_t parent,
					 acct_gather_profile_dataset_t *fields)
{
	if (running <= ACCT_GATHER_PROFILE_NONE)
		return SLURM_ERROR;
	/* Not earlier: while slurmstepd forks its tasks it should be alone. */
	if (!sender_start())
		info("%s: no thread to send with; samples are dropped", plugin_type);
	struct dataset *dataset = dataset_begin(&sender.datasets, name, parent != NO_PARENT);
	/* With an error Slurm would try again at every sample, and complain each time. */
	if (!dataset)
		return DATASETS_MAX;
	for (; fields && fields->type != PROFILE_FIELD_NOT_SET; fields++)
		dataset_field(dataset, fields->name, fields->type == PROFILE_FIELD_DOUBLE);
	if (dataset->left_out)
		info("%s: %s has more than %d fields; %" PRIu32 " are left out", plugin_type, name,
		     FIELDS_MAX, dataset->left_out);
	return (int)dataset_end(&sender.datasets);
}

int acct_gather_profile_p_add_sample_data(int dataset, void *data, time_t time)
{
	struct sample sample;

	if (!dataset_sample(&sender.datasets, dataset, data, time, &sample)) {
		atomic_fetch_add_explicit(&sender.ring.dropped, 1, memory_order_relaxed);
		return SLURM_SUCCESS;
	}
	if (ring_put(&sender.ring, &sample))
		sender_wake();
	return SLURM_SUCCESS;
}
