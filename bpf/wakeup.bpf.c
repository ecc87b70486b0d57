// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Wakeups: the end of the blocked part of a wait, and the waker. */
#include "context.h"
#include "kernel_stack.h"
#include "reason.h"
#include "stack_place.h"
#include "stack_policy.h"

/* The waker's stacks. In an interrupt, only the interrupt's own kernel frames: the current task is a
 * bystander. */
ALWAYS_INLINE void take_waker_stacks(void *ctx, struct cpu_state *cpu, struct thread_state *t, u32 context) {
    u32 depth = cpu->interrupt_depth, place = PLACE_WAKEUP;
    struct stack_scratch *scratch;

    if (depth && depth <= IRQ_DEPTH)
        place = PLACE_INTERRUPT | (cpu->interrupt[(depth - 1) & (IRQ_DEPTH - 1)].number & 0xff) << 20;
    place |= way_of(t) & 0xfffff;
    if (context != CONTEXT_INTERRUPT)
        return take_stacks_at(ctx, cpu, place, &t->waker_user_stack, &t->waker_kernel_stack);
    scratch = enter_scratch(cpu);
    if (!scratch)
        return;
    t->waker_kernel_stack = take_kernel_stack_at(ctx, cpu, scratch, place, true);
    leave_scratch(cpu);
}

ALWAYS_INLINE void wake(void *ctx, struct cpu_state *cpu, struct task_struct *task, u64 now) {
    struct task_struct *waker = bpf_get_current_task_btf();
    struct thread_state *t;
    u32 context;

    /* It has not left its CPU: what it was about to wait for happened before, on this CPU. A timer whose time
     * is over does that to each sleep that a stop had interrupted. */
    if (waker == task)
        return;
    t = state_of(task);
    if (!t)
        return;
    if (unlikely(t->since < armed_at)) {
        start_observing(t, task, task->on_cpu ? ACTIVITY_RUNNING : ACTIVITY_BLOCKED);
        t->exec_seen = task->se.sum_exec_runtime;
        t->delay_seen = task->sched_info.run_delay;
        if (!task->on_cpu)
            classify(ctx, NULL, t, task, task->__state);
    }
    context = context_of(ctx, cpu, waker);
    t->wake_ns = now;
    t->waker_task = (u64)waker;
    t->waker_tid = waker->pid;
    t->waker_tgid = waker->tgid;
    t->waker_user_stack = 0;
    t->waker_kernel_stack = 0;
    if (unlikely(t->two_site) && waker->tgid == task->tgid) {
        struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(waker);

        settle_number(t, regs->orig_ax, regs->si, regs->di, regs->dx);
    }
    if (t->activity == ACTIVITY_BLOCKED &&
        (context == CONTEXT_UNSURE || wants_stack(t, t->reason, now - t->since)))
        take_waker_stacks(ctx, cpu, t, context);
    if (context == CONTEXT_INTERRUPT || (context == CONTEXT_UNSURE && !t->waker_kernel_stack))
        t->waker_task = t->waker_tid = t->waker_tgid = 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task) {
    u64 now = bpf_ktime_get_ns();
    struct cpu_state *cpu = this_cpu();
    u64 started;

    if (!cpu || !armed(now))
        return 0;
    started = start_run(cpu);
    wake(ctx, cpu, task, now);
    end_run(cpu, started);
    return 0;
}

/* A waiting thread is moved to another CPU: from now on it waits for the threads there. */
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *task, int to) {
    u64 now = bpf_ktime_get_ns();
    struct thread_state *t;

    if (!armed(now))
        return 0;
    t = state_of(task);
    if (t) {
        t->moved_ns = now;
        t->moved_from = task->thread_info.cpu;
    }
    return 0;
}
