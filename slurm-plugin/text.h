/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Text in a buffer of fixed size, and the ways in which a value has to be escaped. */
#ifndef JOBSIGHT_TEXT_H
#define JOBSIGHT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct text {
	char *data; /* always ends with a zero */
	size_t size;
	size_t length;
	bool cut; /* something did not fit: the text must not be sent */
};

/* Make a text of an array. */
#define TEXT(array) ((struct text){.data = (array), .size = sizeof(array)})

void text_clear(struct text *text);
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A string of JSON, with its quotes. */
void text_json(struct text *text, const char *value);

/* A number of JSON: what JSON has no word for is null. */
void text_json_number(struct text *text, double value);

/* `/name/value` in the grouping key of a Pushgateway; a value that a path cannot hold goes as
 * `/name@base64/...`. */
void text_label(struct text *text, const char *name, const char *value);

/* The name of a metric: what Prometheus does not allow in one becomes `_`. */
void text_metric_name(struct text *text, const char *name);

#endif
