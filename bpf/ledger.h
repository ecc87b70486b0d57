/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The ledger of a thread: how each ns of its wall time is charged to one state. */
#pragma once

#include "thread_state.h"

/* Adds [t->since, to) to the counter of the current activity, split at `wake` into blocked and runnable,
 * and moves `since`. This is the general form: exact by the times of the tracepoints. */
ALWAYS_INLINE void charge_until(struct thread_state *t, u64 to) {
    u64 from = t->since;
    u64 wake;

    if ((s64)(to - from) <= 0)
        return;
    t->since = to;
    switch (t->activity) {
    case ACTIVITY_RUNNING:
        t->ledger.on_cpu += to - from;
        break;
    case ACTIVITY_PREEMPTED:
        t->ledger.preempted += to - from;
        break;
    case ACTIVITY_BLOCKED:
        wake = t->wake_ns > t->run_ns ? t->wake_ns : to;
        if (wake < from)
            wake = from;
        if (wake > to)
            wake = to;
        if (t->reason < SLEEPS)
            t->ledger.blocked[t->reason] += wake - from;
        t->ledger.runnable += to - wake;
        break;
    case ACTIVITY_NEW:
        t->ledger.runnable += to - from;
        break;
    }
}

/* Charges the running time that ends with this switch by the scheduler's own sum, so that the total equals
 * /proc/PID/schedstat.
 *
 * Tracepoints and the scheduler's readings of its clock are not simultaneous. A thread that wakes on an
 * idle CPU counts as running from its enqueueing on (rq_clock_skip_update), microseconds before its
 * switch-in. Time after the scheduler's last reading counts for no thread. So time that ran before the
 * switch-in is taken from the wait before it, and time that did not run before the switch-out is left for
 * the wait that follows. */
ALWAYS_INLINE void charge_running(struct thread_state *t, struct task_struct *prev, u64 now) {
    u64 executed = prev->se.sum_exec_runtime;
    s64 ran = executed - t->exec_seen;
    s64 wall = now - t->since;

    if (ran > wall) {
        u64 excess = ran - wall;
        u64 taken = excess < t->borrowable ? excess : t->borrowable;
        u32 lender = t->lender, carrier;

        t->ledger.on_cpu += wall + taken;
        barrier_var(lender); /* one register for the check and the index */
        if (lender < SLEEPS)
            t->ledger.blocked[lender] -= taken;
        else if (lender == CARRIED_RUNNABLE)
            t->ledger.runnable -= taken;
        else
            t->ledger.preempted -= taken;
        carrier = t->lender;
        barrier_var(carrier);
        if (carrier < SLEEPS + 2)
            t->carried[carrier] -= taken;
        t->since = now;
        t->exec_seen = executed;
    } else if ((u64)(wall - ran) > SWITCH_LAG_NS) {
        /* Steal or interrupt time, which the scheduler leaves out. By wall time the thread was running. */
        t->ledger.on_cpu += wall;
        t->since = now;
        t->exec_seen = executed;
    } else if (ran > 0) {
        t->ledger.on_cpu += ran;
        t->since += ran;
        t->exec_seen = executed;
    }
}

/* Charges the rest of a wait, of which the last `waited` ns were spent waiting for a CPU. */
ALWAYS_INLINE void charge_wait(struct thread_state *t, u64 now, u64 waited, bool preempted) {
    u64 rest = now - t->since;
    u64 runnable = waited < rest ? waited : rest;

    t->since = now;
    if (preempted) {
        if (t->activity == ACTIVITY_PREEMPTED)
            t->ledger.preempted += rest;
        else
            t->ledger.runnable += rest; /* a new thread */
        t->borrowable = rest;
        t->lender = t->activity == ACTIVITY_PREEMPTED ? CARRIED_PREEMPTED : CARRIED_RUNNABLE;
        return;
    }
    t->ledger.runnable += runnable;
    if (t->reason < SLEEPS)
        t->ledger.blocked[t->reason] += rest - runnable;
    if (unlikely(t->faulting))
        t->fault.unsettled += rest - runnable;
    t->borrowable = rest - runnable;
    t->lender = t->reason;
}
