// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* On-CPU samples: the ledger's clock and the extra events of -e. */
#include "awaited.h"
#include "fault_time.h"
#include "include/vectors.h"
#include "late.h"
#include "mark.h"
#include "noise.h"
#include "samples.h"
#include "seconds.h"
#include "span_probes.h"
#include "stack.h"

/* The time that one sample of the ledger's clock stands for. */
const volatile u64 clock_period_ns = 10101010;

/* Whether the interrupted code is itself an interrupt's. The sampling clock arrives in the local timer's
 * vector, which is then the innermost entry and does not count. */
ALWAYS_INLINE bool inside_interrupt(struct cpu_state *cpu) {
    u32 depth = cpu->interrupt_depth;
    struct interrupt_frame *top;

    if (depth == 0 || depth > IRQ_DEPTH)
        return false;
    top = &cpu->interrupt[(depth - 1) & (IRQ_DEPTH - 1)];
    if (top->kind == INTERRUPT_VECTOR && top->number == VECTOR_LOCAL_TIMER)
        depth--;
    return depth > 0;
}

/* The kernel stack below user code holds only this interrupt: none of it is taken. */
ALWAYS_INLINE u32 kernel_bytes(bool user_mode) {
    u32 in_kernel = (u32)user_mode - 1;

    barrier_var(in_kernel);
    return in_kernel & KERNEL_STACK_BYTES;
}

ALWAYS_INLINE void take_sample(void *ctx, struct cpu_state *cpu, u64 now, bool user_mode, bool ledger_clock,
                               u16 event, bool from_probe, u64 weight) {
    struct task_struct *task = bpf_get_current_task_btf();
    struct sample_key key = {};
    struct thread_state *t;
    u32 within;

    if (!task->pid)
        return;
    t = state_of(task);
    if (!t || t->activity == ACTIVITY_DEAD)
        return;
    if (unlikely(t->faulting) && (user_mode || !fault_goes_on(t)))
        abandon_fault(t);
    /* The time of a fault is known exactly, and has its own stacks. */
    if (t->faulting && ledger_clock)
        return;
    /* In the middle of a switch, the interval that is being closed must not be split. */
    if (t->since >= armed_at && t->activity == ACTIVITY_RUNNING)
        roll(t, now);
    key.key = t->key;
    key.second = (u32)((now + epoch_offset) / 1000000000ULL);
    if (ledger_clock) {
        if (!inside_interrupt(cpu)) {
            if (user_mode)
                t->ledger.user_samples++;
            else
                t->ledger.kernel_samples++;
        }
        /* One that takes its stacks stands for `sample_stride` samples. */
        if ((now / clock_period_ns) % sample_stride)
            return;
        weight *= sample_stride;
        key.what = user_mode ? SAMPLE_USER : SAMPLE_KERNEL;
    } else {
        key.what = SAMPLE_EVENT;
        key.event = event;
    }
    take_stacks(ctx, cpu, from_probe, kernel_bytes(user_mode), &key.user_stack, &key.kernel_stack);
    count_sample(&key, weight);
    if (ledger_clock) {
        emit_holder_sample(task, t, now, &key);
        within = (is_late(t, now) ? LATE_IN_BUSY : 0) | (is_marked(task, t) ? LATE_IN_MARKED : 0) |
                 (is_probed(task) ? LATE_IN_PROBED : 0);
        if (within)
            emit_late(t, now, key.what, weight, 0, key.user_stack, key.kernel_stack, within);
    }
}

struct run_queue {
    u64 runnable;
    u64 readings;
};

/* 0 → the length of this CPU's run queue, summed over its readings. Read by user space. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct run_queue);
} run_queues SEC(".maps");

/* Through the current task: a kernel need not have symbols for the run queues themselves. */
ALWAYS_INLINE void count_run_queue(void) {
    struct task_struct *task = bpf_get_current_task_btf();
    struct run_queue *sums;
    u32 zero = 0;

    if (!bpf_core_field_exists(task->se.cfs_rq) || !bpf_core_field_exists(((struct cfs_rq *)0)->rq))
        return;
    sums = bpf_map_lookup_elem(&run_queues, &zero);
    if (!sums)
        return;
    sums->runnable += BPF_CORE_READ(task, se.cfs_rq, rq, nr_running);
    sums->readings++;
}

ALWAYS_INLINE void sample(void *ctx, bool user_mode, bool ledger_clock, u16 event, bool from_probe,
                          u64 weight) {
    u64 now = bpf_ktime_get_ns();
    struct cpu_state *cpu = this_cpu();
    u64 started;

    if (!cpu || !armed(now))
        return;
    if (ledger_clock)
        count_run_queue();
    /* A task that never leaves the CPU is counted here. */
    if (guards && ledger_clock)
        count_task(cpu, bpf_get_current_task_btf(), now, false);
    if (!cpu_wanted(bpf_get_smp_processor_id()))
        return;
    started = start_run(cpu);
    take_sample(ctx, cpu, now, user_mode, ledger_clock, event, from_probe, weight);
    end_run(cpu, started);
}

SEC("perf_event")
int on_clock(struct bpf_perf_event_data *ctx) {
    sample(ctx, ctx->regs.cs & 3, true, 0, false, clock_period_ns);
    return 0;
}

/* The cookie of the link is the number of the event. */
SEC("perf_event")
int on_event(struct bpf_perf_event_data *ctx) {
    sample(ctx, ctx->regs.cs & 3, false, (u16)bpf_get_attach_cookie(ctx), false, ctx->sample_period);
    return 0;
}

/* Tracepoint events fire in the kernel, once a hit. */
SEC("tp")
int on_tracepoint(void *ctx) {
    sample(ctx, false, false, (u16)bpf_get_attach_cookie(ctx), true, 1);
    return 0;
}
