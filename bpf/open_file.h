/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The file behind a descriptor. */
#pragma once

#include "bpf_api.h"

/* The file of a descriptor of the task; NULL: there is none. All is read by a helper: for each pointer that a
 * program follows from a task by itself the verifier searches all types of the kernel by name, several times.
 */
ALWAYS_INLINE struct file *file_of(struct task_struct *task, u64 fd) {
    struct fdtable *table = BPF_CORE_READ(task, files, fdt);
    struct file **files;
    struct file *file = NULL;

    if (!table || fd >= BPF_CORE_READ(table, max_fds))
        return NULL;
    files = BPF_CORE_READ(table, fd);
    if (bpf_probe_read_kernel(&file, sizeof(file), &files[fd]))
        return NULL;
    return file;
}

/* The same of the current task, at each switch: its reads cost nothing, and the verifier walks through them
 * once. */
GLOBAL u64 own_file(u64 fd) {
    struct task_struct *task = bpf_get_current_task_btf();
    struct fdtable *table;
    u64 file = 0;

    if (!task->files)
        return 0;
    table = task->files->fdt;
    if (!table || fd >= table->max_fds)
        return 0;
    bpf_probe_read_kernel(&file, sizeof(file), &table->fd[fd]);
    return file;
}
