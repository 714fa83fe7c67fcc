/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What can be tried without Slurm and without a network: ring, texts, datasets, settings. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../datasets.h"
#include "../message.h"
#include "../profile.h"
#include "../ring.h"
#include "../target.h"
#include "../text.h"

static int failures;

static void check(bool holds, int line, const char *what)
{
	if (!holds) {
		fprintf(stderr, "units.c:%d: %s\n", line, what);
		failures++;
	}
}

static void check_text(const char *is, const char *should, int line)
{
	if (strcmp(is, should)) {
		fprintf(stderr, "units.c:%d: is     %s\nunits.c:%d: should %s\n", line, is, line,
			should);
		failures++;
	}
}

#define CHECK(condition) check(condition, __LINE__, #condition)
#define CHECK_TEXT(is, should) check_text(is, should, __LINE__)

/* --- the ring -------------------------------------------------------------------------------- */

static struct ring ring;

static void ring_is_bounded_and_in_order(void)
{
	struct sample sample = {0};

	CHECK(!ring_take(&ring, &sample));
	/* Twice around the end of the counters, too. */
	ring.written = ring.taken = UINT32_MAX - 100;
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < RING_SLOTS; i++) {
			sample.time = i;
			CHECK(ring_put(&ring, &sample));
		}
		sample.time = -1;
		CHECK(!ring_put(&ring, &sample));
		CHECK(ring.dropped == (uint64_t)round + 1);
		for (int i = 0; i < RING_SLOTS; i++)
			CHECK(ring_take(&ring, &sample) && sample.time == i);
		CHECK(!ring_take(&ring, &sample));
	}
}

enum { MANY = 200000 };

static void *write_many(void *unused)
{
	struct sample sample = {0};

	for (int i = 1; i <= MANY; i++) {
		sample.time = i;
		for (int k = 0; k < FIELDS_MAX; k++)
			sample.values[k] = i;
		ring_put(&ring, &sample);
	}
	return unused;
}

/* Whole samples, in order, and each one either taken or counted. */
static void ring_loses_nothing_uncounted(void)
{
	pthread_t writer;
	struct sample sample;
	int64_t last = 0;
	uint64_t taken = 0;
	bool over = false;

	memset(&ring, 0, sizeof(ring));
	pthread_create(&writer, NULL, write_many, NULL);
	while (taken + ring.dropped < MANY || !over) {
		over = taken + ring.dropped >= MANY;
		while (ring_take(&ring, &sample)) {
			taken++;
			CHECK(sample.time > last);
			last = sample.time;
			for (int k = 0; k < FIELDS_MAX; k++)
				CHECK((int64_t)sample.values[k] == sample.time);
		}
	}
	pthread_join(writer, NULL);
	CHECK(taken + ring.dropped == MANY);
}

/* --- texts ----------------------------------------------------------------------------------- */

static void labels_are_escaped(void)
{
	char data[512];
	static const struct {
		const char *value, *path;
	} cases[] = {
		{"node-1.cluster_a", "/l/node-1.cluster_a"},
		{"", "/l@base64/="},
		{"a", "/l/a"},
		{"a/b", "/l@base64/YS9i"},
		{"..", "/l@base64/Li4"},
		{"0+1", "/l@base64/MCsx"},
		{"a b", "/l@base64/YSBi"},
		{"?\r\nX: y", "/l@base64/Pw0KWDogeQ"},
		{"\xff\xfe\xfd", "/l@base64/__79"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct text text = TEXT(data);
		text_label(&text, "l", cases[i].value);
		CHECK_TEXT(data, cases[i].path);
	}
}

static void json_is_escaped(void)
{
	char data[128];
	struct text text = TEXT(data);

	text_json(&text, "a\"\\\n\xe4");
	CHECK_TEXT(data, "\"a\\u0022\\u005c\\u000a\\u00e4\"");
	text_clear(&text);
	text_json_number(&text, NAN);
	text_add(&text, " ");
	text_json_number(&text, -INFINITY);
	text_add(&text, " ");
	text_json_number(&text, 0.1);
	text_add(&text, " ");
	text_json_number(&text, 123456789012345.0);
	CHECK_TEXT(data, "null null 0.1 123456789012345");
	text_clear(&text);
	text_metric_name(&text, "1 Node-Power{x=\"y\"}\n");
	CHECK_TEXT(data, "_1_Node_Power_x__y___");
}

static void a_text_that_is_full_says_so(void)
{
	char data[8];
	struct text text = TEXT(data);

	text_add(&text, "%s", "1234567");
	CHECK(!text.cut && text.length == 7);
	text_add(&text, "8");
	CHECK(text.cut);
	CHECK_TEXT(data, "1234567");
}

/* --- settings -------------------------------------------------------------------------------- */

static void hosts_are_read(void)
{
	static const struct {
		const char *text, *host, *port, *prefix;
	} good[] = {
		{"http://localhost:9091", "localhost", "9091", ""},
		{"http://localhost:9091/", "localhost", "9091", ""},
		{"gateway.example.org:80", "gateway.example.org", "80", ""},
		{"gateway", "gateway", "9091", ""},
		{"http://10.0.0.1/push/gateway//", "10.0.0.1", "9091", "/push/gateway"},
		{"http://[::1]:19091/x", "::1", "19091", "/x"},
		{"[fe80::1]", "fe80::1", "9091", ""},
	};
	static const char *bad[] = {
		"", "http://", "http://:9091", "https://gateway", "ftp://x", "gateway:",
		"gateway:0", "gateway:65536", "gateway:90x", "gateway:-1", "gateway:000009091",
		"[::1", "[::1]x",
		"user:password@gateway:9091", "gate way", "gateway/a?b", "gateway\r\nX:y", "unix:",
		"unix:relative",
		"unix:/012345678901234567890123456789012345678901234567890123456789"
		"01234567890123456789012345678901234567890123456789",
	};
	struct target target;

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		CHECK(target_parse(&target, good[i].text) == NULL);
		CHECK(target.kind == TARGET_GATEWAY);
		CHECK_TEXT(target.host, good[i].host);
		CHECK_TEXT(target.port, good[i].port);
		CHECK_TEXT(target.prefix, good[i].prefix);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		check(target_parse(&target, bad[i]) != NULL, __LINE__, bad[i]);
	CHECK(target_parse(&target, "unix:/run/jobsight/profile.sock") == NULL);
	CHECK(target.kind == TARGET_SOCKET);
	CHECK_TEXT(target.path, "/run/jobsight/profile.sock");
}

static void profiles_are_read(void)
{
	static const char *bad[] = {
		"", ",", "task,", "tasks", "all,task", "none,task", "task;energy",
	};
	uint32_t profile = 0;

	CHECK(profile_parse("all", &profile) && profile == PROFILE_WORD_ALL);
	CHECK(profile_parse("NONE", &profile) && profile == PROFILE_WORD_NONE);
	CHECK(profile_parse("energy,Task,filesystem,network", &profile) && profile == 0x1e);
	CHECK(profile_parse("lustre", &profile) && profile == PROFILE_WORD_FILESYSTEM);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		check(!profile_parse(bad[i], &profile), __LINE__, bad[i]);
}

/* --- datasets and messages ------------------------------------------------------------------- */

static struct datasets datasets;
static const struct step step = {.job = 4294967295u, .name = "batch", .node = "n1"};

union cell {
	uint64_t integer;
	double real;
};

static void samples_become_messages(void)
{
	char data[2048];
	struct text text = TEXT(data);
	struct target target;
	struct sample sample;
	struct losses losses = {.dropped = 3, .failed = 1};
	union cell given[2] = {{.integer = 4096}, {.real = 0.25}};
	static const char *names[] = {"Lustre", "Filesystem"};

	CHECK(target_parse(&target, "http://gateway/x") == NULL);
	struct dataset *task = dataset_begin(&datasets, "7", true);
	dataset_field(task, "RSS", false);
	dataset_field(task, "ReadMB", true);
	CHECK(dataset_end(&datasets) == 0);
	CHECK(dataset_sample(&datasets, 0, given, 100, &sample));
	CHECK(dataset_sample(&datasets, 0, given, 101, &sample));

	message_path(&text, &target, &step, task);
	CHECK_TEXT(data, "/x/metrics/job/4294967295/instance/n1/step/batch/group/task/task/7");
	text_clear(&text);
	message_metrics(&text, task, &sample);
	CHECK_TEXT(data, "RSS 4096\nReadMB 0.25\n"
			 "# TYPE jobsight_profile_read_bytes_total counter\n"
			 "jobsight_profile_read_bytes_total 524288\n"
			 "# TYPE jobsight_profile_sample_timestamp_seconds gauge\n"
			 "jobsight_profile_sample_timestamp_seconds 101\n");
	text_clear(&text);
	message_datagram(&text, &step, task, &sample, &losses);
	CHECK_TEXT(data, "{\"job\":4294967295,\"step\":\"batch\",\"node\":\"n1\",\"dropped\":3,"
			 "\"failed\":1,\"group\":\"task\",\"task\":\"7\",\"time\":101,\"values\":"
			 "{\"RSS\":4096,\"ReadMB\":0.25,"
			 "\"jobsight_profile_read_bytes_total\":524288}}");
	text_clear(&text);
	message_datagram(&text, &step, NULL, NULL, &losses);
	CHECK_TEXT(data, "{\"job\":4294967295,\"step\":\"batch\",\"node\":\"n1\",\"dropped\":3,"
			 "\"failed\":1}");

	/* The same field of the file system is another group, and needs no sum: it is one. */
	for (size_t i = 0; i < 2; i++) {
		struct dataset *node = dataset_begin(&datasets, names[i], false);
		dataset_field(node, "ReadMB", true);
		CHECK(dataset_end(&datasets) == i + 1 && node->fields == 1);
	}
	text_clear(&text);
	message_path(&text, &target, &step, datasets.list[2]);
	CHECK_TEXT(data, "/x/metrics/job/4294967295/instance/n1/step/batch/group/filesystem");
}

static void requests_are_built(void)
{
	char data[512];
	struct text text = TEXT(data);
	struct target target;

	CHECK(target_parse(&target, "[::1]:80") == NULL);
	message_request(&text, &target, "PUT", "/metrics/job/1", "RSS 1\n");
	CHECK_TEXT(data, "PUT /metrics/job/1 HTTP/1.1\r\nHost: [::1]:80\r\n"
			 "User-Agent: jobsight-slurm-plugin\r\nContent-Type: text/plain\r\n"
			 "Content-Length: 6\r\n\r\nRSS 1\n");
}

static void what_is_too_much_is_refused_or_counted(void)
{
	struct sample sample;
	union cell given[FIELDS_MAX + 5] = {{.integer = 1}};

	datasets.count = 0;
	for (int i = 0; i < DATASETS_MAX; i++) {
		struct dataset *dataset = dataset_begin(&datasets, "Energy", false);
		for (int k = 0; k < FIELDS_MAX + 5; k++)
			dataset_field(dataset, "a_name_that_is_longer_than_any_of_slurms_own_names",
				      false);
		CHECK(dataset->left_out == 5);
		CHECK(dataset_end(&datasets) == (uint32_t)i);
	}
	CHECK(dataset_begin(&datasets, "Energy", false) == NULL);
	CHECK(dataset_sample(&datasets, DATASETS_MAX - 1, given, 0, &sample));
	CHECK(!dataset_sample(&datasets, DATASETS_MAX, given, 0, &sample));
	CHECK(!dataset_sample(&datasets, -1, given, 0, &sample));
}

int main(void)
{
	ring_is_bounded_and_in_order();
	ring_loses_nothing_uncounted();
	labels_are_escaped();
	json_is_escaped();
	a_text_that_is_full_says_so();
	hosts_are_read();
	profiles_are_read();
	samples_become_messages();
	requests_are_built();
	what_is_too_much_is_refused_or_counted();
	return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
