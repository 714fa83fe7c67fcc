/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "message.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void message_path(struct text *text, const struct target *target, const struct step *step,
		  const struct dataset *dataset)
{
	char job[16];

	/* All of it belongs into the grouping key: a push replaces what has the same key, so in
	 * the body the second task would erase the first. */
	snprintf(job, sizeof(job), "%" PRIu32, step->job);
	text_add(text, "%s/metrics", target->prefix);
	text_label(text, "job", job);
	text_label(text, "instance", step->node);
	text_label(text, "step", step->name);
	text_label(text, "group", dataset ? dataset->group : "plugin");
	if (dataset && dataset->task[0])
		text_label(text, "task", dataset->task);
}

void message_request(struct text *text, const struct target *target, const char *method,
		     const char *path, const char *body)
{
	bool brackets = strchr(target->host, ':') != NULL;

	text_add(text, "%s %s HTTP/1.1\r\nHost: %s%s%s:%s\r\n", method, path, brackets ? "[" : "",
		 target->host, brackets ? "]" : "", target->port);
	text_add(text, "User-Agent: jobsight-slurm-plugin\r\nContent-Type: text/plain\r\n");
	text_add(text, "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
}

void message_metrics(struct text *text, const struct dataset *dataset, const struct sample *sample)
{
	for (uint32_t i = 0; i < dataset->fields; i++) {
		if (dataset->field[i].sum_of >= 0)
			text_add(text, "# TYPE %s counter\n", dataset->field[i].name);
		text_metric_name(text, dataset->field[i].name);
		text_add(text, " %.15g\n", sample->values[i]);
	}
	text_add(text, "# TYPE jobsight_profile_sample_timestamp_seconds gauge\n");
	text_add(text, "jobsight_profile_sample_timestamp_seconds %" PRId64 "\n", sample->time);
}

void message_losses(struct text *text, const struct losses *losses)
{
	text_add(text,
		 "# TYPE jobsight_profile_dropped_samples_total counter\n"
		 "jobsight_profile_dropped_samples_total %" PRIu64 "\n"
		 "# TYPE jobsight_profile_failed_sends_total counter\n"
		 "jobsight_profile_failed_sends_total %" PRIu64 "\n",
		 losses->dropped, losses->failed);
}

void message_datagram(struct text *text, const struct step *step, const struct dataset *dataset,
		      const struct sample *sample, const struct losses *losses)
{
	text_add(text, "{\"job\":%" PRIu32 ",\"step\":", step->job);
	text_json(text, step->name);
	text_add(text, ",\"node\":");
	text_json(text, step->node);
	text_add(text, ",\"dropped\":%" PRIu64 ",\"failed\":%" PRIu64, losses->dropped,
		 losses->failed);
	if (dataset) {
		text_add(text, ",\"group\":");
		text_json(text, dataset->group);
		text_add(text, ",\"task\":");
		text_json(text, dataset->task);
		text_add(text, ",\"time\":%" PRId64 ",\"values\":{", sample->time);
		for (uint32_t i = 0; i < dataset->fields; i++) {
			text_add(text, i ? "," : "");
			text_json(text, dataset->field[i].name);
			text_add(text, ":");
			text_json_number(text, sample->values[i]);
		}
		text_add(text, "}");
	}
	text_add(text, "}");
}
