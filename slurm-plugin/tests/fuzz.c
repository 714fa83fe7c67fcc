/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the plugin reads of others, for libFuzzer under the sanitizers: a gateway's answers, the
 * settings, and the names and values that Slurm gives. The first byte chooses. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../datasets.h"
#include "../http.h"
#include "../message.h"
#include "../profile.h"
#include "../target.h"
#include "../text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An answer on a connection that is open already; the other side hangs up behind it. */
static void answer(const char *data, size_t size)
{
	static const char request[] = "PUT /metrics HTTP/1.1\r\n\r\n";
	struct http http = {.socket = -1};
	struct target target = {.kind = TARGET_GATEWAY, .host = "0.0.0.0", .port = "0"};
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair))
		abort();
	if (write(pair[1], data, size) != (ssize_t)size && errno != EAGAIN)
		abort();
	shutdown(pair[1], SHUT_WR);
	http.socket = pair[0];
	/* A deadline that has passed: what is not there already is not waited for. */
	int status = http_exchange(&http, &target, request, sizeof(request) - 1, now_ms() - 1);
	if (status < -1 || status > 999)
		abort();
	http_close(&http);
	close(pair[1]);
}

static void names(const char *first, const char *second)
{
	char buffer[512], path[1024], request[2048], json[2048];
	struct datasets datasets = {0};
	struct text text = TEXT(buffer), place = TEXT(path), whole = TEXT(request),
		    datagram = TEXT(json);
	struct target target;
	struct step step = {.job = 7};
	struct losses losses = {1, 2};
	struct sample sample = {0};
	double values[FIELDS_MAX + 8];

	snprintf(step.name, sizeof(step.name), "%s", first);
	snprintf(step.node, sizeof(step.node), "%s", second);
	text_label(&text, "label", first);
	text_metric_name(&text, second);
	text_clear(&text);
	text_json(&text, first);
	if (target_parse(&target, second))
		memset(&target, 0, sizeof(target));
	struct dataset *dataset = dataset_begin(&datasets, first, strlen(first) % 2);
	if (!dataset)
		return;
	for (size_t i = 0; i < FIELDS_MAX + 8; i++) {
		values[i] = (double)strlen(second) / (double)(i % 3);
		if (i < strlen(first))
			dataset_field(dataset, i % 2 ? first : second, i % 2);
	}
	uint32_t number = dataset_end(&datasets);
	if (dataset_sample(&datasets, number, values, 1, &sample)) {
		message_path(&place, &target, &step, dataset);
		message_metrics(&text, dataset, &sample);
		message_losses(&text, &losses);
		message_request(&whole, &target, "PUT", place.data, text.data);
		message_datagram(&datagram, &step, dataset, &sample, &losses);
	}
	free(dataset);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct target target;
	uint32_t profile;

	if (!size)
		return 0;
	char *text = malloc(size);
	if (!text)
		return 0;
	memcpy(text, data + 1, size - 1);
	text[size - 1] = 0;
	size_t half = strlen(text);
	switch (data[0] % 4) {
	case 0:
		answer(text, size - 1);
		break;
	case 1:
		target_parse(&target, text);
		break;
	case 2:
		profile_parse(text, &profile);
		break;
	default:
		names(text, half + 1 < size ? text + half + 1 : "");
	}
	free(text);
	return 0;
}

#ifdef WITHOUT_LIBFUZZER
/* Inputs from standard input, each behind its length: the share of `make test`. */
int main(void)
{
	uint32_t length;
	unsigned long count = 0;

	while (fread(&length, sizeof(length), 1, stdin) == 1) {
		uint8_t *data = malloc(length + 1u);
		if (!data || fread(data, 1, length, stdin) != length)
			return 2;
		LLVMFuzzerTestOneInput(data, length);
		free(data);
		count++;
	}
	printf("%lu\n", count);
	return 0;
}
#endif
