// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* All threads, from the task iterator: at start-up, and once a second. */
#include "iterator.h"
#include "join.h"
#include "names.h"
#include "ran_instead.h"
#include "targets.h"
#include "thread.h"

/* Creates the state of every thread that is to be recorded. It runs before arming. It can run again at any
 * time, for threads that join without an event of their own. A thread that has ended and is not reaped has
 * none. */
SEC("iter/task")
int create_states(struct bpf_iter__task *ctx) {
    struct task_struct *task = ctx->task;
    u32 matches = 0;

    if (!task || !task->pid || (task->__state & TASK_DEAD))
        return 0;
    if (!recorder_tgid)
        recorder_tgid = bpf_get_current_pid_tgid() >> 32;
    if (finding_targets)
        matches = targets_at_start(task);
    if (name_glob_count)
        matches |= named(task, task->comm);
    matches |= targets_by_group(task);
    if (matches || every_thread)
        join(task, matches);
    return 0;
}

/* Writes a record of every thread that has changed since the last snapshot. */
SEC("iter/task")
int snapshot(struct bpf_iter__task *ctx) {
    struct task_struct *task = ctx->task;
    struct iter_scratch *scratch = get_iter_scratch();
    struct thread_state *t;
    u64 from;

    if (!task || !task->pid || !scratch)
        return 0;
    t = state_of(task);
    if (!t || t->activity == ACTIVITY_DEAD)
        return 0;
    if (t->since >= armed_at) {
        bool unchanged =
            t->activity != ACTIVITY_RUNNING && t->since < last_snapshot && t->wake_ns < last_snapshot;

        if (unchanged && !t->changed)
            return 0;
        t->changed = 0;
        fill_thread_record(&scratch->thread, task, t, bpf_ktime_get_ns());
    } else {
        /* No event yet. Nothing in the state is changed: its first event may be happening on another CPU. */
        scratch->guess.key = t->key;
        scratch->guess.ns_tid = t->ns_tid;
        scratch->guess.ns_tgid = t->ns_tgid;
        scratch->guess.on_mask = t->on_mask || cpu_wanted(task->thread_info.cpu);
        /* It was armed before: the sums of that time stay. */
        scratch->guess.ledger = t->ledger;
        from = armed_at;
        scratch->guess.since = t->observed_from > from ? t->observed_from : from;
        scratch->guess.observed_from = scratch->guess.since;
        guess_activity(ctx, task, &scratch->guess);
        fill_thread_record(&scratch->thread, task, &scratch->guess, bpf_ktime_get_ns());
    }
    /* A buffer without space: the record is written again with the next read. */
    if (bpf_seq_write(ctx->meta->seq, &scratch->thread, sizeof(scratch->thread)))
        t->changed = 1;
    return 0;
}
