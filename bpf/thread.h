/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The record of a thread: written by the snapshot, and once more when it ends. */
#pragma once

#include "rings.h"
#include "thread_state.h"

/* Threads that have started to exit and have not left the CPU for the last time. */
u32 ending_threads = 0;

ALWAYS_INLINE void fill_thread_record(struct thread_record *record, struct task_struct *task,
                                      struct thread_state *t, u64 now) {
    record->type = RECORD_THREAD;
    record->key = t->key;
    record->tid = task->pid;
    record->tgid = task->tgid;
    record->ns_tid = t->ns_tid;
    record->ns_tgid = t->ns_tgid;
    record->start_boottime = task->start_boottime;
    record->observed_from = t->observed_from;
    record->now = now;
    record->since = t->since;
    record->run_ns = t->run_ns;
    record->wake_ns = t->wake_ns;
    record->boundary = t->boundary;
    record->exec_id = task->self_exec_id;
    record->activity = t->activity;
    record->reason = t->reason;
    record->kernel_thread = !!(task->flags & PF_KTHREAD);
    record->on_mask = t->on_mask;
    bpf_probe_read_kernel(record->comm, COMM_LEN, task->comm);
    bpf_probe_read_kernel(record->process, COMM_LEN, task->group_leader->comm);
    record->ledger = t->ledger;
    record->at_boundary = t->at_boundary;
}

ALWAYS_INLINE void end_thread(struct task_struct *task, struct thread_state *t, u64 now) {
    struct thread_record *record = reserve_end(sizeof(struct thread_record));

    t->activity = ACTIVITY_DEAD;
    if (t->ending)
        __sync_fetch_and_sub(&ending_threads, 1);
    if (!record)
        return;
    fill_thread_record(record, task, t, now);
    bpf_ringbuf_submit(record, ring_flags());
}
