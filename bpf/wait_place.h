/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Places of voluntary waits, and what is known of them.
 *
 * By its reason alone, a poll is an idle server's wait for requests. But databases and language runtimes
 * wait for their locks in the same way. User space learns which place is which. */
#pragma once

#include "settings.h"
#include "stack_hash.h"
#include "syscall.h"
#include "thread_state.h"

/* Number of the place → verdict. User space writes verdicts, the thread of the place counts. Full: the place
 * that was not used for the longest time is unknown again. The open waits write PLACE_NO_LOCK, too. */
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, MAX_PLACES);
    __type(key, u64);
    __type(value, struct wait_place);
} places SEC(".maps");

/* How many more waits may be emitted because their place is unknown. User space sets it each second: many
 * short-lived threads have a new place each. Concurrent decrements can make it negative. */
volatile s64 first_waits_left = 0;

/* The place where `task` waits: its program, the system call that it is in, the code and the depth of the
 * stack that made the call, and the process's own word for the wait. Threads share no place, so that a place
 * has one writer. */
ALWAYS_INLINE u64 place_of(struct task_struct *task, struct thread_state *t, s32 syscall) {
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
    u64 place = mix(HASH_STEP, ((u64)t->key << 32) | (u32)syscall);

    place = mix(place, (u32)task->self_exec_id);
    if (!is_kernel_only(task))
        place = mix(mix(place, regs->ip), regs->sp);
    if (t->word_known)
        place = mix(place, t->word);
    return place ?: 1;
}

ALWAYS_INLINE bool take_first_wait(void) {
    return first_waits_left > 0 && __sync_fetch_and_sub(&first_waits_left, 1) > 0;
}

/* Whether this is the first wait of its place, and may be emitted. */
ALWAYS_INLINE bool meet_place(u64 number) {
    struct wait_place first = {.sent = 1, .verdict = PLACE_UNKNOWN};

    if (!take_first_wait())
        return false;
    bpf_map_update_elem(&places, &number, &first, BPF_NOEXIST);
    return true;
}

/* Whether a voluntary wait that is too short for a stall is emitted so that user space learns of its place.
 */
GLOBAL int place_is_new(struct thread_state *t) {
    u64 number;

    if (!t)
        return 0;
    number = t->place;
    return number && !bpf_map_lookup_elem(&places, &number) && meet_place(number);
}

/* Whether a voluntary wait that is shorter than the threshold of such waits is emitted because of its place.
 * Its length is at least the threshold of other stalls. */
GLOBAL int place_is_emitted(struct thread_state *t) {
    struct wait_place *place;
    u64 number;

    if (!t)
        return 0;
    number = t->place;
    place = bpf_map_lookup_elem(&places, &number);
    if (!place)
        return meet_place(number);
    if (place->verdict != PLACE_UNKNOWN && place->verdict != PLACE_IDLE_ASKED)
        return place->verdict == PLACE_NOT_IDLE;
    if (place->sent >= FIRST_WAITS || !take_first_wait())
        return 0;
    place->sent++;
    return 1;
}
