/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What an iterator reads of a thread that is not current: its stacks, the owner of its lock, and its word.
 * Only sleepable programs may call the helper that reads another thread's memory. */
#pragma once

#include "futex.h"
#include "stack.h"
#include "trace_context.h"
#include "wait_word.h"

/* Changes when the thread gets a CPU and when it leaves one. */
ALWAYS_INLINE u64 switches_of(struct task_struct *task) {
    return task->sched_info.pcount + task->nvcsw + task->nivcsw;
}

ALWAYS_INLINE u64 kernel_stack_of(struct task_struct *task, struct stack_record *stack) {
    return keep_read_stack(stack, bpf_get_task_stack(task, stack->address, MAX_KERNEL_FRAMES * 8, 0), false);
}

/* A function of its own: only sleepable programs may contain it. */
static long other_walk_step(u32 depth, struct walk_loop *loop) {
    return step_in_scratch(depth, loop->scratch, loop->of);
}

/* The user stack, from the saved registers; 0 for kernel threads. */
ALWAYS_INLINE u64 user_stack_of(struct task_struct *task, struct stack_scratch *scratch) {
    struct walk_loop loop = {.scratch = scratch, .of = task};

    if (!start_walk(scratch, task))
        return 0;
    bpf_loop(MAX_FRAMES, other_walk_step, &loop, 0);
    scratch->stack.end = scratch->walk.end;
    return keep_stack(&scratch->stack, scratch->walk.hash);
}

/* The word says `word` now. What is found out holds for good, since a snapshot reads no memory of threads.
 * The next snapshot has to have the thread again, and so have the next open waits. */
GLOBAL int keep_number(struct thread_state *t, u32 word) {
    struct wait_place known = {.verdict = PLACE_NO_LOCK};
    u64 site;

    if (!t || (!is_number(t) && word <= MUTEX_CONTENDED))
        return 0;
    site = t->two_site;
    bpf_map_update_elem(&places, &site, &known, BPF_ANY);
    wait_for_number(t);
    t->changed = 1;
    t->open_reported = 0;
    return 0;
}

/* Looks whether a wait whose value alone says that it is for a lock is for none, with the word as it is now.
 */
NOINLINE int settle_two(struct task_struct *task, struct thread_state *t) {
    u32 word = 0;

    if (!task || !t || (!t->two_site && t->futex != FUTEX_TWO))
        return 0;
    bpf_copy_from_user_task(&word, sizeof(word), (void *)t->lock_address, task, 0);
    keep_number(t, word);
    return 0;
}

/* The owner of the lock that `task` waits for: seen at switch-out, or read now. 0: none is known. Of a
 * `guess` (iterator.h), whose memory was not looked at when the wait began, also whether it is for a lock. */
ALWAYS_INLINE u32 settle_lock(struct task_struct *task, struct thread_state *t, bool guess) {
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
    struct futex_lock lock;
    bool locked;

    if (t->activity != ACTIVITY_BLOCKED || (t->reason != REASON_WAIT && t->reason != REASON_LOCK) ||
        !t->futex)
        return 0;
    if (t->owner_known == OWNER_KNOWN)
        return t->lock_owner;
    locked = is_futex_lock(t->futex, &lock, regs, task);
    if (guess) {
        t->reason = locked ? REASON_LOCK : REASON_WAIT;
        t->lock_address = lock.address;
        if (locked && !lock.owner)
            settle_two(task, t);
    }
    return locked && is_number_of_this_process(task, regs->si) ? lock.owner : 0;
}

/* NULL: the process image has none. */
ALWAYS_INLINE const struct process_words *words_of(struct task_struct *task) {
    u32 tgid = task->tgid;
    struct process_words *words = bpf_map_lookup_elem(&process_words, &tgid);

    return words && words->exec_id == (u32)task->self_exec_id ? words : NULL;
}

/* Reads the trace that the thread works for. STALL_TRACE, or 0: none is known. One that has run since
 * `switches` was read may have been changing it. */
NOINLINE u32 read_trace_of(struct task_struct *task, struct trace_ids *ids, u64 switches) {
    const struct process_words *words;

    if (!task || !ids || is_kernel_only(task))
        return 0;
    words = words_of(task);
    if (!words || !words->trace || !read_trace(words, BPF_CORE_READ(task, thread.fsbase), ids, task))
        return 0;
    return !task->on_cpu && switches_of(task) == switches ? STALL_TRACE : 0;
}

/* What the word of the thread's process says now. False where it has none, or the word is not mapped. */
ALWAYS_INLINE bool read_word_of(struct task_struct *task, u64 *word, u32 *definition) {
    const struct process_words *at = words_of(task);
    u64 address, value = 0;

    if (!at || !at->wait)
        return false;
    address = at->wait;
    if (at->is_pointer && bpf_copy_from_user_task(&address, sizeof(address), (void *)address, task, 0))
        return false;
    if (bpf_copy_from_user_task(&value, word_bytes(at), (void *)address, task, 0))
        return false;
    *word = value;
    *definition = at->definition;
    return true;
}
