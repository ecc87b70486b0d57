/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A thread gets a CPU: its wait is over, and is charged, counted and emitted. */
#pragma once

#include "awaited.h"
#include "kernel_stack.h"
#include "late.h"
#include "latency.h"
#include "mark.h"
#include "ran_instead.h"
#include "reason.h"
#include "seconds.h"
#include "stack_place.h"
#include "stack_policy.h"
#include "stall.h"
#include "wait_place.h"

/* Takes the stacks of the interval, and counts the unstacked time of its states with them. */
NOINLINE int take_interval_stack(void *ctx, struct thread_state *t, struct interval *interval) {
    struct cpu_state *cpu = this_cpu();
    u32 reason;

    if (!t || !interval || !cpu)
        return 0;
    reason = t->reason;
    if (reason >= SLEEPS)
        return 0;
    if (stacks_at_switch_out) {
        interval->user_stack = t->out_user_stack;
        interval->kernel_stack = t->out_kernel_stack;
    } else {
        take_stacks_at(ctx, cpu, place_of_wait(t, interval->preempted), &interval->user_stack,
                       &interval->kernel_stack);
    }
    if (interval->preempted && !interval->is_new) {
        count_interval(t, interval, CARRIED_PREEMPTED, SAMPLE_PREEMPTED, t->carried[CARRIED_PREEMPTED]);
    } else {
        if (reason < REASONS && !interval->is_new)
            count_interval(t, interval, reason, SAMPLE_BLOCKED + reason, t->carried[reason]);
        count_interval(t, interval, CARRIED_RUNNABLE, SAMPLE_RUNNABLE, t->carried[CARRIED_RUNNABLE]);
    }
    return 0;
}

/* The metric of an interval by its longer part, as user space names stalls. One within a fault belongs to
 * the fault. */
ALWAYS_INLINE u32 off_cpu_metric(struct thread_state *t, struct interval *interval, u64 off) {
    u32 reason = t->reason;

    if (interval->preempted)
        return interval->is_new ? METRIC_OFF_CPU_RUNNABLE : METRIC_OFF_CPU_PREEMPTED;
    if (reason >= REASONS)
        return METRIC_OFF_CPU;
    return interval->runnable > off - interval->runnable ? METRIC_OFF_CPU_RUNNABLE
                                                         : METRIC_OFF_CPU_BLOCKED + reason;
}

/* `stacked`: its stacks have been taken. */
ALWAYS_INLINE bool is_emitted(struct task_struct *task, struct thread_state *t, struct interval *interval,
                              bool stacked) {
    u64 off = off_cpu_ns(interval);
    bool sent = off >= stall_ns;

    if (off < min_stall_ns)
        return unlikely(stacked) && !interval->preempted && is_voluntary(t->reason) && place_is_new(t);

    if (sent && !interval->preempted && is_voluntary(t->reason) && interval->runnable < stall_ns &&
        off < voluntary_stall_ns)
        sent = place_is_emitted(t);
    if (unlikely(!sent))
        sent = holder_wait_is_emitted(task, t);
    if (!sent)
        lose(LOSS_FOLDED);
    return sent;
}

/* The first event of this thread is that it gets a CPU. Either it has waited for one since arming, or its
 * wakeup was not seen: the scheduler's sum of its waiting time decides. */
ALWAYS_INLINE void start_waiting(void *ctx, struct thread_state *t, struct task_struct *task, u64 now,
                                 u64 delay) {
    start_observing(t, task, ACTIVITY_PREEMPTED);
    t->exec_seen = task->se.sum_exec_runtime;
    if (!stacks_at_switch_out && delay - t->delay_seen < now - t->since) {
        t->activity = ACTIVITY_BLOCKED;
        classify(ctx, NULL, t, task, TASK_INTERRUPTIBLE);
    }
}

/* How long the thread has been awake at `now`, within its wait. Its next wakeup can already have happened:
 * interrupts are on between a switch and its end. */
ALWAYS_INLINE u64 since_wakeup(struct thread_state *t, u64 now) {
    u64 wake = t->wake_ns;

    if (wake > now)
        return 0;
    return now - (wake > t->since ? wake : t->since);
}

/* Back on a CPU, in the same page fault: the wait belongs to the fault, and is emitted with it. */
GLOBAL int resume_fault(struct thread_state *t, struct interval *interval) {
    struct fault_state *fault;
    u64 off;

    if (!t || !interval)
        return 0;
    fault = &t->fault;
    off = interval->end - interval->start;
    fault->charged_to = interval->end;
    fault->irq_seen = t->ledger.irq;
    fault->runnable += interval->runnable;
    fault->blocked += off - interval->runnable;
    fault->woken |= interval->woken;
    if (off > fault->longest && (interval->user_stack || interval->kernel_stack)) {
        fault->longest = off;
        fault->user_stack = interval->user_stack;
        fault->kernel_stack = interval->kernel_stack;
        fault->owner = t->kernel_owner;
        if (!t->kernel_lock)
            fault->owner.tid = 0;
    }
    if (interval->runnable > fault->starved_to - fault->starved_from) {
        fault->starved_from = interval->end - interval->runnable;
        fault->starved_to = interval->end;
        fault->starved_cpu = interval->cpu;
    }
    return 0;
}

/* Closes the off-CPU interval of `task`, which got the CPU at `now`. With stacks_at_switch_out it is not
 * current yet. */
ALWAYS_INLINE void switch_in(void *ctx, struct cpu_state *cpu, struct task_struct *task, u64 now) {
    struct thread_state *t = state_of(task);
    struct interval *interval = &cpu->interval;
    u64 off, delay, waited, awake;
    bool stacked, late;

    /* What it did before a pause says nothing about now. */
    if (!t || (t->activity == ACTIVITY_RUNNING && likely(t->since >= armed_at)))
        return;
    if (unlikely(t->awaits))
        stop_awaiting(t);
    delay = task->sched_info.run_delay;
    if (unlikely(t->since < armed_at))
        start_waiting(ctx, t, task, now, delay);
    /* Never observed, but an interval must not end before it starts. */
    if ((s64)(now - t->since) < 0)
        now = t->since;
    __builtin_memset(interval, 0, sizeof(*interval));
    interval->start = t->since;
    interval->end = now;
    interval->cpu = bpf_get_smp_processor_id();
    interval->preempted = t->activity != ACTIVITY_BLOCKED;
    interval->is_new = t->activity == ACTIVITY_NEW;
    interval->woken = !interval->preempted && t->wake_ns > t->run_ns;
    interval->idle = t->idle;
    awake = since_wakeup(t, now);
    off = now - t->since;
    waited = delay - t->delay_seen;
    t->delay_seen = delay;
    if (interval->preempted)
        waited = off;
    else if (stacks_at_switch_out || waited > off)
        /* The scheduler has not added this wait yet: count from the wakeup on. */
        waited = interval->woken ? awake : 0;
    if (!interval->preempted && !interval->woken)
        lose(LOSS_NO_WAKEUP);
    interval->runnable = waited;
    if (unlikely(now - waited < cpu->own_to || now - waited < t->moved_ns) &&
        (u32)task->tgid != recorder_tgid)
        count_behind(cpu, t, now - waited, now);
    roll(t, now);
    charge_wait(t, now, waited, interval->preempted);
    if (!interval->preempted && is_voluntary(t->reason))
        start_busy(task, t, now, interval->woken ? awake : waited);
    flush_mark(t, now, 1);
    t->run_ns = now;
    t->activity = ACTIVITY_RUNNING;
    if (!t->on_mask && cpu_wanted(interval->cpu))
        t->on_mask = 1;
    if (!off)
        return;
    count_latency(t, off_cpu_metric(t, interval, off), off);
    count_latency(t, METRIC_RUN_QUEUE, interval->runnable);
    if (interval->preempted) {
        u32 waited_in = interval->is_new ? CARRIED_RUNNABLE : CARRIED_PREEMPTED;

        t->carried[waited_in] += off;
        stacked = wants_stack(t, waited_in, 0);
    } else {
        u64 blocked = off - interval->runnable;
        u32 reason = t->reason;

        if (reason >= SLEEPS)
            return;
        if (likely(reason < REASONS)) {
            count_latency(t, METRIC_BLOCKED + reason, blocked);
            t->carried[reason] += blocked;
        }
        t->carried[CARRIED_RUNNABLE] += interval->runnable;
        stacked = wants_stack(t, reason, 0) || wants_stack(t, CARRIED_RUNNABLE, 0);
    }
    late = is_late_wait(t, interval);
    if (likely(!t->faulting) && (stacked || off >= min_stall_ns) && cpu_wanted(interval->cpu))
        interval->emitted = is_emitted(task, t, interval, stacked);
    if (stacked || late || interval->emitted || off >= own_stack_ns(interval->idle))
        take_interval_stack(ctx, t, interval);
    if (unlikely(t->faulting))
        resume_fault(t, interval);
    else if (interval->emitted)
        emit_stall(task, t, interval);
    else if (unlikely(late))
        emit_late_wait(t, interval);
}
