/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A thread leaves its CPU: the running time ends, and the reason of the wait is found. */
#pragma once

#include "awaited.h"
#include "fault_time.h"
#include "kernel_lock.h"
#include "kernel_stack.h"
#include "mark.h"
#include "peer.h"
#include "reason.h"
#include "seconds.h"
#include "span.h"
#include "stack_place.h"
#include "stack_policy.h"
#include "thread.h"
#include "timeout.h"
#include "trace_context.h"
#include "wait_word.h"

/* A thread leaves the CPU, and its switch-in was not seen: its running time by the scheduler's sum ends
 * the wait. */
ALWAYS_INLINE void settle_unseen_run(struct thread_state *t, struct task_struct *prev, u64 now) {
    u64 ran = prev->se.sum_exec_runtime - t->exec_seen;
    u64 delay = prev->sched_info.run_delay;
    u64 wall = now - t->since;

    roll(t, now - (ran < wall ? ran : wall));
    wall = now - t->since;
    charge_wait(t, now - (ran < wall ? ran : wall), delay - t->delay_seen, t->activity != ACTIVITY_BLOCKED);
    t->delay_seen = delay;
    t->run_ns = t->since;
    t->activity = ACTIVITY_RUNNING;
    if (t->idle) {
        /* When it was woken is not known. */
        t->idle = false;
        t->busy_from = 0;
    }
}

/* The thread leaves the CPU in a page fault, unless the fault is over. */
ALWAYS_INLINE bool pause_fault(struct thread_state *t, struct task_struct *prev, u32 prev_state, u64 now) {
    if (!fault_goes_on(t) || (prev_state & TASK_DEAD) || is_stopped(prev, prev_state)) {
        abandon_fault(t);
        return false;
    }
    charge_fault_run(t, now);
    return true;
}

/* A sleep in a page fault is charged to the fault, whatever else it waits for. */
ALWAYS_INLINE void sleep_in_fault(struct thread_state *t, struct task_struct *prev) {
    if (BPF_CORE_READ_BITFIELD(prev, in_iowait))
        settle_fault(t, SLEEP_FAULT_MAJOR);
    t->reason = t->fault.sleep;
    t->syscall = syscall_of(prev, (struct pt_regs *)bpf_task_pt_regs(prev));
    t->futex = FUTEX_NO_LOCK;
    t->owner_known = OWNER_UNKNOWN;
    t->word_known = false;
}

/* A wakeup that came while the thread was on its CPU ended a wait that had not begun. One that ends the wait
 * that begins now came after the scheduler had taken the thread off its queue, at most a moment ago, or is
 * still under way. */
ALWAYS_INLINE void forget_old_wakeup(struct thread_state *t, struct task_struct *prev, u64 now) {
    u64 woken = t->wake_ns;

    if (likely(woken <= t->run_ns) || woken + SWITCH_LAG_NS >= now || (prev->__state & TASK_WAKING))
        return;
    /* Another CPU may note the next one meanwhile. */
    __sync_val_compare_and_swap(&t->wake_ns, woken, 0);
}

ALWAYS_INLINE void switch_out(void *ctx, struct cpu_state *cpu, bool preempt, struct task_struct *prev,
                              u32 prev_state, u64 now) {
    struct thread_state *t = state_of(prev);
    bool in_fault = false;

    if (!t)
        return;
    follow_words(prev, t);
    if (unlikely(t->since < armed_at)) {
        start_observing(t, prev, ACTIVITY_RUNNING);
        t->nvcsw_seen -= !preempt && prev_state;
        /* What it did in a second that is over counts there. */
        roll_slow(t, now);
        t->exec_seen = prev->se.sum_exec_runtime;
        t->delay_seen = prev->sched_info.run_delay;
        charge_until(t, now);
    } else {
        if (unlikely(t->activity != ACTIVITY_RUNNING))
            settle_unseen_run(t, prev, now);
        roll(t, now);
        charge_running(t, prev, now);
    }
    if (unlikely(t->faulting))
        in_fault = pause_fault(t, prev, prev_state, now);
    if (likely(!(prev_state & TASK_DEAD)))
        note_mark(prev, t, now);
    if (stacks_at_switch_out)
        note_trace(prev, t);
    t->moved_ns = 0;
    /* The kernel's own count: it counts a sleep that a pending signal cancels as voluntary. */
    if (prev->nvcsw != t->nvcsw_seen) {
        t->nvcsw_seen = prev->nvcsw;
        t->ledger.voluntary++;
    } else {
        t->ledger.involuntary++;
    }
    if (unlikely(prev_state & TASK_DEAD)) {
        charge_until(t, now);
        end_marks(t, now);
        end_thread(prev, t, now);
        return;
    }
    /* Kernels before 6.13 pass the state as it was before a pending signal cancelled the sleep. */
    if (preempt || prev_state == TASK_RUNNING || prev->__state == TASK_RUNNING) {
        t->activity = ACTIVITY_PREEMPTED;
    } else {
        t->activity = ACTIVITY_BLOCKED;
        forget_old_wakeup(t, prev, now);
        if (unlikely(in_fault)) {
            sleep_in_fault(t, prev);
        } else {
            classify(ctx, cpu, t, prev, prev_state);
            if (unlikely(t->owner_known == OWNER_KNOWN))
                start_awaiting(t, awaited_slot(prev->tgid, t->lock_owner));
            note_wait_word(prev, t);
            if (is_voluntary(t->reason))
                end_busy(prev, t);
            note_awaited_end(prev, t);
        }
        if (unlikely(t->kernel_lock))
            note_kernel_owner(t);
    }
    if (stacks_at_switch_out) {
        t->out_user_stack = 0;
        t->out_kernel_stack = 0;
        take_stacks_at(ctx, cpu, place_of_wait(t, t->activity == ACTIVITY_PREEMPTED), &t->out_user_stack,
                       &t->out_kernel_stack);
        t->out_asked = t->activity == ACTIVITY_BLOCKED && !in_fault && t->syscall >= 0 &&
                       asked_timeout(prev, t, now, &t->out_asked_ns, &t->out_slack_ns);
    }
}
