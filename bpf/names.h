/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* --name: matching the names of threads and programs.
 *
 * A glob is a small automaton over bytes, built in user space (crates/meaning/src/glob/states.rs). State
 * i means that its first i characters are matched. The set of possible states is one word, a bit a state.
 * Names are matched here, where they appear, so that a process that lives for a millisecond is recorded
 * from its exec on. */
#pragma once

#include "settings.h"

/* Ends with a NUL. */
struct name_text {
    u8 byte[NAME_BYTES];
};

GLOBAL bool name_wanted(const struct name_text *name) {
    u32 glob, at;

    if (!name)
        return false;
    for (glob = 0; glob < MAX_NAME_GLOBS; glob++) {
        u64 states = 1;

        if (glob >= name_glob_count)
            break;
        for (at = 0; at < NAME_BYTES; at++) {
            u8 byte = name->byte[at];

            if (!byte)
                break;
            states = (states & name_globs[glob].takes[byte]) << 1 | (states & name_globs[glob].loops);
        }
        if (states & name_globs[glob].accepts)
            return true;
    }
    return false;
}

ALWAYS_INLINE bool text_wanted(const void *text) {
    struct name_text name = {};

    return bpf_probe_read_kernel_str(name.byte, sizeof(name.byte), text) > 0 && name_wanted(&name);
}

/* By the name of the executable file; kernel threads have none. */
ALWAYS_INLINE bool program_wanted(struct task_struct *task) {
    const unsigned char *name = BPF_CORE_READ(task, mm, exe_file, f_path.dentry, d_name.name);

    return name && text_wanted(name);
}

/* TARGET_NAMED_… or 0. `comm` is the thread's name, or the one that it is about to get. */
ALWAYS_INLINE u32 named(struct task_struct *task, const void *comm) {
    bool own = text_wanted(comm);
    bool process = task->pid == task->tgid ? own : text_wanted(task->group_leader->comm);

    if (process || program_wanted(task))
        return TARGET_NAMED_PROCESS;
    return own ? TARGET_NAMED_THREAD : 0;
}
