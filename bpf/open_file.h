/* The file behind a descriptor. */
#pragma once

#include "bpf_api.h"

/* The file of a descriptor of the task; NULL: there is none. */
ALWAYS_INLINE struct file *file_of(struct task_struct *task, u64 fd) {
    struct fdtable *table;
    struct file *file = NULL;

    if (!task->files)
        return NULL;
    table = task->files->fdt;
    if (!table || fd >= table->max_fds)
        return NULL;
    if (bpf_probe_read_kernel(&file, sizeof(file), &table->fd[fd]))
        return NULL;
    return file;
}
