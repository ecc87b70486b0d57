/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The time of the page fault that a thread is in: it moves from `kernel` to a fault state. */
#pragma once

#include "thread_state.h"

/* A fault that failed ends without an event: the kernel changes the instruction pointer at which its code
 * continues (to a signal handler, or to an exception handler in the kernel). */
ALWAYS_INLINE bool fault_goes_on(struct thread_state *t) {
    struct pt_regs *regs = (struct pt_regs *)t->fault.frame;

    return t->fault.start >= armed_at && BPF_CORE_READ(regs, ip) == t->fault.ip;
}

/* Its time so far has no stacks yet. */
GLOBAL int carry_fault(struct thread_state *t) {
    u32 sleep;

    if (!t)
        return 0;
    sleep = t->fault.sleep;
    if (sleep >= SLEEPS)
        return 0;
    t->carried[SLEEP_FAULT_MINOR] += t->fault.earlier;
    t->carried[sleep] += t->fault.ran + t->fault.blocked - t->fault.earlier;
    return 0;
}

/* Its time so far stays in the fault state; the rest is the thread's running time. */
ALWAYS_INLINE void abandon_fault(struct thread_state *t) {
    carry_fault(t);
    t->faulting = 0;
    t->ledger.faults[FAULT_FAILED]++;
}

ALWAYS_INLINE void charge_fault_run(struct thread_state *t, u64 to) {
    u64 interrupted = t->ledger.irq - t->fault.irq_seen;
    u64 ns = to - t->fault.charged_to;
    u32 sleep = t->fault.sleep;

    if ((s64)ns <= 0 || sleep >= SLEEPS)
        return;
    /* An interrupt that was under way at the last charge is counted only now, and includes time that was
     * charged then. Its remainder is subtracted the next time. */
    if (interrupted > ns)
        interrupted = ns;
    t->fault.irq_seen += interrupted;
    t->fault.charged_to = to;
    ns -= interrupted;
    t->ledger.blocked[sleep] += ns;
    t->ledger.fault_on_cpu += ns;
    t->fault.ran += ns;
    t->fault.unsettled += ns;
}

/* Moves the fault to a state: minor or major is known only at its end. Time in past seconds stays in the
 * old state. */
ALWAYS_INLINE void settle_fault(struct thread_state *t, u32 sleep) {
    u32 before = t->fault.sleep;
    u64 total = t->fault.ran + t->fault.blocked;

    if (sleep == before || before >= SLEEPS || sleep >= SLEEPS)
        return;
    t->ledger.blocked[sleep] += t->fault.unsettled;
    t->ledger.blocked[before] -= t->fault.unsettled;
    if (t->lender == before)
        t->lender = sleep;
    t->fault.sleep = sleep;
    t->fault.earlier = total > t->fault.unsettled ? total - t->fault.unsettled : 0;
}
