/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "ring.h"

bool ring_put(struct ring *ring, const struct sample *sample)
{
	uint32_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
	uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_acquire);

	if (written - taken >= RING_SLOTS) {
		atomic_fetch_add_explicit(&ring->dropped, 1, memory_order_relaxed);
		return false;
	}
	ring->slots[written % RING_SLOTS] = *sample;
	atomic_store_explicit(&ring->written, written + 1, memory_order_release);
	return true;
}

bool ring_take(struct ring *ring, struct sample *sample)
{
	uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);

	if (taken == atomic_load_explicit(&ring->written, memory_order_acquire))
		return false;
	*sample = ring->slots[taken % RING_SLOTS];
	atomic_store_explicit(&ring->taken, taken + 1, memory_order_release);
	return true;
}
