/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Which data are wanted: the words of ProfilePrometheusDefault. */
#ifndef JOBSIGHT_PROFILE_H
#define JOBSIGHT_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

/* The bits are Slurm's own; plugin.c checks that they are the same. */
#define PROFILE_WORD_NONE 0x1u
#define PROFILE_WORD_ENERGY 0x2u
#define PROFILE_WORD_TASK 0x4u
#define PROFILE_WORD_FILESYSTEM 0x8u
#define PROFILE_WORD_NETWORK 0x10u
#define PROFILE_WORD_ALL 0xffffffffu

/* Read all, none, or some of energy, task, filesystem and network with commas between. Slurm's own
 * function finds words inside of others and takes what it does not know for nothing. */
bool profile_parse(const char *text, uint32_t *profile);

#endif
