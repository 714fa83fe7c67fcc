/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One connection to a gateway, kept open, where every wait has an end. */
#ifndef JOBSIGHT_HTTP_H
#define JOBSIGHT_HTTP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "target.h"

enum { CONNECT_MS = 1000 };

struct http {
	int socket; /* -1: not connected */
	struct sockaddr_storage address;
	socklen_t address_length; /* 0: the name has not been resolved */
	const char *reason;	  /* why the last exchange failed */
	char text[64];		  /* where the reason may stand */
};

/* Milliseconds of a clock that nobody sets. */
int64_t now_ms(void);

/* Send a request and read the answer before the deadline: its status, or -1 with a reason. A name
 * is resolved when it is needed for the first time and after a failed connection; that alone can
 * take longer, as long as the resolver of this machine likes. */
int http_exchange(struct http *http, const struct target *target, const char *request,
		  size_t length, int64_t deadline);

void http_close(struct http *http);

#endif
