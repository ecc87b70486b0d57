/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Words in memory that say what a thread waits for: PostgreSQL's wait event, or one of the user's own engine.
 *
 * User space finds the address, from the exported symbol. The word is read when the thread leaves its CPU: it
 * is then current, and its memory readable if it is present. */
#pragma once

#include "process_words.h"

/* 1 to 8, in a form that the verifier follows whatever the compiler makes of it. */
ALWAYS_INLINE u32 word_bytes(const struct process_words *words) { return ((words->bytes - 1) & 7) + 1; }

/* A word that is not present, or not mapped, is unknown: never zero. */
NOINLINE int read_wait_word(struct task_struct *task, struct thread_state *t) {
    u64 address, word = 0;

    if (!task || !t || t->words.exec_id != (u32)task->self_exec_id)
        return 0;
    address = t->words.wait;
    if (t->words.is_pointer && bpf_probe_read_user(&address, sizeof(address), (void *)address))
        return 0;
    if (bpf_probe_read_user(&word, word_bytes(&t->words), (void *)address))
        return 0;
    t->word = word;
    t->word_definition = t->words.definition;
    t->word_known = true;
    return 0;
}

/* `task` is current, and goes to sleep. */
ALWAYS_INLINE void note_wait_word(struct task_struct *task, struct thread_state *t) {
    t->word_known = false;
    if (unlikely(t->words.wait))
        read_wait_word(task, t);
}
