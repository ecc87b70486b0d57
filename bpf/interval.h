/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* One interval off the CPU, or in a page fault, as its end has measured it: struct interval. */
#pragma once

#include "cpu_state.h"
#include "samples.h"
#include "thread_state.h"

ALWAYS_INLINE u64 off_cpu_ns(struct interval *interval) { return interval->end - interval->start; }

/* Counts `ns` in `state` with the interval's stacks. */
GLOBAL int count_interval(struct thread_state *t, struct interval *interval, u32 state, u32 kind, s64 ns) {
    struct sample_key key = {};

    if (!t || !interval || ns <= 0)
        return 0;
    key.key = t->key;
    key.second = t->second;
    key.user_stack = interval->user_stack;
    key.kernel_stack = interval->kernel_stack;
    key.what = (u8)kind;
    if (interval->woken && kind >= SAMPLE_BLOCKED) {
        key.woken = 1;
        key.waker_tid = t->waker_tid;
        key.waker_user_stack = t->waker_user_stack;
        key.waker_kernel_stack = t->waker_kernel_stack;
    }
    count_sample(&key, ns);
    if (state < SLEEPS + 2)
        t->carried[state] = 0;
    return 0;
}
