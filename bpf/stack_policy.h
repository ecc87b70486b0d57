/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Which intervals get stacks. */
#pragma once

#include "thread_state.h"

/* A wait that a thread enters voluntarily, by its reason: an idle server's wait for requests. */
ALWAYS_INLINE bool is_voluntary(u32 reason) { return reason < REASONS && (VOLUNTARY_REASONS >> reason) & 1; }

/* From which length on a wait gets stacks of its own. At an idle place, shorter ones than
 * `voluntary_stall_ns` are only counted. */
ALWAYS_INLINE u64 own_stack_ns(bool idle) {
    return idle && voluntary_stall_ns > stack_ns ? voluntary_stall_ns : stack_ns;
}

/* Whether an interval that has lasted `ns` in `state` needs stacks. */
ALWAYS_INLINE bool wants_stack(struct thread_state *t, u32 state, u64 ns) {
    s64 enough = is_voluntary(state) ? voluntary_carry_ns : carry_ns;

    barrier_var(state); /* one register for the check and the index */
    return ns >= own_stack_ns(t->idle) || (state < SLEEPS + 2 && t->carried[state] + (s64)ns >= enough);
}
