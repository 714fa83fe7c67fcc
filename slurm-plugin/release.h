/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Slurm's headers, of the releases that this plugin was built against. */
#ifndef JOBSIGHT_RELEASE_H
#define JOBSIGHT_RELEASE_H

#include "config.h"
#include "slurm/slurm_version.h"

#define JOBSIGHT_SLURM (SLURM_VERSION_NUMBER >> 8)
#define SLURM_22_05 (SLURM_VERSION_NUM(22, 5, 0) >> 8)
#define SLURM_24_11 (SLURM_VERSION_NUM(24, 11, 0) >> 8)

#if JOBSIGHT_SLURM == SLURM_22_05
#include "src/common/slurm_xlator.h"

#include "src/common/read_config.h"
#include "src/common/slurm_acct_gather_profile.h"
#include "src/common/xstring.h"
typedef List settings_list;
#elif JOBSIGHT_SLURM == SLURM_24_11
#include "src/common/slurm_xlator.h"

#include "src/common/read_config.h"
#include "src/common/xstring.h"
#include "src/interfaces/acct_gather_profile.h"
typedef list_t *settings_list;
#else
#error "this release of Slurm is not known to the plugin: see docs/slurm-plugin.md"
#endif

#endif
