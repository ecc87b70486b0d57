/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The weight of each distinct pair of stacks, by thread and second. */
#pragma once

#include "losses.h"

/* Thread, second, kind and stacks → weight. User space deletes the rows of past seconds. No program writes
 * them any more: the bucket of a thread is closed before its next event is counted. Full:
 * LOSS_SAMPLES_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_SAMPLES);
    __type(key, struct sample_key);
    __type(value, struct sample_value);
} samples SEC(".maps");

ALWAYS_INLINE void count_sample(struct sample_key *key, u64 weight) {
    struct sample_value *row = bpf_map_lookup_elem(&samples, key);

    if (row) {
        __sync_fetch_and_add(&row->weight, weight);
        __sync_fetch_and_add(&row->count, 1);
        return;
    }
    struct sample_value first = {.weight = weight, .count = 1};
    if (!bpf_map_update_elem(&samples, key, &first, BPF_NOEXIST))
        return;
    row = bpf_map_lookup_elem(&samples, key);
    if (!row) {
        lose(LOSS_SAMPLES_FULL);
        return;
    }
    __sync_fetch_and_add(&row->weight, weight);
    __sync_fetch_and_add(&row->count, 1);
}
