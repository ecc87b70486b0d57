/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Counts of everything that the kernel side could not keep, by reason. */
#pragma once

#include "bpf_api.h"
#include "include/records.h"

struct loss_counts {
    u64 by_reason[LOSSES]; /* enum loss */
};

/* 0 → the losses of this CPU. User space reads it every second, so it is one value and not one a reason. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct loss_counts);
} losses SEC(".maps");

ALWAYS_INLINE void lose(u32 loss) {
    u32 zero = 0;
    struct loss_counts *counts = bpf_map_lookup_elem(&losses, &zero);

    if (counts && loss < LOSSES)
        counts->by_reason[loss]++;
}
