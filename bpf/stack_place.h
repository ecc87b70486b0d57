/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The place in the kernel at which a stack is taken: the key of the kernel-stack cache. */
#pragma once

#include "thread_state.h"

/* A place is the kind of the probe, and the number that separates its call paths best. */
#define PLACE_SWITCH (1u << 28)
#define PLACE_WAKEUP (2u << 28)
#define PLACE_INTERRUPT (3u << 28)

/* The call path of a wait: its system call. Each of the kernel's own threads has a path of its own. */
ALWAYS_INLINE u32 way_of(struct thread_state *t) { return t->syscall < 0 ? t->key << 9 : (u32)t->syscall; }

ALWAYS_INLINE u32 place_of_wait(struct thread_state *t, bool preempted) {
    return PLACE_SWITCH | ((way_of(t) << 1 | preempted) & (PLACE_SWITCH - 1));
}
