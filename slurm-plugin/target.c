/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "target.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_PORT "9091"

static bool copy(char *to, size_t size, const char *from, size_t length)
{
	if (length >= size)
		return false;
	memcpy(to, from, length);
	to[length] = 0;
	return true;
}

static const char *parse_port(struct target *target, const char *text, size_t length)
{
	char *end;

	if (!copy(target->port, sizeof(target->port), text, length))
		return "the port is not a number from 1 to 65535";
	long number = strtol(target->port, &end, 10);
	if (strspn(target->port, "0123456789") != length || number < 1 || number > 65535)
		return "the port is not a number from 1 to 65535";
	return NULL;
}

static const char *parse_socket(struct target *target, const char *path)
{
	target->kind = TARGET_SOCKET;
	if (*path != '/')
		return "unix: wants a path that begins with /";
	if (!copy(target->path, sizeof(target->path), path, strlen(path)))
		return "the path of a unix socket has at most 107 bytes";
	return NULL;
}

static const char *parse_gateway(struct target *target, const char *text)
{
	const char *slash = text + strcspn(text, "/");
	const char *end_of_host = text + strcspn(text, ":/");
	const char *host = text;
	size_t prefix = strlen(slash);

	target->kind = TARGET_GATEWAY;
	if (*text == '[') { /* an address of IPv6 */
		host = text + 1;
		end_of_host = text + strcspn(text, "]/");
		if (*end_of_host != ']')
			return "the address in brackets does not end";
	}
	if (strpbrk(text, " \t\r\n@?#"))
		return "a Pushgateway's address holds no blank, password or query";
	if (end_of_host == host)
		return "the host is missing";
	if (!copy(target->host, sizeof(target->host), host, (size_t)(end_of_host - host)))
		return "the host's name is longer than 255 bytes";
	while (prefix && slash[prefix - 1] == '/')
		prefix--;
	if (!copy(target->prefix, sizeof(target->prefix), slash, prefix))
		return "the path is longer than 255 bytes";
	if (*end_of_host == ']')
		end_of_host++;
	if (end_of_host == slash) {
		snprintf(target->port, sizeof(target->port), "%s", DEFAULT_PORT);
		return NULL;
	}
	if (*end_of_host != ':')
		return "behind an address in brackets only :PORT can follow";
	return parse_port(target, end_of_host + 1, (size_t)(slash - end_of_host - 1));
}

const char *target_parse(struct target *target, const char *text)
{
	memset(target, 0, sizeof(*target));
	if (!strncmp(text, "unix:", 5))
		return parse_socket(target, text + 5);
	if (!strncmp(text, "http://", 7))
		return parse_gateway(target, text + 7);
	if (strstr(text, "://"))
		return "only http:// and unix: are known (for TLS, send to the agent by unix:)";
	return parse_gateway(target, text);
}
