/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What is said to the gateway and to the agent, as text. */
#ifndef JOBSIGHT_MESSAGE_H
#define JOBSIGHT_MESSAGE_H

#include "datasets.h"
#include "target.h"
#include "text.h"

/* The step on this node that the samples belong to. */
struct step {
	uint32_t job;
	char name[32]; /* 0, 1, ..., batch, extern, interactive */
	char node[256];
};

/* What was lost on the way. */
struct losses {
	uint64_t dropped; /* samples that never arrived */
	uint64_t failed;  /* attempts to send that failed */
};

/* The path of a group: of a dataset, or without one of the plugin's own counters. */
void message_path(struct text *text, const struct target *target, const struct step *step,
		  const struct dataset *dataset);

void message_request(struct text *text, const struct target *target, const char *method,
		     const char *path, const char *body);

/* Bodies for a gateway. */
void message_metrics(struct text *text, const struct dataset *dataset,
		     const struct sample *sample);
void message_losses(struct text *text, const struct losses *losses);

/* Datagrams for the agent: a sample; without a dataset the end of the step. */
void message_datagram(struct text *text, const struct step *step, const struct dataset *dataset,
		      const struct sample *sample, const struct losses *losses);

#endif
