// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Threads start, end, are renamed, exec and change their cgroup: they join the recording or leave it. */
#include "join.h"
#include "mark.h"
#include "names.h"
#include "process_words.h"
#include "seconds.h"
#include "tables.h"
#include "targets.h"
#include "thread.h"

/* A process got a name that is asked for, or moved into the recorded cgroup: create_states must run again.
 * User space clears it. */
volatile u32 rescan_wanted = 0;

SEC("tp_btf/task_newtask")
int BPF_PROG(on_new_task, struct task_struct *task, u64 clone_flags) {
    u64 now = bpf_ktime_get_ns();
    struct task_struct *parent = bpf_get_current_task_btf();
    struct thread_state *t = state_of(parent);
    u32 matches = inherited(t, clone_flags);

    if (!(clone_flags & CLONE_THREAD)) {
        inherit_mappings(parent, task);
        inherit_words(parent, task);
    }
    /* The first scan may not have reached the parent yet. */
    if (finding_targets)
        matches |= targets_at_start(task);
    if (name_glob_count)
        matches |= named(task, task->comm);
    matches |= targets_by_group(task);
    if (!matches && !every_thread)
        return 0;
    t = create_state(task);
    if (!t)
        return 0;
    t->observed_from = now;
    t->matches = matches;
    if (!armed(now))
        return 0;
    t->since = now;
    t->run_ns = now;
    t->activity = ACTIVITY_NEW;
    t->nvcsw_seen = task->nvcsw;
    return 0;
}

/* From here to its last switch a thread is no longer listed, and a thread that waits for its process
 * continues. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task) {
    struct thread_state *t = state_of(task);

    forget_words(task);
    forget_mark_slot(task, t);
    if (t && !t->ending && armed(bpf_ktime_get_ns())) {
        t->ending = 1;
        __sync_fetch_and_add(&ending_threads, 1);
    }
    return 0;
}

/* A process that moves with all of its threads reports only `task`. */
SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(on_cgroup_attach, struct cgroup *group, const char *path, struct task_struct *task,
             bool whole_process) {
    if (!group_holds(group))
        return 0;
    join(task, TARGET_GROUP);
    if (whole_process)
        rescan_wanted = 1;
    return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(on_rename, struct task_struct *task, const char *comm) {
    struct thread_state *t = state_of(task);
    u32 matches;

    if (t) {
        t->changed = 1;
        /* A program that another thread than the first one starts: the thread has the first one's number now.
         */
        t->ns_tid = innermost_number(BPF_CORE_READ(task, thread_pid));
    }
    if (!name_glob_count)
        return 0;
    matches = named(task, comm);
    if (!matches || (t && t->matches & matches))
        return 0;
    join(task, matches);
    if (matches == TARGET_NAMED_PROCESS)
        rescan_wanted = 1;
    return 0;
}

/* Emits the thread's last record and deletes its state, as if it had ended: the program that now runs in
 * it was not asked for. */
ALWAYS_INLINE void leave(struct task_struct *task, struct thread_state *t) {
    u64 now = bpf_ktime_get_ns();

    if (armed(now)) {
        if (t->since < armed_at)
            start_observing(t, task, ACTIVITY_RUNNING);
        roll(t, now);
        charge_until(t, now);
        end_thread(task, t, now);
    }
    bpf_task_storage_delete(&threads, task);
}

/* Runs when the new program is in place, before its first instruction. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task) {
    u32 matches = named(task, task->comm);
    struct thread_state *t;

    if (matches) {
        join(task, matches);
        return 0;
    }
    t = state_of(task);
    if (!t || !(t->matches & (TARGET_NAMED_THREAD | TARGET_NAMED_PROCESS)))
        return 0;
    t->matches &= ~(TARGET_NAMED_THREAD | TARGET_NAMED_PROCESS);
    if (!t->matches)
        leave(task, t);
    return 0;
}
