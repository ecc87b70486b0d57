/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The threads that ran on a CPU while another one waited for it. */
#pragma once

#include "cpu_state.h"
#include "include/records.h"
#include "thread_state.h"

/* The recorder's process, as the kernel numbers it; 0 before the first iterator has run. */
volatile u32 recorder_tgid = 0;

/* Notes that the recorder had the CPU until now. */
ALWAYS_INLINE void end_own_run(struct cpu_state *cpu, u64 now) {
    struct run_entry *last = &cpu->run[(cpu->run_count - 1) & (RUN_RING - 1)];
    struct own_run *own;

    if (likely(last->tgid != recorder_tgid) || !cpu->run_count)
        return;
    own = &cpu->own[cpu->own_count & (OWN_RING - 1)];
    own->from = last->from;
    own->to = now;
    cpu->own_to = now;
    cpu->own_count++;
}

GLOBAL u64 overlap(u64 from, u64 to, u64 other_from, u64 other_to) {
    from = from > other_from ? from : other_from;
    to = to < other_to ? to : other_to;
    return to > from ? to - from : 0;
}

/* How much of the time from `from` to `to` a CPU was the recorder's. */
GLOBAL u64 own_time(struct cpu_state *cpu, u64 from, u64 to) {
    struct run_entry *last;
    u64 sum = 0;
    u32 i;

    if (!cpu)
        return 0;
    last = &cpu->run[(cpu->run_count - 1) & (RUN_RING - 1)];
    /* Another CPU can still be. */
    if (last->tgid == recorder_tgid && cpu->run_count)
        sum = overlap(from, to, last->from, to);
    for (i = 1; i <= OWN_RING; i++) {
        struct own_run *own = &cpu->own[(cpu->own_count - i) & (OWN_RING - 1)];

        if (own->to <= from)
            break;
        sum += overlap(from, to, own->from, own->to);
    }
    return sum;
}

/* A thread has waited for this CPU until `to`, since `from` or since it was moved from another one. */
GLOBAL int count_behind(struct cpu_state *cpu, struct thread_state *t, u64 from, u64 to) {
    u32 zero = 0;
    struct cpu_state *other;

    if (!cpu || !t)
        return 0;
    if (t->moved_ns > from) {
        other = bpf_map_lookup_percpu_elem(&cpus, &zero, t->moved_from);
        if (other)
            cpu->behind_ns += own_time(other, from, t->moved_ns);
        from = t->moved_ns;
    }
    cpu->behind_ns += own_time(cpu, from, to);
    return 0;
}

ALWAYS_INLINE void record_run(struct cpu_state *cpu, struct task_struct *next, u64 now) {
    struct run_entry *entry = &cpu->run[cpu->run_count & (RUN_RING - 1)];

    end_own_run(cpu, now);
    entry->from = now;
    entry->task = (u64)next;
    entry->tid = next->pid;
    entry->tgid = next->tgid;
    cpu->run_count++;
}

struct ran_walk {
    struct cpu_state *cpu;
    struct stall_record *stall;
    u64 newest;
    u64 from;
    u64 to;
};

/* The slot of a thread among those that ran; MAX_RAN where all are taken by others. */
GLOBAL u32 slot_of_ran(struct stall_record *stall, u32 tid) {
    u32 i;

    if (!stall)
        return MAX_RAN;
    for (i = 0; i < MAX_RAN; i++) {
        if (i >= stall->rans || stall->ran[i].thread.tid == tid)
            break;
    }
    return i;
}

/* One step back through the switches of a CPU: adds the part inside the waiting time. */
static long ran_step(u32 index, struct ran_walk *walk) {
    u64 position = walk->newest - index;
    struct run_entry *entry = &walk->cpu->run[position & (RUN_RING - 1)];
    struct stall_record *stall = walk->stall;
    u64 from = entry->from;
    u32 slot = MAX_RAN;

    if (from >= walk->to)
        return 0;
    if (from < walk->from)
        from = walk->from;
    if (entry->tid)
        slot = slot_of_ran(stall, entry->tid);
    if (slot < MAX_RAN) {
        struct ran *ran = &stall->ran[slot];

        if (slot >= stall->rans) {
            struct task_struct *task = (struct task_struct *)entry->task;

            ran->ns = 0;
            ran->thread.tid = entry->tid;
            ran->thread.tgid = entry->tgid;
            __builtin_memset(ran->thread.comm, 0, COMM_LEN);
            /* The task may be gone: its name counts only while its memory still holds the same thread. */
            if ((u32)BPF_CORE_READ(task, pid) == entry->tid)
                bpf_core_read(ran->thread.comm, COMM_LEN, &task->comm);
            stall->rans = slot + 1;
        }
        ran->ns += walk->to - from;
    }
    walk->to = from;
    return entry->from <= walk->from;
}

GLOBAL int collect_ran(struct stall_record *stall, u32 cpu, u64 from, u64 to) {
    u32 zero = 0;
    struct ran_walk walk = {.stall = stall, .from = from, .to = to};
    u64 count;

    if (!stall || (s64)(to - from) <= 0)
        return 0;
    walk.cpu = bpf_map_lookup_percpu_elem(&cpus, &zero, cpu);
    if (!walk.cpu)
        return 0;
    count = walk.cpu->run_count;
    if (!count)
        return 0;
    walk.newest = count - 1;
    bpf_loop(count < RUN_RING ? (u32)count : RUN_RING, ran_step, &walk, 0);
    return 0;
}
