/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Words in memory that say what a thread waits for: PostgreSQL's wait event, or one of the user's own engine.
 *
 * User space finds the address, from the exported symbol. The word is read when the thread leaves its CPU: it
 * is then current, and its memory readable if it is present. */
#pragma once

#include "include/unwind.h"
#include "thread_state.h"

/* tgid → where its word is. Written by user space, and here at a fork, since the child's memory is a copy of
 * its parent's. Deleted by user space, and here when the leader exits. Full: the waits of such processes have
 * no word. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_PROCESSES);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, u32);
    __type(value, struct wait_word);
} wait_words SEC(".maps");

/* 0 → the version of `wait_words`; 0 while no process has a word. User space writes another one after each
 * change, so that threads look into the map only then. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, u32);
} wait_words_version SEC(".maps");

NOINLINE int find_wait_word(struct task_struct *task, struct thread_state *t, u32 version) {
    struct wait_word *found;
    u32 tgid;

    if (!task || !t)
        return 0;
    tgid = task->tgid;
    found = bpf_map_lookup_elem(&wait_words, &tgid);
    t->words_seen = version;
    t->word_at.address = 0;
    if (found)
        t->word_at = *found;
    return 0;
}

/* 1 to 8, in a form that the verifier follows whatever the compiler makes of it. */
ALWAYS_INLINE u32 word_bytes(const struct wait_word *at) { return ((at->bytes - 1) & 7) + 1; }

/* A word that is not present, or not mapped, is unknown: never zero. */
NOINLINE int read_wait_word(struct task_struct *task, struct thread_state *t) {
    u64 address, word = 0;

    if (!task || !t || t->word_at.exec_id != (u32)task->self_exec_id)
        return 0;
    address = t->word_at.address;
    if (t->word_at.is_pointer && bpf_probe_read_user(&address, sizeof(address), (void *)address))
        return 0;
    if (bpf_probe_read_user(&word, word_bytes(&t->word_at), (void *)address))
        return 0;
    t->word = word;
    t->word_known = true;
    return 0;
}

/* `task` is current, and goes to sleep. */
ALWAYS_INLINE void note_wait_word(struct task_struct *task, struct thread_state *t) {
    u32 zero = 0;
    u32 *version = bpf_map_lookup_elem(&wait_words_version, &zero);

    t->word_known = false;
    if (!version)
        return;
    if (unlikely(t->words_seen != *version))
        find_wait_word(task, t, *version);
    if (unlikely(t->word_at.address))
        read_wait_word(task, t);
}

ALWAYS_INLINE void inherit_wait_word(struct task_struct *parent, struct task_struct *child) {
    u32 from = parent->tgid, to = child->tgid;
    struct wait_word *word = bpf_map_lookup_elem(&wait_words, &from);

    if (word && word->exec_id == (u32)parent->self_exec_id)
        bpf_map_update_elem(&wait_words, &to, word, BPF_ANY);
}

/* Another process may get the number next. */
ALWAYS_INLINE void forget_wait_word(struct task_struct *task) {
    u32 tgid = task->tgid;

    if ((u32)task->pid == tgid)
        bpf_map_delete_elem(&wait_words, &tgid);
}
