/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Not isalnum(): it depends on the locale of the daemon. */
static bool letter_or_digit(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

void text_clear(struct text *text)
{
	text->length = 0;
	text->data[0] = 0;
	text->cut = false;
}

void text_add(struct text *text, const char *format, ...)
{
	va_list arguments;
	size_t room = text->size - text->length;

	va_start(arguments, format);
	int wanted = vsnprintf(text->data + text->length, room, format, arguments);
	va_end(arguments);
	if (wanted < 0 || (size_t)wanted >= room) {
		text->data[text->length] = 0;
		text->cut = true;
		return;
	}
	text->length += (size_t)wanted;
}

void text_json(struct text *text, const char *value)
{
	text_add(text, "\"");
	for (; *value; value++) {
		unsigned char c = (unsigned char)*value;

		/* Bytes that are not ASCII are taken for Latin-1: valid in any case. */
		if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\')
			text_add(text, "\\u%04x", c);
		else
			text_add(text, "%c", c);
	}
	text_add(text, "\"");
}

void text_json_number(struct text *text, double value)
{
	if (isfinite(value))
		text_add(text, "%.15g", value);
	else
		text_add(text, "null");
}

static bool fits_a_path(const char *value)
{
	/* A lone `.` or `..` would be taken for a step in the path. */
	if (!*value || *value == '.')
		return false;
	for (; *value; value++)
		if (!letter_or_digit(*value) && !strchr("-_.", *value))
			return false;
	return true;
}

static void add_base64(struct text *text, const char *value)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	size_t left = strlen(value);

	/* The gateway wants an empty value as one sign of padding. */
	if (!left)
		text_add(text, "=");
	while (left) {
		size_t count = left < 3 ? left : 3;
		unsigned bits = 0;

		for (size_t i = 0; i < 3; i++)
			bits = bits << 8 | (i < count ? (unsigned char)value[i] : 0u);
		for (size_t i = 0; i <= count; i++)
			text_add(text, "%c", digits[bits >> (18 - 6 * i) & 63]);
		value += count;
		left -= count;
	}
}

void text_label(struct text *text, const char *name, const char *value)
{
	if (fits_a_path(value)) {
		text_add(text, "/%s/%s", name, value);
		return;
	}
	text_add(text, "/%s@base64/", name);
	add_base64(text, value);
}

void text_metric_name(struct text *text, const char *name)
{
	if (!*name || (*name >= '0' && *name <= '9'))
		text_add(text, "_");
	for (; *name; name++)
		text_add(text, "%c", letter_or_digit(*name) ? *name : '_');
}
