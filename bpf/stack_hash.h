/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The hash that identifies a stack. */
#pragma once

#include "bpf_api.h"

#define HASH_STEP 0x9e3779b97f4a7c15ULL

ALWAYS_INLINE u64 mix(u64 hash, u64 value) {
    hash = (hash ^ value) * HASH_STEP;
    return hash ^ (hash >> 29);
}
