/* The threads that ran on a CPU while another one waited for it. */
#pragma once

#include "cpu_state.h"
#include "include/records.h"

ALWAYS_INLINE void record_run(struct cpu_state *cpu, struct task_struct *next, u64 now) {
    struct run_entry *entry = &cpu->run[cpu->run_count & (RUN_RING - 1)];

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

/* One step back through the switches of a CPU: adds the part inside the waiting time. */
static long ran_step(u32 index, struct ran_walk *walk) {
    u64 position = walk->newest - index;
    struct run_entry *entry = &walk->cpu->run[position & (RUN_RING - 1)];
    struct stall_record *stall = walk->stall;
    u64 from = entry->from;
    u32 i;

    if (from >= walk->to)
        return 0;
    if (from < walk->from)
        from = walk->from;
    if (entry->tid) {
        for (i = 0; i < MAX_RAN; i++) {
            if (i >= stall->rans) {
                struct task_struct *task = (struct task_struct *)entry->task;

                stall->ran[i].ns = 0;
                stall->ran[i].thread.tid = entry->tid;
                stall->ran[i].thread.tgid = entry->tgid;
                __builtin_memset(stall->ran[i].thread.comm, 0, COMM_LEN);
                /* The task may be gone: its name counts only while its memory still holds the same thread. */
                if ((u32)BPF_CORE_READ(task, pid) == entry->tid)
                    bpf_core_read(stall->ran[i].thread.comm, COMM_LEN, &task->comm);
                stall->rans = i + 1;
            }
            if (stall->ran[i].thread.tid == entry->tid) {
                stall->ran[i].ns += walk->to - from;
                break;
            }
        }
    }
    walk->to = from;
    return entry->from <= walk->from;
}

ALWAYS_INLINE void collect_ran(struct stall_record *stall, u32 cpu, u64 from, u64 to) {
    u32 zero = 0;
    struct ran_walk walk = {.stall = stall, .from = from, .to = to};
    u64 count;

    if ((s64)(to - from) <= 0)
        return;
    walk.cpu = bpf_map_lookup_percpu_elem(&cpus, &zero, cpu);
    if (!walk.cpu)
        return;
    count = walk.cpu->run_count;
    if (!count)
        return;
    walk.newest = count - 1;
    bpf_loop(count < RUN_RING ? (u32)count : RUN_RING, ran_step, &walk, 0);
}
