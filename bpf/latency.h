/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Histograms of how long intervals of a thread took. */
#pragma once

#include "include/histogram.h"
#include "losses.h"
#include "thread_state.h"

/* Thread, second, metric and histogram bucket → counts. Same lifetime as `samples`. Full:
 * LOSS_LATENCY_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_LATENCY);
    __type(key, struct latency_key);
    __type(value, struct latency_value);
} latency SEC(".maps");

GLOBAL int count_latency(struct thread_state *t, u32 metric, u64 ns) {
    struct latency_key key = {};
    struct latency_value *cell;

    if (!t)
        return 0;
    key.key = t->key;
    key.second = t->second;
    key.metric = (u16)metric;
    key.bucket = (u16)bucket_from_ns(ns);
    cell = bpf_map_lookup_elem(&latency, &key);
    /* One writer: the intervals of a thread end on the CPU on which it continues. */
    if (likely(cell)) {
        cell->count++;
        cell->total += ns;
        if (ns > cell->max)
            cell->max = ns;
        return 0;
    }
    struct latency_value first = {.count = 1, .total = ns, .max = ns};
    if (bpf_map_update_elem(&latency, &key, &first, BPF_ANY))
        lose(LOSS_LATENCY_FULL);
    return 0;
}
