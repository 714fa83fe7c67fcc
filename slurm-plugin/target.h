/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Where the samples go: what ProfilePrometheusHost says. */
#ifndef JOBSIGHT_TARGET_H
#define JOBSIGHT_TARGET_H

#include <stddef.h>

struct target {
	enum { TARGET_GATEWAY, TARGET_SOCKET } kind;
	char host[256];	  /* gateway: a name or an address */
	char port[6];
	char prefix[256]; /* what stands before /metrics in the gateway's paths */
	char path[108];	  /* socket: the agent's */
};

/* Read `unix:/path` or `[http://]host[:port][/prefix]`; NULL, or what is wrong with it. */
const char *target_parse(struct target *target, const char *text);

#endif
