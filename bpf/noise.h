/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The noise on guarded CPUs: the tasks that run there, and the interrupts that other CPUs send there.
 *
 * Interrupts on these CPUs are counted like all others (irq.bpf.c). Without a guarded CPU nothing of this
 * is loaded: `guards` is fixed before loading, and the verifier removes the code that it excludes. */
#pragma once

#include "context.h"
#include "losses.h"
#include "settings.h"

const volatile bool guards = false;
const volatile u64 guard_mask[MAX_CPUS / 64] = {};
const volatile u32 guarded[MAX_GUARDED] = {};
const volatile u32 guarded_count = 0;
/* csd_queue_cpu reports function calls with their function; without it, only their interrupts are seen. */
const volatile bool calls_name_functions = false;

/* Interval, guarded CPU, and task or sender → counts: of the tasks that ran there, the allowed ones too,
 * and of the interrupts that other CPUs sent there. User space deletes the rows of past intervals. Full:
 * LOSS_NOISE_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_NOISE);
    __type(key, struct noise_key);
    __type(value, struct noise_counts);
} noise SEC(".maps");

ALWAYS_INLINE bool is_guarded(u32 cpu) {
    return cpu < MAX_CPUS && ((guard_mask[cpu / 64] >> (cpu % 64)) & 1);
}

/* Copies both: see GLOBAL. */
GLOBAL int count_noise(struct noise_key *of, struct noise_counts *add) {
    struct noise_key key;
    struct noise_counts first, *row;

    if (!of || !add)
        return 0;
    key = *of;
    row = bpf_map_lookup_elem(&noise, &key);
    if (!row) {
        first = *add;
        if (!bpf_map_update_elem(&noise, &key, &first, BPF_NOEXIST))
            return 0;
        row = bpf_map_lookup_elem(&noise, &key);
    }
    if (!row) {
        lose(LOSS_NOISE_FULL);
        return 0;
    }
    __sync_fetch_and_add(&row->count, add->count);
    __sync_fetch_and_add(&row->total, add->total);
    if (add->max > row->max)
        row->max = add->max;
    return 0;
}

ALWAYS_INLINE void describe_noise(struct noise_counts *noise, struct task_struct *task) {
    noise->tgid = task->tgid;
    noise->kernel_thread = !!(task->flags & PF_KTHREAD);
    bpf_probe_read_kernel(noise->comm, COMM_LEN, task->comm);
}

/* Counts the time that `task` ran here since it was last counted; with `leaves` its run ends. */
ALWAYS_INLINE void count_task(struct cpu_state *cpu, struct task_struct *task, u64 now, bool leaves) {
    u32 here = bpf_get_smp_processor_id();
    u64 from = cpu->noise_from;
    u64 started = cpu->noise_started;

    if (!is_guarded(here))
        return;
    cpu->noise_from = now;
    if (leaves)
        cpu->noise_started = now;
    if (!task->pid)
        return;
    if (from < armed_at)
        from = armed_at;
    if (started < armed_at)
        started = armed_at;
    struct noise_key key = {
        .interval = (now + epoch_offset) / GUARD_INTERVAL_NS,
        .tid = task->pid,
        .cpu = (u16)here,
        .kind = NOISE_TASK,
    };
    struct noise_counts add = {.count = leaves, .total = now - from, .max = now - started};

    describe_noise(&add, task);
    count_noise(&key, &add);
}

/* The thread that sends an interrupt now; NULL where an interrupt or an idle CPU sends it. */
ALWAYS_INLINE struct task_struct *sender_of(void *ctx) {
    struct task_struct *task = bpf_get_current_task_btf();
    struct cpu_state *cpu = this_cpu();

    return cpu && context_of(ctx, cpu, task) == CONTEXT_TASK ? task : NULL;
}

/* Another CPU interrupts a guarded one. */
ALWAYS_INLINE void count_sent(u32 to, u64 function, struct task_struct *sender) {
    u64 now = bpf_ktime_get_ns();

    if (!is_guarded(to) || to == bpf_get_smp_processor_id() || !armed(now))
        return;
    struct noise_key key = {
        .function = function,
        .interval = (now + epoch_offset) / GUARD_INTERVAL_NS,
        .cpu = (u16)to,
        .kind = NOISE_SENT,
    };
    struct noise_counts add = {.count = 1};

    if (sender) {
        key.tid = sender->pid;
        describe_noise(&add, sender);
    }
    count_noise(&key, &add);
}
