/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* One CPU: the switch under way, its interrupts, the threads that ran on it, and the cost of the probes
 * there.
 *
 * One run of the probes in TIMED_EVERY is timed, since reading the clock costs as much as a short run. */
#pragma once

#include "bpf_api.h"
#include "include/limits.h"

struct interrupt_frame {
    u64 entered;
    u64 inner; /* ns of interrupts nested in this one */
    u32 number;
    u32 kind;
};

struct run_entry {
    u64 from;
    u64 task; /* address, to read the name while it is still the same task */
    u32 tid;
    u32 tgid;
};

/* A time during which the CPU was the recorder's. */
struct own_run {
    u64 from;
    u64 to;
};

/* One interval off the CPU, or in a page fault, as its end has measured it. */
struct interval {
    u64 start;
    u64 end;
    u64 runnable;
    u64 user_stack;
    u64 kernel_stack;
    u32 cpu;
    bool preempted; /* or new: it did not block */
    bool is_new;    /* created, and waited for its first CPU */
    bool woken;
    bool idle; /* it waited at an idle place */
    bool emitted;
};

struct cpu_state {
    u64 switch_ns; /* time of the switch under way; 0: none */
    u64 switch_to; /* its incoming task */
    u64 runs;      /* of the probes on this CPU */
    u64 next_timed;
    u64 timed_ns; /* one run in TIMED_EVERY, times TIMED_EVERY */
    u32 scratch_level;
    u32 interrupt_depth;
    u64 context;             /* address of the arguments of the tracepoint under way */
    u64 interrupt_stack_end; /* context.h; 0: not known yet */
    u64 noise_from;          /* on a guarded CPU: the current task is counted up to here */
    u64 noise_started;       /* and was switched in here */
    u64 run_count;           /* threads switched in here; the newest is at (run_count - 1) % RUN_RING */
    struct interrupt_frame interrupt[IRQ_DEPTH];
    struct run_entry run[RUN_RING];
    u64 own_to;    /* end of the recorder's last time here */
    u64 behind_ns; /* that recorded threads waited here while a thread of the recorder ran */
    u64 own_count; /* the newest is at (own_count - 1) % OWN_RING */
    struct own_run own[OWN_RING];
    struct interval interval; /* that ends with the switch under way: what the verifier loads from here is any
                                 number, so that paths meet again */
};

/* 0 → this CPU's state. Other CPUs read `run`. A torn entry can, at worst, put a wrong name into
 * `ran_instead`. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct cpu_state);
} cpus SEC(".maps");

ALWAYS_INLINE struct cpu_state *this_cpu(void) {
    u32 zero = 0;

    return bpf_map_lookup_elem(&cpus, &zero);
}

ALWAYS_INLINE u64 start_run(struct cpu_state *cpu) {
    if (likely(cpu->runs++ < cpu->next_timed))
        return 0;
    cpu->next_timed = cpu->runs + TIMED_EVERY - 1;
    return bpf_ktime_get_ns();
}

ALWAYS_INLINE void end_run(struct cpu_state *cpu, u64 started) {
    if (unlikely(started))
        cpu->timed_ns += (bpf_ktime_get_ns() - started) * TIMED_EVERY;
}
