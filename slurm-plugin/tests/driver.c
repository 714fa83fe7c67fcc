/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Does what slurmstepd does with the sender, without Slurm: samples of some tasks, the end of the
 * step, and the exit of the process.
 *
 * driver HOST TASKS ROUNDS PAUSE_MS KEEP_MS
 *
 * With SLOW_RESOLVER in the environment names take a minute to be resolved. Prints the longest time
 * that a hook took, in microseconds, and the dropped samples, when the step has ended. */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../sender.h"

#ifdef SLOW_RESOLVER
int getaddrinfo(const char *restrict node, const char *restrict service,
		const struct addrinfo *restrict hints, struct addrinfo **restrict found)
{
	(void)node, (void)service, (void)found;
	if (!(hints->ai_flags & AI_NUMERICHOST))
		sleep(60);
	return EAI_AGAIN;
}
#endif

static int64_t nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void announce(int task)
{
	char name[16];

	snprintf(name, sizeof(name), "%d", task);
	struct dataset *dataset = dataset_begin(&sender.datasets, name, true);
	dataset_field(dataset, "RSS", false);
	dataset_field(dataset, "CPUTime", true);
	dataset_end(&sender.datasets);
}

static int64_t hook(int task, int round)
{
	union {
		uint64_t integer;
		double real;
	} given[2] = {{.integer = (uint64_t)(1000 * task + round)}, {.real = 0.5}};
	struct sample sample;
	int64_t begin = nanoseconds();

	dataset_sample(&sender.datasets, task, given, time(NULL), &sample);
	if (ring_put(&sender.ring, &sample))
		sender_wake();
	return nanoseconds() - begin;
}

static void say(const char *line)
{
	fprintf(stderr, "said: %s\n", line);
}

int main(int argc, char **argv)
{
	int64_t longest = 0;

	if (argc != 6)
		return 2;
	int tasks = atoi(argv[2]), rounds = atoi(argv[3]), pause = atoi(argv[4]);
	const char *wrong = target_parse(&sender.target, argv[1]);
	if (wrong) {
		fprintf(stderr, "%s\n", wrong);
		return 2;
	}
	sender.step = (struct step){.job = 42, .name = "0", .node = "n1"};
	sender.keep_ms = (uint32_t)atoi(argv[5]);
	sender.say = say;
	if (!sender_start() || !sender_start())
		return 1;
	for (int task = 0; task < tasks; task++)
		announce(task);
	for (int round = 0; round < rounds; round++) {
		for (int task = 0; task < tasks; task++) {
			int64_t took = hook(task, round);
			longest = took > longest ? took : longest;
		}
		usleep((useconds_t)pause * 1000);
	}
	/* A task that ends in an error does not wait for a thread that it does not have. */
	if (fork() == 0)
		exit(0);
	sender_finish();
	printf("%lld %llu\n", (long long)(longest / 1000), (unsigned long long)sender.ring.dropped);
	fflush(stdout);
	return 0;
}
