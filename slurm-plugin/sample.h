/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One sample on its way from Slurm's hook to the sender. */
#ifndef JOBSIGHT_SAMPLE_H
#define JOBSIGHT_SAMPLE_H

#include <stdint.h>

enum { FIELDS_MAX = 32 };

struct sample {
	uint32_t dataset;
	int64_t time; /* seconds since 1970 */
	double values[FIELDS_MAX];
};

#endif
