/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The states of a span: the ledger's growth from its start to its end. */
#pragma once

#include "bpf_api.h"
#include "include/records.h"

/* What a state has gained. Running time that was found to lie before the switch-in was taken from the wait
 * before. That wait may have been over at the start: then its state has lost what running has gained. */
ALWAYS_INLINE u64 gained(u64 now, u64 base, u64 *borrowed) {
    s64 ns = now - base;
    s64 negative = ns >> 63; /* all bits or none: a branch would double the paths */

    *borrowed -= ns & negative;
    return ns & ~negative;
}

/* What the ledger has by now and had not at the start. */
ALWAYS_INLINE void take_states(struct span_states *states, struct ledger *now, struct span_states *base) {
    u64 borrowed = 0;
    u32 i;

    for (i = 0; i < SLEEPS; i++)
        states->blocked[i] = gained(now->blocked[i], base->blocked[i], &borrowed);
    states->runnable = gained(now->runnable, base->runnable, &borrowed);
    states->preempted = gained(now->preempted, base->preempted, &borrowed);
    states->on_cpu = now->on_cpu - base->on_cpu;
    states->on_cpu -= borrowed < states->on_cpu ? borrowed : states->on_cpu;
    states->irq = now->irq - base->irq;
    states->fault_on_cpu = now->fault_on_cpu - base->fault_on_cpu;
}

ALWAYS_INLINE void keep_states(struct span_states *base, struct ledger *ledger) {
    base->on_cpu = ledger->on_cpu;
    base->irq = ledger->irq;
    base->runnable = ledger->runnable;
    base->preempted = ledger->preempted;
    base->fault_on_cpu = ledger->fault_on_cpu;
    __builtin_memcpy(base->blocked, ledger->blocked, sizeof(base->blocked));
}
