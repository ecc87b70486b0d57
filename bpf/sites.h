/* The kernel functions that uninterruptible sleepers sleep in, and the reason that each of them means. */
#pragma once

#include "stack_scratch.h"

/* Kernel functions whose sleepers wait for something known. Written after loading: reading the kernel's
 * symbols takes as long as loading, and runs in parallel with it. */
volatile struct text_range sites[MAX_SITES] = {};
volatile u32 site_count = 0;

struct site_walk {
    struct stack_scratch *scratch;
    u32 reason;
};

static long site_step(u32 index, struct site_walk *walk) {
    u64 address;
    u32 i;

    if (index >= SITE_FRAMES)
        return 1;
    address = walk->scratch->stack.address[index];
    for (i = 0; i < MAX_SITES; i++) {
        if (i >= site_count)
            break;
        if (address >= sites[i].from && address < sites[i].to) {
            walk->reason = sites[i].reason;
            return 1;
        }
    }
    return 0;
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
