/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The kernel functions that uninterruptible sleepers sleep in, and the reason that each of them means. */
#pragma once

#include "stack_scratch.h"

/* Kernel functions whose sleepers wait for something known, by address; none overlaps another. Written after
 * loading: reading the kernel's symbols takes as long as loading, and runs in parallel with it. */
volatile struct text_range sites[MAX_SITES] = {};
volatile u32 site_count = 0;

/* As many halvings leave one of MAX_SITES. */
#define SITE_STEPS 8

struct site_walk {
    struct stack_scratch *scratch;
    u32 reason;
};

/* The reason of the known function that holds this address, or CLASS_NONE. */
GLOBAL u32 reason_of_site(u64 address) {
    u32 at = 0, left = site_count, i;

    for (i = 0; i < SITE_STEPS && left > 1; i++) {
        u32 half = left >> 1;

        if (sites[(at + half) & (MAX_SITES - 1)].from <= address)
            at += half;
        left -= half;
    }
    at &= MAX_SITES - 1;
    return left && address - sites[at].from < sites[at].to - sites[at].from ? sites[at].reason : CLASS_NONE;
}

static long site_step(u32 index, struct site_walk *walk) {
    if (index >= SITE_FRAMES)
        return 1;
    walk->reason = reason_of_site(walk->scratch->stack.address[index]);
    return walk->reason != CLASS_NONE;
}

/* The reason of the innermost known sleeping function on the current task's kernel stack, or CLASS_NONE.
 * It costs a stack walk, so it is used for uninterruptible sleeps only, which are few. */
ALWAYS_INLINE u8 site_reason(void *ctx, struct cpu_state *cpu) {
    struct site_walk walk = {.reason = CLASS_NONE};
    long bytes;

    walk.scratch = enter_scratch(cpu);
    if (!walk.scratch)
        return CLASS_NONE;
    bytes = bpf_get_stack(ctx, walk.scratch->stack.address, SITE_FRAMES * 8, 0);
    if (bytes > 0)
        bpf_loop((u32)bytes / 8, site_step, &walk, 0);
    leave_scratch(cpu);
    return walk.reason;
}
