/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The spans of --span that a thread is in. */
#pragma once

#include "bpf_api.h"
#include "include/records.h"

struct open_span {
    u64 start;               /* 0: not in one */
    u64 sp;                  /* the stack pointer there */
    u64 caller;              /* of a function: the address that it returns to */
    struct span_states base; /* the ledger at its start */
};

struct open_spans {
    u32 exec_id; /* of the image of its process that began them */
    u32 count;
    struct open_span span[MAX_SPAN_PROBES];
};

/* --span: there are probes. */
const volatile bool probes_spans = false;

/* task → its open spans. Created by its first span, deleted by the kernel with the task. Without memory for
 * it the span is LOSS_PROBED_SPANS. */
struct {
    __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, struct open_spans);
} open_spans SEC(".maps");

/* Whether the thread, which is current, is in a span of --span. */
ALWAYS_INLINE bool is_probed(struct task_struct *task) {
    struct open_spans *spans;

    if (likely(!probes_spans))
        return false;
    spans = bpf_task_storage_get(&open_spans, task, NULL, 0);
    return spans && spans->count && spans->exec_id == (u32)task->self_exec_id;
}
