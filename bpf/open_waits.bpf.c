/* Waits that have not ended. */
#include "fault.h"
#include "iterator.h"
#include "peer.h"
#include "stack.h"
#include "stack_policy.h"
#include "wait_place.h"
#include "wait_word.h"

ALWAYS_INLINE u64 kernel_stack_of(struct task_struct *task, struct stack_record *stack) {
    return keep_read_stack(stack, bpf_get_task_stack(task, stack->address, MAX_KERNEL_FRAMES * 8, 0), false);
}

/* A function of its own: only sleepable programs may call the helper that reads another thread's memory. */
static long other_walk_step(u32 depth, struct walk_loop *loop) {
    return step_in_scratch(depth, loop->scratch, loop->of);
}

/* Another thread's user stack, from its saved registers; 0 for kernel threads. */
ALWAYS_INLINE u64 user_stack_of(struct task_struct *task, struct stack_scratch *scratch) {
    struct walk_loop loop = {.scratch = scratch, .of = task};

    if (!start_walk(scratch, task))
        return 0;
    bpf_loop(MAX_FRAMES, other_walk_step, &loop, 0);
    scratch->stack.end = scratch->walk.end;
    return keep_stack(&scratch->stack, scratch->walk.hash);
}

/* The word of a wait that began before the recording did is read now. */
ALWAYS_INLINE void note_open_word(struct task_struct *task, struct thread_state *t,
                                  struct stall_record *stall) {
    u32 tgid = task->tgid;
    struct wait_word *at;
    u64 address, word = 0;

    if (t->word_known) {
        stall->word = t->word;
        stall->word_definition = t->word_at.definition;
        stall->flags |= STALL_WORD;
        return;
    }
    at = bpf_map_lookup_elem(&wait_words, &tgid);
    if (!at || at->exec_id != (u32)task->self_exec_id)
        return;
    address = at->address;
    if (at->is_pointer && bpf_copy_from_user_task(&address, sizeof(address), (void *)address, task, 0))
        return;
    if (bpf_copy_from_user_task(&word, word_bytes(at), (void *)address, task, 0))
        return;
    stall->word = word;
    stall->word_definition = at->definition;
    stall->flags |= STALL_WORD;
}

/* Writes a record, with both stacks, of every wait older than `open_after_ns` that has none yet. A thread
 * that never continues has no switch-in at which to take them. */
SEC("iter.s/task")
int open_waits(struct bpf_iter__task *ctx) {
    struct task_struct *task = ctx->task;
    struct iter_scratch *scratch = get_iter_scratch();
    struct stall_record *stall;
    struct thread_state *t;
    struct thread_state *seen;
    u64 now = bpf_ktime_get_ns();

    if (!task || !task->pid || !scratch)
        return 0;
    t = state_of(task);
    if (!t || t->activity == ACTIVITY_DEAD)
        return 0;
    seen = t;
    if (t->since < armed_at) {
        seen = &scratch->guess;
        seen->key = t->key;
        seen->since = t->observed_from > armed_at ? t->observed_from : armed_at;
        seen->wake_ns = 0;
        seen->run_ns = seen->since;
        seen->word_known = false;
        seen->asked = ASKED_UNKNOWN;
        guess_activity((struct bpf_iter__task *)ctx, task, seen);
    }
    if (seen->activity == ACTIVITY_RUNNING || seen->since > now || now - seen->since < open_after_ns)
        return 0;
    if (t->open_reported == seen->since)
        return 0;
    /* With 0 this is a look at who sleeps, and no report. */
    if (open_after_ns)
        t->open_reported = seen->since;
    stall = &scratch->stall;
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
    if (seen->activity == ACTIVITY_BLOCKED && is_voluntary(seen->reason))
        stall->place = place_of(task, seen);
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
    if (seen->activity == ACTIVITY_BLOCKED && !(seen == t && t->faulting))
        note_open_word(task, seen, stall);
    if (stall->syscall >= 0 && has_peer(seen->reason) && !(seen == t && t->faulting))
        note_peer(task, stall, seen);
    bpf_probe_read_kernel(stall->comm, COMM_LEN, task->comm);
    stall->kernel_stack = kernel_stack_of(task, &scratch->stack.stack);
    stall->user_stack = user_stack_of(task, &scratch->stack);
    bpf_seq_write(ctx->meta->seq, stall, sizeof(*stall));
    return 0;
}
