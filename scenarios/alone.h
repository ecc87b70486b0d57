/* SPDX-License-Identifier: Apache-2.0 */
// The base of scenarios with one thread, whose stacks end at main and _start, and that log their stacks: the
// protocol of truth.h, without runners.
//
// More lines of truth:
//   {"event":"stack", "thread", "state", "functions":[…]}
//       The thread of this name has been in the first of these functions, running or blocked, for 1 ms or
//       more. They called each other in this order, the innermost first, the last one is main. Callees of the
//       first one are not listed.
#pragma once

#include "truth.h"

// A function that keeps its own frame and is opaque to its callers: gcc saves fewer registers in callers that
// know their callee.
#define OPAQUE __attribute__((noipa))

// --- leaves: where stacks are taken ---

#define LEAF_NS (3 * NS_PER_MS)

// A leaf runs or sleeps for LEAF_NS.
typedef void leaf_function(void);

OPAQUE static void spin_leaf(void) { spin_until(now_ns() + LEAF_NS); }

OPAQUE static void sleep_leaf(void) { sleep_for(LEAF_NS); }

// Waits in futex for a semaphore that is never posted.
OPAQUE static void futex_leaf(void) {
    static sem_t never;
    uint64_t until_ns = read_clock(CLOCK_REALTIME) + LEAF_NS;
    struct timespec until = {(time_t)(until_ns / NS_PER_S), (long)(until_ns % NS_PER_S)};
    while (sem_timedwait(&never, &until) != 0 && errno == EINTR)
        ;
}

struct leaf {
    leaf_function *run;
    const char *name, *state;
};

static const struct leaf leaves[] = {{spin_leaf, "spin_leaf", "running"},
                                     {sleep_leaf, "sleep_leaf", "blocked"},
                                     {futex_leaf, "futex_leaf", "blocked"}};
#define LEAVES (sizeof leaves / sizeof leaves[0])

// The leaf at the end of whatever is called now.
static leaf_function *volatile leaf = spin_leaf;

OPAQUE static uint64_t call_leaf(uint64_t depth) {
    leaf();
    return depth + 1;
}

// --- output ---

// `callers` is a list of names in JSON, as from `"f01","f00","main"`.
static inline void print_stack(const char *thread, const char *state, const char *innermost,
                               const char *callers) {
    printf("{\"event\":\"stack\",\"thread\":\"%s\",\"state\":\"%s\",\"functions\":[\"%s\",%s]}\n", thread,
           state, innermost, callers);
}

// One line for each leaf, called by `call_leaf`.
static inline void print_leaf_stacks(const char *thread, const char *callers) {
    char all[8192];
    snprintf(all, sizeof all, "\"call_leaf\",%s", callers);
    for (size_t i = 0; i < LEAVES; i++)
        print_stack(thread, leaves[i].state, leaves[i].name, all);
}

static inline void begin_alone(const struct run *run) {
    obey_sigterm(SIG_UNBLOCK);
    prctl(PR_SET_NAME, alias != NULL ? alias : run->scenario);
    print_start(NULL, 0, run);
    wait_for_go(run);
    atomic_store(&run_ends_at, now_ns() + (uint64_t)(run->seconds * NS_PER_S));
}

static inline void end_alone(const struct run *run) {
    print_end();
    wait_for_leave(run);
}
