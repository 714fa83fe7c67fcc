/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The thread that sends. Nobody ever waits for it but the process at its own exit, when slurmstepd
 * has said its last word to Slurm; and then not for long. */
#ifndef JOBSIGHT_SENDER_H
#define JOBSIGHT_SENDER_H

#include <stdbool.h>
#include <stdint.h>

#include "datasets.h"
#include "message.h"
#include "ring.h"
#include "target.h"

enum {
	REQUEST_MS = 2000,  /* one exchange with a gateway, connecting included */
	DATAGRAM_MS = 1000, /* one datagram to an agent whose queue is full: ten, mostly */
	PAUSE_MS = 5000,    /* after a failure */
	END_MS = 3000,	    /* everything that is left to do when the step has ended */
};

struct sender {
	struct target target;
	struct step step;
	uint32_t keep_ms; /* how long the last samples stay in a gateway */
	void (*say)(const char *line);
	struct datasets datasets;
	struct ring ring;
};

/* The one sender of this process; the hook fills datasets and ring. */
extern struct sender sender;

/* Start the thread; false where the system has none for us. A second call does nothing. */
bool sender_start(void);

/* There is something in the ring. */
void sender_wake(void);

/* No more samples will come. Returns at once. */
void sender_finish(void);

#endif
