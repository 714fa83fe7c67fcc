/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What Slurm announced: one dataset a task, and one for each of energy, file system and network.
 *
 * Written by the hook only, a dataset before its first sample; the sender reads a dataset once it
 * has taken a sample of it from the ring. */
#ifndef JOBSIGHT_DATASETS_H
#define JOBSIGHT_DATASETS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "sample.h"

enum { DATASETS_MAX = 1024, NAME_MAX_BYTES = 48 };

struct field {
	char name[NAME_MAX_BYTES];
	bool real;	   /* Slurm gives a double and not an integer */
	int sum_of;	   /* index of the field whose values are summed up here, or -1 */
	double scale;	   /* of a sum, into its base unit */
};

struct dataset {
	char group[NAME_MAX_BYTES]; /* task, energy, filesystem, network */
	char task[NAME_MAX_BYTES];  /* empty outside of tasks */
	uint32_t given;		    /* fields that Slurm gives */
	uint32_t fields;	    /* with our own behind them */
	uint32_t left_out;	    /* fields that found no room */
	struct field field[FIELDS_MAX];
	double sums[FIELDS_MAX];
	struct { /* what a gateway has and lacks: the sender's own */
		bool waiting, pushed;
		struct sample sample;
	} latest;
};

/* Memory is asked for when a dataset is announced, and kept: nearly all steps have few. */
struct datasets {
	_Atomic uint32_t count;
	struct dataset *list[DATASETS_MAX];
};

/* Begin a dataset; NULL when there are too many, or no memory. */
struct dataset *dataset_begin(struct datasets *datasets, const char *name, bool of_task);
void dataset_field(struct dataset *dataset, const char *name, bool real);

/* Close it; returns its number. */
uint32_t dataset_end(struct datasets *datasets);

/* Turn what Slurm gives, 8 bytes a field, into a sample; false for a number nobody announced. */
bool dataset_sample(struct datasets *datasets, int64_t number, const void *data, int64_t time,
		    struct sample *sample);

#endif
