/* One interval off the CPU, as switch-in has measured it. */
#pragma once

#include "samples.h"
#include "thread_state.h"

struct interval {
    u64 start;
    u64 end;
    u64 runnable;
    u64 user_stack;
    u64 kernel_stack;
    u32 cpu;
    bool preempted;
    bool woken;
};

ALWAYS_INLINE u64 off_cpu_ns(struct interval *interval) { return interval->end - interval->start; }

ALWAYS_INLINE void count_interval(struct thread_state *t, struct interval *interval, u32 state, u32 kind,
                                  u64 ns) {
    struct sample_key key = {
        .key = t->key,
        .second = t->second,
        .user_stack = interval->user_stack,
        .kernel_stack = interval->kernel_stack,
        .what = (u8)kind,
    };

    if (!ns)
        return;
    if (interval->woken && kind >= SAMPLE_BLOCKED) {
        key.woken = 1;
        key.waker_tid = t->waker_tid;
        key.waker_user_stack = t->waker_user_stack;
        key.waker_kernel_stack = t->waker_kernel_stack;
    }
    count_sample(&key, ns);
    if (state < SLEEPS + 2)
        t->carried[state] = 0;
}
