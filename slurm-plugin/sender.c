/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "sender.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "http.h"

struct sender sender;

/* Enough for a resolver; a default stack of 8 MB would all be locked by slurmstepd_memlock_all. */
enum { STACK_BYTES = 256 * 1024 };

static sem_t work;
static _Atomic pid_t owner; /* the process that has the thread; a forked task has none */
static _Atomic bool finishing, ended;
static _Atomic int64_t last_moment; /* until then the process waits at its exit */

/* All below belongs to the thread. */
static struct http http;
static int agent_socket = -1;
static int64_t pause_until, began;
static struct losses lost, told; /* the ring's own drops are counted in the ring */

static char path_data[1024], body_data[8192], request_data[10240];

static struct losses losses_so_far(void)
{
	return (struct losses){
		.dropped = lost.dropped +
			   atomic_load_explicit(&sender.ring.dropped, memory_order_relaxed),
		.failed = lost.failed,
	};
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[256];
	va_list arguments;

	/* At its end slurmstepd takes its log down. */
	if (!sender.say || atomic_load(&finishing))
		return;
	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	sender.say(line);
}

static void note_failure(const char *reason)
{
	if (!lost.failed)
		say("samples cannot be sent: %s", reason);
	lost.failed++;
}

static bool too_late(void)
{
	return atomic_load(&finishing) && now_ms() >= atomic_load(&last_moment);
}

static int64_t deadline_of(int64_t limit)
{
	int64_t deadline = now_ms() + limit;

	if (!atomic_load(&finishing))
		return deadline;
	int64_t last = atomic_load(&last_moment);
	return deadline < last ? deadline : last;
}

/* --- to the agent ---------------------------------------------------------------------------- */

static void send_datagram(const struct dataset *dataset, const struct sample *sample)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = DATAGRAM_MS / 1000};
	struct text body = TEXT(body_data);
	struct losses losses = losses_so_far();
	char reason[64];

	if (agent_socket < 0) {
		agent_socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		setsockopt(agent_socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	}
	/* By name each time: an agent that was restarted has another socket there. */
	memcpy(address.sun_path, sender.target.path, sizeof(address.sun_path));
	message_datagram(&body, &sender.step, dataset, sample, &losses);
	if (body.cut)
		errno = EMSGSIZE;
	else if (sendto(agent_socket, body.data, body.length, MSG_NOSIGNAL,
			(struct sockaddr *)&address, sizeof(address)) >= 0)
		return;
	lost.dropped += dataset != NULL;
	/* An agent that is away costs nothing; one that hangs must not cost its patience again. */
	if (errno == EAGAIN)
		pause_until = now_ms() + PAUSE_MS;
	note_failure(strerror_r(errno, reason, sizeof(reason)));
}

/* --- to a gateway ---------------------------------------------------------------------------- */

/* False when the gateway could not be spoken to at all; its answers are a matter of one group. */
static bool exchange(const char *method, const struct dataset *dataset, const struct text *body,
		     bool *done)
{
	struct text path = TEXT(path_data), request = TEXT(request_data);
	char reason[48];

	*done = false;
	message_path(&path, &sender.target, &sender.step, dataset);
	message_request(&request, &sender.target, method, path.data, body ? body->data : "");
	if (path.cut || request.cut || (body && body->cut)) {
		note_failure("a request is too large");
		return true;
	}
	int status = http_exchange(&http, &sender.target, request.data, request.length,
				   deadline_of(REQUEST_MS));
	*done = status >= 200 && status < 300;
	if (!*done) {
		snprintf(reason, sizeof(reason), "the gateway answers %d", status);
		note_failure(status < 0 ? http.reason : reason);
		pause_until = now_ms() + PAUSE_MS;
	}
	return status >= 0;
}

static bool push_losses(void)
{
	struct text body = TEXT(body_data);
	struct losses losses = losses_so_far();
	bool done;

	message_losses(&body, &losses);
	if (!exchange("PUT", NULL, &body, &done))
		return false;
	if (done)
		told = losses;
	return done;
}

/* Push what waits; true when nothing is left. */
static bool push_waiting(void)
{
	uint32_t count = atomic_load_explicit(&sender.datasets.count, memory_order_acquire);
	bool complete = true;

	for (uint32_t i = 0; i < count; i++) {
		struct dataset *dataset = sender.datasets.list[i];
		struct text body = TEXT(body_data);
		bool done;

		if (!dataset->latest.waiting)
			continue;
		message_metrics(&body, dataset, &dataset->latest.sample);
		/* Even a push that failed may have arrived. */
		dataset->latest.pushed = true;
		if (!exchange("PUT", dataset, &body, &done))
			return false;
		dataset->latest.waiting = !done;
		complete &= done;
	}
	struct losses losses = losses_so_far();
	if (memcmp(&losses, &told, sizeof(told)))
		complete &= push_losses();
	return complete;
}

static void delete_groups(void)
{
	uint32_t count = atomic_load_explicit(&sender.datasets.count, memory_order_acquire);
	bool done;

	for (uint32_t i = 0; i < count; i++)
		if (sender.datasets.list[i]->latest.pushed &&
		    !exchange("DELETE", sender.datasets.list[i], NULL, &done))
			return;
	exchange("DELETE", NULL, NULL, &done);
}

static void sleep_until(int64_t moment)
{
	struct timespec until = {.tv_sec = moment / 1000, .tv_nsec = moment % 1000 * 1000000};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

/* The last samples stay for a scrape, but a process stays no longer than its step ran, so that
 * those that wait are never more than those that work. */
static void leave_gateway(void)
{
	int64_t ran = now_ms() - began;

	if (push_waiting() && sender.keep_ms) {
		int64_t until = now_ms() + (ran < sender.keep_ms ? ran : sender.keep_ms);
		atomic_store(&last_moment, until + END_MS);
		sleep_until(until);
	}
	delete_groups();
	http_close(&http);
}

/* --- the thread ------------------------------------------------------------------------------ */

static void take(const struct sample *sample)
{
	struct dataset *dataset = sender.datasets.list[sample->dataset];

	if (sender.target.kind == TARGET_GATEWAY) {
		/* A gateway holds one value of each: the newest is the one to send. */
		lost.dropped += dataset->latest.waiting;
		dataset->latest.sample = *sample;
		dataset->latest.waiting = true;
	} else if (now_ms() < pause_until || too_late()) {
		lost.dropped++;
	} else {
		send_datagram(dataset, sample);
	}
}

static void *run(void *unused)
{
	struct sample sample;
	bool last;

	prctl(PR_SET_NAME, "prof_sender");
	do {
		while (sem_wait(&work) && errno == EINTR)
			;
		last = atomic_load(&finishing);
		if (last)
			pause_until = 0; /* the last samples get their chance */
		while (ring_take(&sender.ring, &sample))
			take(&sample);
		if (sender.target.kind == TARGET_GATEWAY && !last && now_ms() >= pause_until)
			push_waiting();
	} while (!last);
	if (sender.target.kind == TARGET_GATEWAY)
		leave_gateway();
	else
		send_datagram(NULL, NULL);
	atomic_store(&ended, true);
	return unused;
}

bool sender_start(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;

	if (atomic_load(&owner) == getpid())
		return true;
	http.socket = -1;
	told.dropped = UINT64_MAX; /* never told */
	began = now_ms();
	if (sem_init(&work, 0, 0))
		return false;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	/* Signals are the business of slurmstepd's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&thread, &attributes, run, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (!error)
		atomic_store(&owner, getpid());
	return !error;
}

void sender_wake(void)
{
	sem_post(&work);
}

void sender_finish(void)
{
	if (atomic_load(&owner) != getpid() || atomic_load(&finishing))
		return;
	atomic_store(&last_moment, now_ms() + END_MS);
	atomic_store(&finishing, true);
	sem_post(&work);
}

/* slurmstepd's own errors go to the output of a batch job. An epilog may want to unmount what that
 * file lies on. */
static void let_go_of_output(void)
{
	int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);

	if (nowhere >= 0)
		dup2(nowhere, STDERR_FILENO);
}

/* At the exit of the process. The library is linked so that it is never unloaded before. */
__attribute__((destructor)) static void wait_for_the_end(void)
{
	struct timespec moment = {.tv_nsec = 1000000};

	if (atomic_load(&owner) != getpid())
		return;
	sender_finish();
	let_go_of_output();
	while (!atomic_load(&ended) && now_ms() < atomic_load(&last_moment)) {
		nanosleep(&moment, NULL);
		/* Mostly over at once; what lasts longer should not wake the node all the time. */
		if (moment.tv_nsec < 250000000)
			moment.tv_nsec *= 2;
	}
}
