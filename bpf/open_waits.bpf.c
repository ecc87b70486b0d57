// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Waits that have not ended. */
#include "fault.h"
#include "iterator.h"
#include "other_thread.h"
#include "peer.h"
#include "stack_policy.h"
#include "stall.h"
#include "wait_place.h"

/* The word of a wait that began before the recording did is read now. */
ALWAYS_INLINE void note_open_word(struct task_struct *task, struct thread_state *t,
                                  struct stall_record *stall) {
    if (t->word_known) {
        stall->word = t->word;
        stall->word_definition = t->word_definition;
    } else if (!read_word_of(task, &stall->word, &stall->word_definition)) {
        return;
    }
    stall->flags |= STALL_WORD;
}

/* The place of a voluntary wait, as its switch-in will number it; 0: not known yet. */
ALWAYS_INLINE u64 open_place(struct task_struct *task, struct thread_state *t, struct thread_state *seen,
                             struct stall_record *stall) {
    if (seen == t)
        return t->place;
    seen->word_known = stall->flags & STALL_WORD;
    seen->word = stall->word;
    return place_of(task, seen, seen->syscall);
}

GLOBAL int clear_stall(struct stall_record *stall) {
    if (stall)
        __builtin_memset(stall, 0, sizeof(*stall));
    return 0;
}

/* Writes a record of the thread's wait if it is older than `open_after_ns` and has none yet. False: it has
 * none now. While the recording counts, the record has both stacks, the other end, the word and the trace. A
 * thread may have gone on since the counting stopped, and all of these would be another wait's. */
ALWAYS_INLINE bool write_open_wait(struct bpf_iter__task *ctx, struct task_struct *task,
                                   struct iter_scratch *scratch) {
    struct stall_record *stall = &scratch->stall;
    struct thread_state *t = state_of(task);
    struct thread_state *seen = t;
    u64 switches = switches_of(task);
    u64 now = bpf_ktime_get_ns();
    u64 since;
    u32 owner;

    if (!t || t->activity == ACTIVITY_DEAD)
        return false;
    since = t->since;
    if (since < armed_at)
        since = t->observed_from > armed_at ? t->observed_from : armed_at;
    if (since > now || now - since < open_after_ns || t->open_reported == since)
        return false;
    if (t->since < armed_at) {
        seen = &scratch->guess;
        seen->key = t->key;
        seen->since = since;
        seen->wake_ns = 0;
        seen->run_ns = seen->since;
        seen->word_known = false;
        seen->asked = ASKED_UNKNOWN;
        seen->polled = POLLED_NOTHING;
        guess_activity((struct bpf_iter__task *)ctx, task, seen);
    }
    if (seen->activity == ACTIVITY_RUNNING)
        return false;
    /* With 0 this is a look at who sleeps, and no report. */
    if (open_after_ns)
        t->open_reported = seen->since;
    owner = settle_lock(task, seen, seen != t);
    clear_stall(stall);
    stall->type = RECORD_OPEN;
    stall->key = t->key;
    stall->start = seen->since;
    stall->end = now;
    stall->cpu = task->thread_info.cpu;
    stall->priority = task->prio;
    stall->reason = seen->reason;
    stall->syscall = seen->activity == ACTIVITY_BLOCKED ? seen->syscall : -1;
    if (seen->activity != ACTIVITY_BLOCKED) {
        stall->flags = STALL_PREEMPTED;
        if (seen->activity == ACTIVITY_NEW)
            stall->flags |= STALL_NEW;
        stall->runnable_ns = now - seen->since;
    } else if (seen->wake_ns > seen->run_ns) {
        stall->flags = STALL_WOKEN;
        stall->runnable_ns = now - (seen->wake_ns > seen->since ? seen->wake_ns : seen->since);
        stall->waker.tid = seen->waker_tid;
        stall->waker.tgid = seen->waker_tgid;
    }
    if (seen == t && t->faulting) {
        stall->start = t->fault.start;
        stall->blocked_ns = t->fault.blocked + (now - t->since - stall->runnable_ns);
        stall->runnable_ns += t->fault.runnable;
        note_facts(task, t, stall);
        if (t->activity == ACTIVITY_BLOCKED && t->kernel_lock)
            name_kernel_owner(stall, &t->kernel_owner);
    } else if (seen->activity == ACTIVITY_BLOCKED && waits_for_futex(seen)) {
        stall->flags |= STALL_LOCK;
        stall->lock_address = seen->lock_address;
        stall->lock_owner = owner;
        if (owner)
            stall->flags |= STALL_OWNER;
        else
            stall->place = seen->two_site;
    } else if (seen == t && t->activity == ACTIVITY_BLOCKED && t->kernel_lock) {
        name_kernel_owner(stall, &t->kernel_owner);
    } else if (seen != t && seen->activity == ACTIVITY_BLOCKED) {
        if (find_kernel_owner(task, &stall->kernel_owner))
            stall->flags |= STALL_KERNEL_OWNER;
    }
    bpf_probe_read_kernel(stall->comm, COMM_LEN, task->comm);
    if (!armed(now))
        goto write;
    if (seen->activity == ACTIVITY_BLOCKED && !(seen == t && t->faulting))
        note_open_word(task, seen, stall);
    if (seen->activity == ACTIVITY_BLOCKED && is_voluntary(seen->reason))
        stall->place = open_place(task, t, seen, stall);
    if (stall->syscall >= 0 && has_peer(seen) && !(seen == t && t->faulting))
        note_peer(task, stall, seen);
    stall->kernel_stack = kernel_stack_of(task, &scratch->stack.stack);
    stall->user_stack = user_stack_of(task, &scratch->stack);
    stall->flags |= read_trace_of(task, &stall->trace, switches);
    if (task->on_cpu || switches_of(task) != switches)
        return true;
write:
    bpf_seq_write(ctx->meta->seq, stall, sizeof(*stall));
    return true;
}

GLOBAL int seems_asleep_for_lock(struct thread_state *t) {
    return t && t->two_site && t->since >= armed_at && t->activity == ACTIVITY_BLOCKED &&
           waits_for_futex(t) && t->wake_ns <= t->run_ns;
}

/* What a thread that sleeps waits for may be known by now: its word has gone on without it, or user space
 * knows the functions. */
NOINLINE int settle_sleeper(struct task_struct *task) {
    struct thread_state *t;

    if (!task)
        return 0;
    t = state_of(task);
    if (t && seems_asleep_for_lock(t))
        settle_two(task, t);
    return 0;
}

/* Writes the waits that have not ended. A thread that never continues has no switch-in at which to take its
 * stacks. */
SEC("iter.s/task")
int open_waits(struct bpf_iter__task *ctx) {
    struct task_struct *task = ctx->task;
    struct iter_scratch *scratch = get_iter_scratch();

    if (!task || !task->pid || !scratch)
        return 0;
    /* Before its record, which says what it waits for. */
    settle_sleeper(task);
    if (!write_open_wait(ctx, task, scratch))
        end_long_read(ctx, sizeof(struct stall_record));
    return 0;
}
