/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "http.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void http_close(struct http *http)
{
	if (http->socket >= 0)
		close(http->socket);
	http->socket = -1;
}

static int fail(struct http *http, const char *reason)
{
	http_close(http);
	http->reason = reason;
	return -1;
}

/* Wait until the socket can be read or written; false at the deadline. */
static bool ready(int descriptor, short events, int64_t deadline)
{
	struct pollfd wanted = {.fd = descriptor, .events = events};

	for (;;) {
		int64_t left = deadline - now_ms();
		if (left <= 0)
			return false;
		int found = poll(&wanted, 1, left < 60000 ? (int)left : 60000);
		if (found > 0)
			return true;
		if (found < 0 && errno != EINTR)
			return false;
	}
}

/* Connect to one address: 0, or why it did not work. */
static int connect_to(struct http *http, const struct sockaddr *address, socklen_t length,
		      int64_t deadline)
{
	int one = 1, error = 0;
	socklen_t size = sizeof(error);
	int64_t patience = now_ms() + CONNECT_MS;

	http->socket = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (http->socket < 0)
		return errno;
	setsockopt(http->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(http->socket, address, length)) {
		if (errno != EINPROGRESS)
			error = errno;
		else if (!ready(http->socket, POLLOUT, patience < deadline ? patience : deadline))
			error = ETIMEDOUT;
		else if (getsockopt(http->socket, SOL_SOCKET, SO_ERROR, &error, &size))
			error = errno;
	}
	if (error)
		http_close(http);
	return error;
}

/* A name can stand for several addresses, of which a gateway may listen at one only. */
static int connect_by_name(struct http *http, const struct target *target, int64_t deadline)
{
	struct addrinfo *found, hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	int error = EHOSTUNREACH;

	/* An address needs no resolver, and none of the libraries that one would load. */
	hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
	if (getaddrinfo(target->host, target->port, &hints, &found)) {
		hints.ai_flags = AI_NUMERICSERV;
		if (getaddrinfo(target->host, target->port, &hints, &found))
			return fail(http, "its name cannot be resolved");
	}
	for (struct addrinfo *one = found; one && error; one = one->ai_next) {
		error = connect_to(http, one->ai_addr, one->ai_addrlen, deadline);
		if (!error) {
			memcpy(&http->address, one->ai_addr, one->ai_addrlen);
			http->address_length = one->ai_addrlen;
		}
	}
	freeaddrinfo(found);
	return error ? fail(http, strerror_r(error, http->text, sizeof(http->text))) : 0;
}

static int open_connection(struct http *http, const struct target *target, int64_t deadline)
{
	if (!http->address_length)
		return connect_by_name(http, target, deadline);
	const struct sockaddr *address = (const struct sockaddr *)&http->address;
	int error = connect_to(http, address, http->address_length, deadline);
	if (!error)
		return 0;
	http->address_length = 0; /* it may have moved: resolve the name again next time */
	return fail(http, strerror_r(error, http->text, sizeof(http->text)));
}

static bool send_all(struct http *http, const char *data, size_t length, int64_t deadline)
{
	while (length) {
		ssize_t sent = send(http->socket, data, length, MSG_NOSIGNAL);
		if (sent > 0) {
			data += sent;
			length -= (size_t)sent;
		} else if (errno == EAGAIN) {
			if (!ready(http->socket, POLLOUT, deadline))
				return false;
		} else if (errno != EINTR) {
			return false;
		}
	}
	return true;
}

/* More bytes behind those that are there; 0 at the end of the connection, -1 when it failed. */
static ssize_t receive(struct http *http, char *data, size_t size, int64_t deadline)
{
	for (;;) {
		ssize_t got = recv(http->socket, data, size, 0);
		if (got >= 0)
			return got;
		if (errno == EAGAIN) {
			if (!ready(http->socket, POLLIN, deadline))
				return -1;
		} else if (errno != EINTR) {
			return -1;
		}
	}
}

/* The value of a header, or NULL; the head ends with a zero. */
static const char *header(const char *head, const char *name)
{
	size_t length = strlen(name);

	for (const char *line = head; (line = strstr(line, "\r\n")); ) {
		line += 2;
		if (!strncasecmp(line, name, length) && line[length] == ':')
			return line + length + 1 + strspn(line + length + 1, " \t");
	}
	return NULL;
}

/* The status of an answer, exactly three digits after "HTTP/1.N "; -1 for anything else. */
static int status_of(const char *answer)
{
	bool valid = !strncmp(answer, "HTTP/1.", 7) && answer[7] && answer[8] == ' ' &&
		     answer[9] != '0' && strspn(answer + 9, "0123456789") == 3 &&
		     strchr(" \r", answer[12]);
	return valid ? atoi(answer + 9) : -1;
}

/* Read an answer. The connection stays open only when the answer's end was certain and is here. */
static int read_answer(struct http *http, int64_t deadline)
{
	char data[4096];
	size_t length = 0;
	char *end = NULL;

	while (!end) {
		if (length == sizeof(data) - 1)
			return fail(http, "its answer is not one of a Pushgateway");
		ssize_t got = receive(http, data + length, sizeof(data) - 1 - length, deadline);
		if (got <= 0)
			return fail(http, got ? "no answer in time" : "it hung up");
		length += (size_t)got;
		data[length] = 0;
		end = strstr(data, "\r\n\r\n");
	}
	int status = status_of(data);
	if (status < 0)
		return fail(http, "its answer is not one of a Pushgateway");
	size_t here = length - (size_t)(end + 4 - data);
	end[2] = 0;
	const char *size = header(data, "Content-Length"), *word = header(data, "Connection");
	unsigned long body = size ? strtoul(size, NULL, 10) : 1;
	if (!size || here != body || (word && !strncasecmp(word, "close", 5)))
		http_close(http);
	return status;
}

int http_exchange(struct http *http, const struct target *target, const char *request,
		  size_t length, int64_t deadline)
{
	/* A gateway may have closed a connection that was idle: that is no failure yet. */
	bool reused = http->socket >= 0;

	if (reused) {
		int status = send_all(http, request, length, deadline)
				     ? read_answer(http, deadline)
				     : fail(http, "the request could not be sent in time");
		if (status >= 0 || now_ms() >= deadline)
			return status;
	}
	if (open_connection(http, target, deadline))
		return -1;
	if (!send_all(http, request, length, deadline))
		return fail(http, "the request could not be sent in time");
	return read_answer(http, deadline);
}
