/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "profile.h"

#include <string.h>
#include <strings.h>

static const struct {
	const char *word;
	uint32_t bits;
} words[] = {
	{"all", PROFILE_WORD_ALL},
	{"none", PROFILE_WORD_NONE},
	{"energy", PROFILE_WORD_ENERGY},
	{"task", PROFILE_WORD_TASK},
	{"filesystem", PROFILE_WORD_FILESYSTEM},
	{"lustre", PROFILE_WORD_FILESYSTEM}, /* as Slurm 22.05 calls it */
	{"network", PROFILE_WORD_NETWORK},
};

static uint32_t bits_of(const char *word, size_t length)
{
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (strlen(words[i].word) == length && !strncasecmp(words[i].word, word, length))
			return words[i].bits;
	return 0;
}

bool profile_parse(const char *text, uint32_t *profile)
{
	uint32_t found = 0;

	for (const char *word = text;;) {
		size_t length = strcspn(word, ",");
		uint32_t bits = bits_of(word, length);
		bool alone = word == text && !word[length];

		if (!bits || (!alone && (bits == PROFILE_WORD_ALL || bits == PROFILE_WORD_NONE)))
			return false;
		found |= bits;
		if (!word[length])
			break;
		word += length + 1;
	}
	*profile = found;
	return true;
}
