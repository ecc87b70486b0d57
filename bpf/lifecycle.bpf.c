/* Threads come, are renamed, exec and are looked at: the only places where a thread's state is created. */
#include "fault.h"
#include "names.h"
#include "targets.h"
#include "thread.h"

/* A task's number in its own pid namespace: the last of them. Where one begins is computed from the kernel's
 * own size of one: the length of an array's elements is not relocated. */
ALWAYS_INLINE u32 innermost_number(struct pid *pid) {
    u32 level = BPF_CORE_READ(pid, level);
    u64 numbers = (u64)pid + bpf_core_field_offset(struct pid, numbers);
    struct upid *last = (struct upid *)(numbers + level * bpf_core_type_size(struct upid));

    return BPF_CORE_READ(last, nr);
}

/* Deletes nothing: the state goes with the task. Returns NULL where memory is short, which is counted. */
ALWAYS_INLINE struct thread_state *create_state(struct task_struct *task) {
    struct thread_state *t = bpf_task_storage_get(&threads, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

    if (!t) {
        lose(LOSS_THREADS_FULL);
        return NULL;
    }
    if (t->key)
        return t;
    t->key = __sync_fetch_and_add(&next_thread_key, 1) + 1;
    t->ns_tid = innermost_number(BPF_CORE_READ(task, thread_pid));
    t->ns_tgid = innermost_number(BPF_CORE_READ(task, group_leader, thread_pid));
    t->syscall = -1;
    t->exec_seen = task->se.sum_exec_runtime;
    t->delay_seen = task->sched_info.run_delay;
    if (!limit_cpus)
        t->on_mask = 1;
    return t;
}

/* The thread is recorded from now on, whatever it does: its next event, or the snapshot, tells. */
ALWAYS_INLINE void join(struct task_struct *task, u32 why) {
    struct thread_state *t = state_of(task);

    if (!t) {
        t = create_state(task);
        if (!t)
            return;
        t->observed_from = bpf_ktime_get_ns();
    }
    /* Others may find a reason for the same thread meanwhile. */
    __sync_fetch_and_or(&t->why, why);
}

/* ---- start-up and snapshots ---- */

/* Creates the state of every thread that is to be recorded. Runs before arming and, for threads that come to
 * be recorded without doing anything themselves, may run again at any time. */
SEC("iter/task")
int create_states(struct bpf_iter__task *ctx) {
    struct task_struct *task = ctx->task;
    u32 why = 0;

    if (!task || !task->pid)
        return 0;
    if (finding_targets)
        why = targets_at_start(task);
    if (name_glob_count)
        why |= named(task, task->comm);
    why |= targets_by_group(task);
    if (why || every_thread)
        join(task, why);
    return 0;
}

/* What an unseen thread has been doing since arming, told from its state now. */
ALWAYS_INLINE void guess_activity(struct bpf_iter__task *ctx, struct task_struct *task,
                                  struct thread_state *t) {
    u32 state = task->__state;

    t->activity = ACTIVITY_BLOCKED;
    if (task->on_cpu)
        t->activity = ACTIVITY_RUNNING;
    else if (state == TASK_RUNNING)
        t->activity = ACTIVITY_PREEMPTED;
    else
        classify(ctx, NULL, t, task, state);
}

/* Where the iterators build what they write: one reader, one iterator at a time. */
struct iterator_room {
    struct thread_record thread;
    struct thread_state guess;
    struct stall_record stall;
    struct stack_room stack;
};

/* 0 → the room. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct iterator_room);
} iterator_rooms SEC(".maps");

ALWAYS_INLINE struct iterator_room *iterator_room(void) {
    u32 zero = 0;

    return bpf_map_lookup_elem(&iterator_rooms, &zero);
}

/* Writes a record of every thread with news since the last snapshot. */
SEC("iter/task")
int snapshot(struct bpf_iter__task *ctx) {
    struct task_struct *task = ctx->task;
    struct iterator_room *room = iterator_room();
    struct thread_state *t;
    u64 from;

    if (!task || !task->pid || !room)
        return 0;
    t = state_of(task);
    if (!t || t->activity == ACTIVITY_DEAD)
        return 0;
    if (t->since >= armed_at) {
        bool quiet =
            t->activity != ACTIVITY_RUNNING && t->since < last_snapshot && t->wake_ns < last_snapshot;

        if (quiet && !t->news)
            return 0;
        t->news = 0;
        fill_thread_record(&room->thread, task, t, bpf_ktime_get_ns());
    } else {
        /* No event yet. Nothing of it is changed: its first event may be happening on another CPU. */
        room->guess.key = t->key;
        room->guess.ns_tid = t->ns_tid;
        room->guess.ns_tgid = t->ns_tgid;
        room->guess.on_mask = t->on_mask || cpu_wanted(task->thread_info.cpu);
        /* Armed before: what was added up then stays. */
        room->guess.ledger = t->ledger;
        from = armed_at;
        room->guess.since = t->observed_from > from ? t->observed_from : from;
        room->guess.observed_from = room->guess.since;
        guess_activity(ctx, task, &room->guess);
        fill_thread_record(&room->thread, task, &room->guess, bpf_ktime_get_ns());
    }
    bpf_seq_write(ctx->meta->seq, &room->thread, sizeof(room->thread));
    return 0;
}

/* ---- waits that do not end ---- */

ALWAYS_INLINE u64 kernel_stack_of(struct task_struct *task, struct stack_record *room) {
    return keep_read_stack(room, bpf_get_task_stack(task, room->address, MAX_KERNEL_FRAMES * 8, 0), false);
}

/* Here because another thread's memory is read by a call that only sleepable programs may make. */
static long other_walk_step(u32 depth, struct walk_loop *loop) {
    return step_in_room(depth, loop->room, loop->of);
}

/* Another thread's user stack, from its saved registers; 0 for kernel threads. */
ALWAYS_INLINE u64 user_stack_of(struct task_struct *task, struct stack_room *room) {
    struct walk_loop loop = {.room = room, .of = task};

    if (!begin_walk(room, task))
        return 0;
    bpf_loop(MAX_FRAMES, other_walk_step, &loop, 0);
    room->stack.end = room->walk.end;
    return keep_stack(&room->stack, room->walk.hash);
}

/* Writes a record, with both stacks, of every wait older than `open_after_ns` that has none yet: a thread
 * that never comes back has no switch-in to take them. */
SEC("iter.s/task")
int open_waits(struct bpf_iter__task *ctx) {
    struct task_struct *task = ctx->task;
    struct iterator_room *room = iterator_room();
    struct stall_record *stall;
    struct thread_state *t;
    struct thread_state *seen;
    u64 now = bpf_ktime_get_ns();

    if (!task || !task->pid || !room)
        return 0;
    t = state_of(task);
    if (!t || t->activity == ACTIVITY_DEAD)
        return 0;
    seen = t;
    if (t->since < armed_at) {
        seen = &room->guess;
        seen->key = t->key;
        seen->since = t->observed_from > armed_at ? t->observed_from : armed_at;
        seen->wake_ns = 0;
        seen->run_ns = seen->since;
        guess_activity((struct bpf_iter__task *)ctx, task, seen);
    }
    if (seen->activity == ACTIVITY_RUNNING || seen->since > now || now - seen->since < open_after_ns)
        return 0;
    if (t->open_reported == seen->since)
        return 0;
    t->open_reported = seen->since;
    stall = &room->stall;
    __builtin_memset(stall, 0, sizeof(*stall));
    stall->type = RECORD_OPEN;
    stall->key = t->key;
    stall->start = seen->since;
    stall->end = now;
    stall->cpu = task->thread_info.cpu;
    stall->reason = seen->reason;
    stall->syscall = seen->activity == ACTIVITY_BLOCKED ? seen->syscall : -1;
    if (seen->activity != ACTIVITY_BLOCKED) {
        stall->flags = STALL_PREEMPTED;
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
    } else if (seen->activity == ACTIVITY_BLOCKED && seen->futex_lock) {
        u32 owner = seen->lock_owner;

        stall->flags |= STALL_LOCK;
        stall->lock_address = seen->lock_address;
        /* Not seen at switch-out: read now, from the lock itself. */
        if (!seen->owner_known &&
            !bpf_copy_from_user_task(&owner, sizeof(owner), (void *)(seen->lock_address + MUTEX_OWNER_OFFSET),
                                     task, 0))
            owner &= FUTEX_TID_MASK;
        stall->lock_owner = owner;
        if (owner)
            stall->flags |= STALL_OWNER;
    }
    bpf_probe_read_kernel(stall->comm, COMM_LEN, task->comm);
    stall->kernel_stack = kernel_stack_of(task, &room->stack.stack);
    stall->user_stack = user_stack_of(task, &room->stack);
    bpf_seq_write(ctx->meta->seq, stall, sizeof(*stall));
    return 0;
}

/* ---- births and names ---- */

SEC("tp_btf/task_newtask")
int BPF_PROG(on_new_task, struct task_struct *task, u64 clone_flags) {
    u64 now = bpf_ktime_get_ns();
    struct task_struct *parent = bpf_get_current_task_btf();
    struct thread_state *t = state_of(parent);
    u32 why = inherited(t, clone_flags);

    if (!(clone_flags & CLONE_THREAD))
        inherit_mappings(parent, task);
    /* The first look has perhaps not come to the parent yet. */
    if (finding_targets)
        why |= targets_at_start(task);
    if (name_glob_count)
        why |= named(task, task->comm);
    why |= targets_by_group(task);
    if (!why && !every_thread)
        return 0;
    t = create_state(task);
    if (!t)
        return 0;
    t->observed_from = now;
    t->why = why;
    if (!armed(now))
        return 0;
    t->since = now;
    t->run_ns = now;
    t->activity = ACTIVITY_NEW;
    t->nvcsw_seen = task->nvcsw;
    return 0;
}

/* Between here and its last switch a thread is no longer listed, and whoever waits for its process goes on.
 */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task) {
    struct thread_state *t = state_of(task);

    if (t && !t->ending && armed(bpf_ktime_get_ns())) {
        t->ending = 1;
        __sync_fetch_and_add(&ending_threads, 1);
    }
    return 0;
}

/* Of a process that moves with all of its threads only `task` is named. */
SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(on_cgroup_attach, struct cgroup *group, const char *path, struct task_struct *task,
             bool whole_process) {
    if (!group_holds(group))
        return 0;
    join(task, TARGET_GROUP);
    if (whole_process)
        look_again = 1;
    return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(on_rename, struct task_struct *task, const char *comm) {
    struct thread_state *t = state_of(task);
    u32 why;

    if (t)
        t->news = 1;
    if (!name_glob_count)
        return 0;
    why = named(task, comm);
    if (!why || (t && t->why & why))
        return 0;
    join(task, why);
    if (why == TARGET_NAMED_PROCESS)
        look_again = 1;
    return 0;
}
