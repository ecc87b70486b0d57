/* Who runs on the CPUs that are kept for others.
 *
 * Interrupts there are counted where all are (irq.bpf.c). Nothing of this exists where no CPU is guarded:
 * `guards` is fixed before loading, and the verifier takes out what it excludes.
 */
#pragma once

#include "context.h"

const volatile bool guards = false;
const volatile u64 guard_mask[MAX_CPUS / 64] = {};
const volatile u32 guarded[MAX_GUARDED] = {};
const volatile u32 guarded_count = 0;
/* Function calls are told with their function by csd_queue_cpu; else their interrupts alone are. */
const volatile bool calls_tell_functions = false;

/* What was on a guarded CPU, by slice: tasks, the allowed ones too, and interrupts sent by other CPUs. User
 * space deletes the rows of past slices. Full: LOSS_GUESTS_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_GUESTS);
    __type(key, struct guest_key);
    __type(value, struct guest);
} guests SEC(".maps");

ALWAYS_INLINE bool is_guarded(u32 cpu) {
    return cpu < MAX_CPUS && ((guard_mask[cpu / 64] >> (cpu % 64)) & 1);
}

/* Global, so that the verifier walks through it once. Kernel 6.1's maps take no memory of a global function's
 * caller: hence the copies. */
__attribute__((noinline)) int count_guest(struct guest_key *whose, struct guest *add) {
    struct guest_key key;
    struct guest first, *row;

    if (!whose || !add)
        return 0;
    key = *whose;
    row = bpf_map_lookup_elem(&guests, &key);
    if (!row) {
        first = *add;
        if (!bpf_map_update_elem(&guests, &key, &first, BPF_NOEXIST))
            return 0;
        row = bpf_map_lookup_elem(&guests, &key);
    }
    if (!row) {
        lose(LOSS_GUESTS_FULL);
        return 0;
    }
    __sync_fetch_and_add(&row->count, add->count);
    __sync_fetch_and_add(&row->total, add->total);
    if (add->max > row->max)
        row->max = add->max;
    return 0;
}

ALWAYS_INLINE void describe_guest(struct guest *guest, struct task_struct *task) {
    guest->tgid = task->tgid;
    guest->kernel_thread = !!(task->flags & PF_KTHREAD);
    bpf_probe_read_kernel(guest->comm, COMM_LEN, task->comm);
}

/* Counts what `task` ran here since it was last counted; with `leaves` the run ends. */
ALWAYS_INLINE void count_task(struct cpu_state *cpu, struct task_struct *task, u64 now, bool leaves) {
    u32 here = bpf_get_smp_processor_id();
    u64 from = cpu->guest_from;
    u64 began = cpu->guest_began;

    if (!is_guarded(here))
        return;
    cpu->guest_from = now;
    if (leaves)
        cpu->guest_began = now;
    if (!task->pid)
        return;
    if (from < armed_at)
        from = armed_at;
    if (began < armed_at)
        began = armed_at;
    struct guest_key key = {
        .slice = (now + epoch_offset) / GUARD_SLICE_NS,
        .tid = task->pid,
        .cpu = (u16)here,
        .kind = GUEST_TASK,
    };
    struct guest add = {.count = leaves, .total = now - from, .max = now - began};

    describe_guest(&add, task);
    count_guest(&key, &add);
}

/* The thread that sends an interrupt now; NULL where an interrupt or an idle CPU does. */
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
    struct guest_key key = {
        .function = function,
        .slice = (now + epoch_offset) / GUARD_SLICE_NS,
        .cpu = (u16)to,
        .kind = GUEST_SENT,
    };
    struct guest add = {.count = 1};

    if (sender) {
        key.tid = sender->pid;
        describe_guest(&add, sender);
    }
    count_guest(&key, &add);
}
