/* What the iterators over all tasks share. */
#pragma once

#include "reason.h"
#include "stack_scratch.h"
#include "thread_state.h"

/* The activity of a thread without an event since arming, from its state now. */
ALWAYS_INLINE void guess_activity(struct bpf_iter__task *ctx, struct task_struct *task,
                                  struct thread_state *t) {
    u32 state = task->__state;

    t->activity = ACTIVITY_BLOCKED;
    if (task->on_cpu)
        t->activity = ACTIVITY_RUNNING;
    else if (state == TASK_RUNNING)
        t->activity = ACTIVITY_PREEMPTED;
    else
        classify(ctx, NULL, t, task, state);
}

/* Scratch memory of the iterators: one reader runs one iterator at a time. */
struct iter_scratch {
    struct thread_record thread;
    struct thread_state guess;
    struct stall_record stall;
    struct look_record look;
    struct stack_scratch stack;
};

/* 0 → the scratch memory. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct iter_scratch);
} iter_scratch SEC(".maps");

ALWAYS_INLINE struct iter_scratch *get_iter_scratch(void) {
    u32 zero = 0;

    return bpf_map_lookup_elem(&iter_scratch, &zero);
}
