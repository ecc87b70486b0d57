/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Addresses in processes: of the word about their waits (wait_word.h), and of the variable with their traces
 * (trace_context.h). */
#pragma once

#include "include/unwind.h"
#include "thread_state.h"

/* tgid → where its words are. Written by user space, and here at a fork, since the child's memory is a copy
 * of its parent's. Deleted by user space, and here when the leader exits. Full: the threads of such processes
 * say nothing. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_PROCESSES);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, u32);
    __type(value, struct process_words);
} process_words SEC(".maps");

/* 0 → the version of `process_words`; 0 while no process has any. User space writes another one after each
 * change, so that threads look into the map only then. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, u32);
} process_words_version SEC(".maps");

NOINLINE int look_up_words(struct task_struct *task, struct thread_state *t, u32 version) {
    struct process_words *found;
    u32 tgid;

    if (!task || !t)
        return 0;
    tgid = task->tgid;
    found = bpf_map_lookup_elem(&process_words, &tgid);
    t->words_seen = version;
    t->words.wait = 0;
    t->words.trace = TRACE_NONE;
    if (found)
        t->words = *found;
    return 0;
}

/* Looks again where the words of the thread's process are, if that has changed. */
ALWAYS_INLINE void follow_words(struct task_struct *task, struct thread_state *t) {
    u32 zero = 0;
    u32 *version = bpf_map_lookup_elem(&process_words_version, &zero);

    if (version && unlikely(t->words_seen != *version))
        look_up_words(task, t, *version);
}

ALWAYS_INLINE void inherit_words(struct task_struct *parent, struct task_struct *child) {
    u32 from = parent->tgid, to = child->tgid;
    struct process_words *words = bpf_map_lookup_elem(&process_words, &from);

    if (words && words->exec_id == (u32)parent->self_exec_id)
        bpf_map_update_elem(&process_words, &to, words, BPF_ANY);
}

/* Another process may get the number next. */
ALWAYS_INLINE void forget_words(struct task_struct *task) {
    u32 tgid = task->tgid;

    if ((u32)task->pid == tgid)
        bpf_map_delete_elem(&process_words, &tgid);
}
