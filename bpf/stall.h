/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Stall records: one wait that is emitted by itself. */
#pragma once

#include "interval.h"
#include "peer.h"
#include "ran_instead.h"
#include "rings.h"
#include "stack_policy.h"
#include "timeout.h"
#include "trace_context.h"
#include "wait_place.h"
#include "waited_file.h"

ALWAYS_INLINE void read_name(u8 *name, u64 task_address, u32 tid) {
    struct task_struct *task = (struct task_struct *)task_address;

    __builtin_memset(name, 0, COMM_LEN);
    if ((u32)BPF_CORE_READ(task, pid) == tid)
        bpf_core_read(name, COMM_LEN, &task->comm);
}

ALWAYS_INLINE void name_kernel_owner(struct stall_record *stall, const struct kernel_owner *owner) {
    if (!owner->tid)
        return;
    stall->flags |= STALL_KERNEL_OWNER;
    stall->kernel_owner.tid = owner->tid;
    stall->kernel_owner.tgid = owner->tgid;
    read_name(stall->kernel_owner.comm, owner->task, owner->tid);
}

/* The timeout is in user memory. It is read where `task` is current: at its switch-out, or now. */
ALWAYS_INLINE void note_asked(struct stall_record *stall, struct task_struct *task, struct thread_state *t,
                              u64 start) {
    if (stacks_at_switch_out) {
        stall->asked_ns = t->out_asked_ns;
        stall->slack_ns = t->out_slack_ns;
        stall->flags |= t->out_asked ? STALL_ASKED : 0;
    } else if (t->syscall >= 0 && asked_timeout(task, t, start, &stall->asked_ns, &stall->slack_ns)) {
        stall->flags |= STALL_ASKED;
    }
}

/* A record with the fields that off-CPU intervals and page faults share; all other fields are empty. */
ALWAYS_INLINE struct stall_record *start_stall(struct task_struct *task, struct thread_state *t,
                                               struct interval *interval) {
    struct stall_record *stall = reserve(sizeof(struct stall_record));

    if (!stall)
        return NULL;
    stall->type = RECORD_STALL;
    stall->key = t->key;
    stall->start = interval->start;
    stall->end = interval->end;
    stall->runnable_ns = interval->runnable;
    stall->user_stack = interval->user_stack;
    stall->kernel_stack = interval->kernel_stack;
    stall->cpu = interval->cpu;
    stall->flags = 0;
    stall->reason = 0;
    stall->syscall = -1;
    stall->blocked_ns = 0;
    stall->rans = 0;
    stall->asked_ns = 0;
    stall->slack_ns = 0;
    stall->word = 0;
    stall->word_definition = 0;
    stall->priority = task->prio;
    stall->lock_address = 0;
    stall->lock_owner = 0;
    stall->place = 0;
    stall->waker_user_stack = 0;
    stall->waker_kernel_stack = 0;
    stall->waker.tid = 0;
    stall->waker.tgid = 0;
    bpf_probe_read_kernel(stall->comm, COMM_LEN, task->comm);
    __builtin_memset(stall->waker.comm, 0, COMM_LEN);
    if (interval->woken) {
        stall->flags |= STALL_WOKEN;
        stall->waker.tid = t->waker_tid;
        stall->waker.tgid = t->waker_tgid;
        stall->waker_user_stack = t->waker_user_stack;
        stall->waker_kernel_stack = t->waker_kernel_stack;
        read_name(stall->waker.comm, t->waker_task, t->waker_tid);
    }
    __builtin_memset(&stall->fault, 0, sizeof(stall->fault));
    __builtin_memset(&stall->peer, 0, sizeof(stall->peer));
    __builtin_memset(&stall->kernel_owner, 0, sizeof(stall->kernel_owner));
    stall->trace = t->trace;
    if (t->trace_known)
        stall->flags |= STALL_TRACE;
    return stall;
}

NOINLINE int emit_stall(struct task_struct *task, struct thread_state *t, struct interval *interval) {
    struct stall_record *stall;
    u64 runnable_from;
    u32 cpu;

    if (!task || !t || !interval)
        return 0;
    if (!stacks_at_switch_out)
        note_trace(task, t);
    stall = start_stall(task, t, interval);
    if (!stall)
        return 0;
    stall->reason = t->reason;
    if (interval->preempted) {
        stall->flags |= interval->is_new ? STALL_PREEMPTED | STALL_NEW : STALL_PREEMPTED;
    } else {
        stall->syscall = t->syscall;
        if (is_voluntary(t->reason))
            stall->place = t->place;
        if (off_cpu_ns(interval) < min_stall_ns)
            stall->flags |= STALL_BRIEF;
        if (waits_for_futex(t)) {
            stall->flags |= STALL_LOCK;
            stall->lock_address = t->lock_address;
            if (t->owner_known) {
                stall->flags |= STALL_OWNER;
                if (t->owner_known == OWNER_IF_IT_WOKE)
                    stall->flags |= STALL_OWNER_IF_IT_WOKE;
                stall->lock_owner = t->lock_owner;
            } else {
                stall->place = t->two_site;
            }
        }
        if (t->kernel_lock)
            name_kernel_owner(stall, &t->kernel_owner);
        if (t->word_known) {
            stall->flags |= STALL_WORD;
            stall->word = t->word;
            stall->word_definition = t->word_definition;
        }
        note_asked(stall, task, t, interval->start);
        if (t->reason == REASON_DISK || t->reason == REASON_OTHER)
            note_waited_file(task, stall, t->syscall);
        if (has_peer(t))
            note_peer(task, stall, t);
    }
    /* The threads that had the CPU it waited for: the CPU on which it continues; before a migration, the
     * CPU on which it was. */
    runnable_from = interval->end - interval->runnable;
    cpu = interval->cpu;
    if (t->moved_ns > runnable_from) {
        collect_ran(stall, cpu, t->moved_ns, interval->end);
        collect_ran(stall, t->moved_from, runnable_from, t->moved_ns);
    } else {
        collect_ran(stall, cpu, runnable_from, interval->end);
    }
    bpf_ringbuf_submit(stall, ring_flags());
    return 0;
}
