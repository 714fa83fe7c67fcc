/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "datasets.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Slurm gives these as what came since the last sample. A scrape that misses one would lose it, so
 * their sums go out as well. */
static const struct {
	const char *name;
	const char *sum;
	double scale;
} sums_of_task[] = {
	{"CPUTime", "jobsight_profile_cpu_seconds_total", 1.0},
	{"ReadMB", "jobsight_profile_read_bytes_total", 1048576.0},
	{"WriteMB", "jobsight_profile_written_bytes_total", 1048576.0},
};

static void copy(char *to, const char *from)
{
	snprintf(to, NAME_MAX_BYTES, "%s", from);
}

struct dataset *dataset_begin(struct datasets *datasets, const char *name, bool of_task)
{
	uint32_t count = atomic_load_explicit(&datasets->count, memory_order_relaxed);

	if (count >= DATASETS_MAX)
		return NULL;
	struct dataset *dataset = calloc(1, sizeof(*dataset));
	if (!dataset)
		return NULL;
	free(datasets->list[count]); /* of one that was begun and not closed */
	datasets->list[count] = dataset;
	if (of_task) {
		copy(dataset->group, "task");
		copy(dataset->task, name);
	} else {
		copy(dataset->group, name);
		for (char *c = dataset->group; *c; c++)
			*c = (char)tolower((unsigned char)*c);
	}
	return dataset;
}

static struct field *new_field(struct dataset *dataset, const char *name)
{
	if (dataset->fields >= FIELDS_MAX) {
		dataset->left_out++;
		return NULL;
	}
	struct field *field = &dataset->field[dataset->fields++];
	copy(field->name, name);
	field->sum_of = -1;
	return field;
}

void dataset_field(struct dataset *dataset, const char *name, bool real)
{
	struct field *field = new_field(dataset, name);

	if (field) {
		field->real = real;
		dataset->given++;
	}
}

uint32_t dataset_end(struct datasets *datasets)
{
	uint32_t count = atomic_load_explicit(&datasets->count, memory_order_relaxed);
	struct dataset *dataset = datasets->list[count];

	for (uint32_t i = 0; dataset->task[0] && i < dataset->given; i++) {
		for (size_t k = 0; k < sizeof(sums_of_task) / sizeof(*sums_of_task); k++) {
			if (strcmp(dataset->field[i].name, sums_of_task[k].name))
				continue;
			struct field *sum = new_field(dataset, sums_of_task[k].sum);
			if (sum) {
				sum->sum_of = (int)i;
				sum->scale = sums_of_task[k].scale;
			}
		}
	}
	atomic_store_explicit(&datasets->count, count + 1, memory_order_release);
	return count;
}

static double value_at(const void *data, uint32_t index, bool real)
{
	const char *place = (const char *)data + 8 * (size_t)index;
	uint64_t integer;
	double number;

	if (real) {
		memcpy(&number, place, sizeof(number));
		return number;
	}
	memcpy(&integer, place, sizeof(integer));
	return (double)integer;
}

bool dataset_sample(struct datasets *datasets, int64_t number, const void *data, int64_t time,
		    struct sample *sample)
{
	if (number < 0 || number >= atomic_load_explicit(&datasets->count, memory_order_relaxed))
		return false;
	struct dataset *dataset = datasets->list[number];

	sample->dataset = (uint32_t)number;
	sample->time = time;
	for (uint32_t i = 0; i < dataset->given; i++)
		sample->values[i] = value_at(data, i, dataset->field[i].real);
	for (uint32_t i = dataset->given; i < dataset->fields; i++) {
		const struct field *field = &dataset->field[i];

		dataset->sums[i] += sample->values[field->sum_of] * field->scale;
		sample->values[i] = dataset->sums[i];
	}
	return true;
}
