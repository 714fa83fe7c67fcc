/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The functions that Slurm calls, by the names it looks for. Slurm's own headers come before. */
#ifndef HOOKS_H
#define HOOKS_H

int init(void);
int fini(void);
void acct_gather_profile_p_conf_options(s_p_options_t **all, int *count);
void acct_gather_profile_p_conf_set(s_p_hashtbl_t *table);
void acct_gather_profile_p_conf_values(settings_list *data);
void acct_gather_profile_p_get(enum acct_gather_profile_info which, void *data);
int acct_gather_profile_p_node_step_start(stepd_step_rec_t *job);
int acct_gather_profile_p_node_step_end(void);
int acct_gather_profile_p_child_forked(void);
int acct_gather_profile_p_task_start(uint32_t task);
int acct_gather_profile_p_task_end(pid_t pid);
int64_t acct_gather_profile_p_create_group(const char *name);
int acct_gather_profile_p_create_dataset(const char *name, int64_t parent,
					 acct_gather_profile_dataset_t *fields);
int acct_gather_profile_p_add_sample_data(int dataset, void *data, time_t time);
bool acct_gather_profile_p_is_active(uint32_t type);

#endif
