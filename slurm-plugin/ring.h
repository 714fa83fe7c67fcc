/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The bounded way from the hook to the sender: one writer, one reader, no lock, no allocation.
 *
 * Slurm calls the hooks one at a time (it holds a lock of its own around them), so the many threads
 * that sample are one writer. */
#ifndef JOBSIGHT_RING_H
#define JOBSIGHT_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "sample.h"

/* A power of two: the counters below may wrap around. 256 tasks at a sample a second can wait two
 * seconds, which is as long as one request may take. */
enum { RING_SLOTS = 512 };

struct ring {
	_Atomic uint32_t written;
	_Atomic uint32_t taken;
	_Atomic uint64_t dropped;
	struct sample slots[RING_SLOTS];
};

/* The writer's side; false and counted when the ring is full. */
bool ring_put(struct ring *ring, const struct sample *sample);

/* The reader's side; false when the ring is empty. */
bool ring_take(struct ring *ring, struct sample *sample);

#endif
