// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* One look at all threads, for `wallprof stacks`. No thread is stopped, and no event is counted. */
#include "iterator.h"
#include "other_thread.h"

/* A thread that runs during the walk of its stacks is walked this often. */
#define LOOK_WALKS_AT_MOST 3

/* enum look_pass, set by user space. */
volatile u32 look_pass = LOOK_LISTS;
/* The least distance of CLOCK_MONOTONIC from the scheduler's clock that was seen. The reader of the iterator
 * is current: it arrived on its CPU before it was read, so that no distance is too small. */
volatile s64 look_clock_lag = 0x7fffffffffffffffLL;

ALWAYS_INLINE void note_clock_lag(void) {
    struct task_struct *reader = bpf_get_current_task_btf();
    u64 arrival = reader->sched_info.last_arrival;
    s64 lag = (s64)(bpf_ktime_get_ns() - arrival);

    if (arrival && lag < look_clock_lag)
        look_clock_lag = lag;
}

/* When a thread that sleeps left the CPU. It arrived, and then ran for the difference of the sums. These
 * leave out interrupts and steal time. So does the run queue's second clock, whose time of the last charge is
 * that of the switch: with the distance of the two clocks by now it is not earlier than the switch. */
ALWAYS_INLINE void note_departure(struct task_struct *task, struct look_record *look) {
    u64 ran = task->se.sum_exec_runtime - task->se.prev_sum_exec_runtime;
    u64 charged = task->se.exec_start;
    struct rq *rq;

    look->since = task->sched_info.last_arrival + ran;
    if (!charged || !bpf_core_field_exists(task->se.cfs_rq) ||
        !bpf_core_field_exists(((struct cfs_rq *)0)->rq) || !bpf_core_field_exists(((struct rq *)0)->clock) ||
        !bpf_core_field_exists(((struct rq *)0)->clock_task))
        return;
    rq = BPF_CORE_READ(task, se.cfs_rq, rq);
    if (rq)
        look->since_latest = charged + (BPF_CORE_READ(rq, clock) - BPF_CORE_READ(rq, clock_task));
}

struct look_walk {
    struct task_struct *task;
    struct iter_scratch *scratch;
};

/* Fills in what the thread does, with its stacks. 1 when it is done. */
static long look_step(u32 walk, struct look_walk *of) {
    struct task_struct *task = of->task;
    struct iter_scratch *scratch = of->scratch;
    struct look_record *look = &scratch->look;
    struct thread_state *now = &scratch->guess;
    u64 switches = switches_of(task);
    u32 owner;

    look->walks = walk + 1;
    look->since = 0;
    look->since_latest = 0;
    look->user_stack = 0;
    look->kernel_stack = 0;
    look->syscall = -1;
    look->flags &= LOOK_KERNEL_THREAD;
    guess_activity(NULL, task, now);
    owner = settle_lock(task, now, true);
    look->activity = now->activity;
    look->now = bpf_ktime_get_ns();
    if (now->activity == ACTIVITY_RUNNING) {
        look->since = task->sched_info.last_arrival;
        look->since_latest = look->since;
        return 1;
    }
    if (now->activity == ACTIVITY_BLOCKED) {
        note_departure(task, look);
        look->reason = now->reason;
        look->syscall = now->syscall;
        if (waits_for_futex(now)) {
            look->flags |= LOOK_LOCK;
            look->lock_address = now->lock_address;
            look->lock_owner = owner;
            if (owner)
                look->flags |= LOOK_OWNER;
        } else if (find_kernel_owner(task, &look->kernel_owner)) {
            look->flags |= LOOK_KERNEL_OWNER;
        }
        if (read_word_of(task, &look->word, &look->word_definition))
            look->flags |= LOOK_WORD;
    } else {
        look->since = task->sched_info.last_queued;
        look->since_latest = look->since;
    }
    look->kernel_stack = kernel_stack_of(task, &scratch->stack.stack);
    look->user_stack = user_stack_of(task, &scratch->stack);
    if (!task->on_cpu && switches_of(task) == switches)
        return 1;
    look->user_stack = 0;
    look->kernel_stack = 0;
    look->flags = (look->flags & LOOK_KERNEL_THREAD) | LOOK_MOVED;
    return 0;
}

/* Writes a record of a thread that has a state. LOOK_WALKS leaves out those on a CPU, which have no saved
 * registers. LOOK_AT_REST comes later and has the others: user space has sampled the CPUs meanwhile. False:
 * the thread has none. */
ALWAYS_INLINE bool write_look(struct bpf_iter__task *ctx, struct task_struct *task,
                              struct iter_scratch *scratch) {
    struct look_walk walk = {.task = task, .scratch = scratch};
    struct look_record *look = &scratch->look;
    struct thread_state *t = state_of(task);

    if (!t || (look_pass != LOOK_LISTS && t->looked))
        return false;
    __builtin_memset(look, 0, sizeof(*look));
    look->key = t->key;
    look->tid = task->pid;
    look->tgid = task->tgid;
    look->ns_tid = t->ns_tid;
    look->ns_tgid = t->ns_tgid;
    look->exec_id = task->self_exec_id;
    look->start_boottime = task->start_boottime;
    if (task->flags & PF_KTHREAD)
        look->flags = LOOK_KERNEL_THREAD;
    bpf_probe_read_kernel(look->comm, COMM_LEN, task->comm);
    bpf_probe_read_kernel(look->process, COMM_LEN, task->group_leader->comm);
    if (look_pass != LOOK_LISTS) {
        scratch->guess.key = t->key;
        bpf_loop(LOOK_WALKS_AT_MOST, look_step, &walk, 0);
        if (look_pass == LOOK_WALKS && look->activity == ACTIVITY_RUNNING)
            return false;
        /* Without memory in the output the kernel calls again for the same thread. */
        if (bpf_seq_write(ctx->meta->seq, look, sizeof(*look)))
            return true;
        t->looked = 1;
        return true;
    }
    /* Its holder can be in a process that is not looked at yet. */
    if (!task->on_cpu && task->__state != TASK_RUNNING && find_kernel_owner(task, &look->kernel_owner))
        look->flags |= LOOK_KERNEL_OWNER;
    bpf_seq_write(ctx->meta->seq, look, sizeof(*look));
    return true;
}

SEC("iter.s/task")
int look(struct bpf_iter__task *ctx) {
    struct task_struct *task = ctx->task;
    struct iter_scratch *scratch = get_iter_scratch();

    note_clock_lag();
    if (!task || !task->pid || !scratch || (task->__state & TASK_DEAD))
        return 0;
    if (!write_look(ctx, task, scratch))
        end_long_read(ctx, sizeof(struct look_record));
    return 0;
}
