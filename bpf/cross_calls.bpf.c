// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Functions that threads call on other CPUs, which these calls interrupt. */
#include "context.h"
#include "losses.h"
#include "settings.h"
#include "syscall.h"

/* Caller, system call and function → count. Same lifetime as `samples`. Full: LOSS_CROSS_CALLS_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_CROSS_CALLS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct cross_call_key);
    __type(value, struct cross_call_value);
} cross_calls SEC(".maps");

/* A call from an interrupt has no caller: the current task is a bystander. A raw tracepoint, since the
 * verifier knows no arguments that are functions. */
SEC("raw_tp/csd_queue_cpu")
int BPF_PROG(on_cross_call, unsigned int target, unsigned long from, void *function) {
    struct task_struct *task = bpf_get_current_task_btf();
    struct cpu_state *cpu = this_cpu();
    struct cross_call_value first = {.count = 1};
    struct cross_call_value *known;
    struct cross_call_key key = {};
    u64 now;

    if (!cpu || context_of(ctx, cpu, task) != CONTEXT_TASK)
        return 0;
    now = bpf_ktime_get_ns();
    if (!armed(now))
        return 0;
    key.function = (u64)function;
    key.tid = task->pid;
    key.tgid = task->tgid;
    key.syscall = syscall_of(task, (struct pt_regs *)bpf_task_pt_regs(task));
    key.second = (now + epoch_offset) / 1000000000ULL;
    known = bpf_map_lookup_elem(&cross_calls, &key);
    if (known) {
        __sync_fetch_and_add(&known->count, 1);
        return 0;
    }
    bpf_probe_read_kernel(first.comm, COMM_LEN, task->comm);
    if (bpf_map_update_elem(&cross_calls, &key, &first, BPF_ANY))
        lose(LOSS_CROSS_CALLS_FULL);
    return 0;
}
