/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Slurm's side of plugin.c, as small as can be, so that the hooks run under the sanitizers: the
 * order of calls is the one that slurmstepd was seen to use.
 *
 * host PROFILE SAMPLES, with the settings of acct_gather.conf in the environment. */
#include "../release.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../hooks.h"

/* --- what the plugin wants of Slurm ---------------------------------------------------------- */

static void show(const char *kind, const char *format, va_list arguments)
{
	fprintf(stderr, "%s: ", kind);
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
}

void fatal(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	show("fatal", format, arguments);
	va_end(arguments);
	exit(1);
}

void slurm_log_var(const log_level_t level, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	show(level == LOG_LEVEL_INFO ? "info" : "other", format, arguments);
	va_end(arguments);
}

int get_log_level(void)
{
	return LOG_LEVEL_INFO;
}

char *xstrdup(const char *text)
{
	return text ? strdup(text) : NULL;
}

void slurm_xfree(void **place)
{
	free(*place);
	*place = NULL;
}

void *slurm_xcalloc(size_t count, size_t size, bool clear, bool try, const char *file, int line,
		    const char *function)
{
	(void)clear, (void)try, (void)file, (void)line, (void)function;
	return calloc(count, size);
}

int s_p_get_string(char **text, const char *key, const s_p_hashtbl_t *table)
{
	(void)table;
	return getenv(key) && (*text = strdup(getenv(key)));
}

int s_p_get_uint32(uint32_t *number, const char *key, const s_p_hashtbl_t *table)
{
	(void)table;
	if (!getenv(key))
		return 0;
	*number = (uint32_t)strtoul(getenv(key), NULL, 10);
	return 1;
}

void transfer_s_p_options(s_p_options_t **all, s_p_options_t *options, int *count)
{
	(void)all;
	for (; options->key; options++)
		++*count;
}

char *acct_gather_profile_to_string(uint32_t profile)
{
	static char text[16];

	snprintf(text, sizeof(text), "%u", profile);
	return text;
}

#if JOBSIGHT_SLURM == SLURM_22_05
void *list_append(List list, void *item)
#else
void list_append(list_t *list, void *item)
#endif
{
	config_key_pair_t *pair = item;

	(void)list;
	printf("%s=%s\n", pair->name, pair->value);
	free(pair->name);
	free(pair->value);
	free(pair);
#if JOBSIGHT_SLURM == SLURM_22_05
	return NULL;
#endif
}

/* --- a step ---------------------------------------------------------------------------------- */

/* Slurm holds such a lock around every hook that has to do with samples. */
static pthread_mutex_t hooks = PTHREAD_MUTEX_INITIALIZER;
static int samples;

static void *sample_task(void *name)
{
	acct_gather_profile_dataset_t fields[] = {
		{"RSS", PROFILE_FIELD_UINT64},
		{"CPUTime", PROFILE_FIELD_DOUBLE},
		{NULL, PROFILE_FIELD_NOT_SET},
	};
	union {
		uint64_t integer;
		double real;
	} data[2] = {{.integer = 4096}, {.real = 0.25}};

	pthread_mutex_lock(&hooks);
	int dataset = acct_gather_profile_p_create_dataset(
		name, acct_gather_profile_p_create_group("Tasks"), fields);
	pthread_mutex_unlock(&hooks);
	for (int i = 0; dataset >= 0 && i < samples; i++) {
		pthread_mutex_lock(&hooks);
		acct_gather_profile_p_add_sample_data(dataset, data, 1000 + i);
		pthread_mutex_unlock(&hooks);
		usleep(20000);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static char *tasks[] = {"0", "1"};
	s_p_options_t *options = NULL;
	settings_list list = NULL;
	stepd_step_rec_t job = {.node_name = "n1"};
	pthread_t threads[2];
	char *place = NULL;
	int count = 0;

	if (argc != 3)
		return 2;
	samples = atoi(argv[2]);
	job.profile = (uint32_t)strtoul(argv[1], NULL, 0);
	job.step_id = (slurm_step_id_t){.job_id = 42, .step_id = 3, .step_het_comp = NO_VAL};
	init();
	acct_gather_profile_p_conf_options(&options, &count);
	printf("%d options\n", count);
	acct_gather_profile_p_conf_set(getenv("NO_FILE") ? NULL : (s_p_hashtbl_t *)&options);
	acct_gather_profile_p_conf_values(&list);
	acct_gather_profile_p_get(ACCT_GATHER_PROFILE_DIR, &place);
	free(place);
	acct_gather_profile_p_node_step_start(&job);
	printf("task %d energy %d\n", acct_gather_profile_p_is_active(ACCT_GATHER_PROFILE_TASK),
	       acct_gather_profile_p_is_active(ACCT_GATHER_PROFILE_ENERGY));
	fflush(stdout);
	for (uint32_t i = 0; i < 2; i++)
		acct_gather_profile_p_task_start(i);
	acct_gather_profile_p_child_forked();
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, sample_task, tasks[i]);
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		acct_gather_profile_p_task_end(i);
	}
	acct_gather_profile_p_node_step_end();
	fini();
	return 0;
}
