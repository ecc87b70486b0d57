/* Switches and wakeups: the ledger's blocked, runnable, preempted and running time.
 *
 * sched_switch closes what the outgoing thread did; the incoming one is settled in sched_exit_tp, which runs
 * in its own context with its user stack readable, or, where that tracepoint does not exist, in sched_switch.
 */
#include "guard.h"
#include "kernel_stack.h"
#include "thread.h"
#include "waited_file.h"

/* Charges the running time that ends with this switch, by the scheduler's own account, so that the total
 * equals /proc/PID/schedstat. Tracepoints and the scheduler's readings of its clock lie apart: a thread that
 * wakes on an idle CPU counts as running from its enqueueing on (rq_clock_skip_update), microseconds before
 * its switch-in, and what the scheduler does after its last reading counts as nobody's. What ran before the
 * switch-in is taken from the wait that it ended; what did not run before the switch-out is left for the wait
 * that begins. */
ALWAYS_INLINE void charge_running(struct thread_state *t, struct task_struct *prev, u64 now) {
    u64 executed = prev->se.sum_exec_runtime;
    s64 ran = executed - t->exec_seen;
    s64 wall = now - t->since;

    if (ran > wall) {
        u64 excess = ran - wall;
        u64 taken = excess < t->borrowable ? excess : t->borrowable;
        u32 lender = t->lender;

        t->ledger.on_cpu += wall + taken;
        barrier_var(lender); /* one register for the check and the index */
        if (lender < SLEEPS)
            t->ledger.blocked[lender] -= taken;
        else if (lender == CARRIED_RUNNABLE)
            t->ledger.runnable -= taken;
        else
            t->ledger.preempted -= taken;
        t->since = now;
        t->exec_seen = executed;
    } else if ((u64)(wall - ran) > SWITCH_LAG_NS) {
        /* Stolen or interrupt time, which the scheduler leaves out: it was running as far as wall time goes.
         */
        t->ledger.on_cpu += wall;
        t->since = now;
        t->exec_seen = executed;
    } else if (ran > 0) {
        t->ledger.on_cpu += ran;
        t->since += ran;
        t->exec_seen = executed;
    }
}

/* A thread's first event since arming: whatever it now stops doing it has done since `armed_at`. */
ALWAYS_INLINE void begin(struct thread_state *t, struct task_struct *task, u8 activity) {
    u64 from = armed_at;

    if (t->observed_from > from)
        from = t->observed_from;
    t->since = from;
    t->observed_from = from;
    t->run_ns = from;
    t->wake_ns = 0;
    t->second_end = 0;
    t->activity = activity;
    t->reason = REASON_OTHER;
    t->syscall = -1;
    t->nvcsw_seen = task->nvcsw;
}

/* Charges the rest of a wait, of which the last `waited` ns were spent waiting for a CPU. */
ALWAYS_INLINE void charge_wait(struct thread_state *t, u64 now, u64 waited, bool preempted) {
    u64 rest = now - t->since;
    u64 runnable = waited < rest ? waited : rest;

    t->since = now;
    if (preempted) {
        if (t->activity == ACTIVITY_PREEMPTED)
            t->ledger.preempted += rest;
        else
            t->ledger.runnable += rest; /* a new thread */
        t->borrowable = rest;
        t->lender = t->activity == ACTIVITY_PREEMPTED ? CARRIED_PREEMPTED : CARRIED_RUNNABLE;
        return;
    }
    t->ledger.runnable += runnable;
    if (t->reason < SLEEPS)
        t->ledger.blocked[t->reason] += rest - runnable;
    if (unlikely(t->faulting))
        t->fault.unsettled += rest - runnable;
    t->borrowable = rest - runnable;
    t->lender = t->reason;
}

/* A thread leaves the CPU whose coming was not seen: what it has run by the scheduler's account ends the
 * wait. */
ALWAYS_INLINE void settle_unseen_run(struct thread_state *t, struct task_struct *prev, u64 now) {
    u64 ran = prev->se.sum_exec_runtime - t->exec_seen;
    u64 delay = prev->sched_info.run_delay;
    u64 wall = now - t->since;

    roll(t, now - (ran < wall ? ran : wall));
    wall = now - t->since;
    charge_wait(t, now - (ran < wall ? ran : wall), delay - t->delay_seen, t->activity != ACTIVITY_BLOCKED);
    t->delay_seen = delay;
    t->run_ns = t->since;
    t->activity = ACTIVITY_RUNNING;
}

ALWAYS_INLINE void end_thread(struct task_struct *task, struct thread_state *t, u64 now) {
    struct thread_record *record = reserve(sizeof(struct thread_record));

    t->activity = ACTIVITY_DEAD;
    if (t->ending)
        __sync_fetch_and_sub(&ending_threads, 1);
    if (!record)
        return;
    fill_thread_record(record, task, t, now);
    bpf_ringbuf_submit(record, ring_flags());
}

/* The thread leaves the CPU in a page fault, unless that is over. */
ALWAYS_INLINE bool pause_fault(struct thread_state *t, u32 prev_state, u64 now) {
    if (!fault_goes_on(t) || (prev_state & (TASK_STOPPED | TASK_TRACED | TASK_FROZEN | TASK_DEAD))) {
        abandon_fault(t);
        return false;
    }
    charge_fault_run(t, now);
    return true;
}

/* A sleep in a page fault is the fault's, whatever else it waits for. */
ALWAYS_INLINE void sleep_in_fault(struct thread_state *t, struct task_struct *prev) {
    if (BPF_CORE_READ_BITFIELD(prev, in_iowait))
        settle_fault(t, SLEEP_FAULT_MAJOR);
    t->reason = t->fault.sleep;
    t->syscall = syscall_of(prev, (struct pt_regs *)bpf_task_pt_regs(prev));
    t->futex_lock = 0;
    t->owner_known = 0;
}

/* Where a thread waits: its system call says it; of the kernel's own threads each has a place of its own. */
ALWAYS_INLINE u32 way_of(struct thread_state *t) { return t->syscall < 0 ? t->key << 9 : (u32)t->syscall; }

ALWAYS_INLINE u32 place_of_wait(struct thread_state *t, bool preempted) {
    return PLACE_SWITCH | ((way_of(t) << 1 | preempted) & (PLACE_SWITCH - 1));
}

ALWAYS_INLINE void switch_out(void *ctx, struct cpu_state *cpu, bool preempt, struct task_struct *prev,
                              u32 prev_state, u64 now) {
    struct thread_state *t = state_of(prev);
    bool in_fault = false;

    if (!t)
        return;
    if (unlikely(t->since < armed_at)) {
        begin(t, prev, ACTIVITY_RUNNING);
        t->nvcsw_seen -= !preempt && prev_state;
        t->exec_seen = prev->se.sum_exec_runtime;
        t->delay_seen = prev->sched_info.run_delay;
        charge_until(t, now);
    } else {
        if (unlikely(t->activity != ACTIVITY_RUNNING))
            settle_unseen_run(t, prev, now);
        roll(t, now);
        charge_running(t, prev, now);
    }
    if (unlikely(t->faulting))
        in_fault = pause_fault(t, prev_state, now);
    t->moved_ns = 0;
    /* The kernel's own verdict: a sleep that a pending signal cancels counts as voluntary there. */
    if (prev->nvcsw != t->nvcsw_seen) {
        t->nvcsw_seen = prev->nvcsw;
        t->ledger.voluntary++;
    } else {
        t->ledger.involuntary++;
    }
    if (unlikely(prev_state & TASK_DEAD)) {
        charge_until(t, now);
        end_thread(prev, t, now);
        return;
    }
    /* Kernels before 6.13 pass the state from before a pending signal cancelled the sleep. */
    if (preempt || prev_state == TASK_RUNNING || prev->__state == TASK_RUNNING) {
        t->activity = ACTIVITY_PREEMPTED;
    } else {
        t->activity = ACTIVITY_BLOCKED;
        if (unlikely(in_fault))
            sleep_in_fault(t, prev);
        else
            classify(ctx, cpu, t, prev, prev_state);
    }
    if (stacks_at_switch_out) {
        t->out_user_stack = 0;
        t->out_kernel_stack = 0;
        take_stacks_at(ctx, cpu, place_of_wait(t, t->activity == ACTIVITY_PREEMPTED), &t->out_user_stack,
                       &t->out_kernel_stack);
        t->out_asked = t->activity == ACTIVITY_BLOCKED && !in_fault && t->syscall >= 0 &&
                       asked_timeout(prev, t, now, &t->out_asked_ns, &t->out_slack_ns);
    }
}

/* ---- who ran instead ---- */

ALWAYS_INLINE void remember_run(struct cpu_state *cpu, struct task_struct *next, u64 now) {
    struct run_entry *entry = &cpu->run[cpu->run_count & (RUN_RING - 1)];

    entry->from = now;
    entry->task = (u64)next;
    entry->tid = next->pid;
    entry->tgid = next->tgid;
    cpu->run_count++;
}

struct ran_walk {
    struct cpu_state *cpu;
    struct stall_record *stall;
    u64 newest;
    u64 from;
    u64 to;
};

/* One step back through a CPU's switches, adding what lies inside the waiting time. */
static long ran_step(u32 index, struct ran_walk *walk) {
    u64 position = walk->newest - index;
    struct run_entry *entry = &walk->cpu->run[position & (RUN_RING - 1)];
    struct stall_record *stall = walk->stall;
    u64 from = entry->from;
    u32 i;

    if (from >= walk->to)
        return 0;
    if (from < walk->from)
        from = walk->from;
    if (entry->tid) {
        for (i = 0; i < MAX_RAN; i++) {
            if (i >= stall->rans) {
                struct task_struct *task = (struct task_struct *)entry->task;

                stall->ran[i].ns = 0;
                stall->ran[i].thread.tid = entry->tid;
                stall->ran[i].thread.tgid = entry->tgid;
                __builtin_memset(stall->ran[i].thread.comm, 0, COMM_LEN);
                /* The task may be gone: its name counts only if the place still holds the same thread. */
                if ((u32)BPF_CORE_READ(task, pid) == entry->tid)
                    bpf_core_read(stall->ran[i].thread.comm, COMM_LEN, &task->comm);
                stall->rans = i + 1;
            }
            if (stall->ran[i].thread.tid == entry->tid) {
                stall->ran[i].ns += walk->to - from;
                break;
            }
        }
    }
    walk->to = from;
    return entry->from <= walk->from;
}

ALWAYS_INLINE void collect_ran(struct stall_record *stall, u32 cpu, u64 from, u64 to) {
    u32 zero = 0;
    struct ran_walk walk = {.stall = stall, .from = from, .to = to};
    u64 count;

    if ((s64)(to - from) <= 0)
        return;
    walk.cpu = bpf_map_lookup_percpu_elem(&cpus, &zero, cpu);
    if (!walk.cpu)
        return;
    count = walk.cpu->run_count;
    if (!count)
        return;
    walk.newest = count - 1;
    bpf_loop(count < RUN_RING ? (u32)count : RUN_RING, ran_step, &walk, 0);
}

/* ---- wakeups ---- */

/* Waits that a thread chooses, by their reason: the servers' wait for work. */
ALWAYS_INLINE bool is_chosen(u32 reason) {
    return reason == REASON_WAIT || reason == REASON_POLL || reason == REASON_SLEEP || reason == REASON_CHILD;
}

/* Whether an interval that has lasted `ns` in `state` will want stacks. */
ALWAYS_INLINE bool wants_stack(struct thread_state *t, u32 state, u64 ns) {
    u64 enough = is_chosen(state) ? chosen_carry_ns : carry_ns;

    barrier_var(state); /* one register for the check and the index */
    return ns >= stack_ns || (state < SLEEPS + 2 && t->carried[state] + ns >= enough);
}

/* Stacks at the wakeup of `t`: the waker's, or, in an interrupt, the interrupt's own without the bystander's
 * frames. */
ALWAYS_INLINE void take_waker_stacks(void *ctx, struct cpu_state *cpu, struct thread_state *t, u32 context) {
    u32 depth = cpu->interrupt_depth, place = PLACE_WAKEUP;
    struct stack_room *room;

    if (depth && depth <= IRQ_DEPTH)
        place = PLACE_INTERRUPT | (cpu->interrupt[(depth - 1) & (IRQ_DEPTH - 1)].number & 0xff) << 20;
    place |= way_of(t) & 0xfffff;
    if (context != CONTEXT_INTERRUPT)
        return take_stacks_at(ctx, cpu, place, &t->waker_user_stack, &t->waker_kernel_stack);
    room = enter_scratch(cpu);
    if (!room)
        return;
    t->waker_kernel_stack = take_kernel_stack_at(ctx, cpu, room, place, true);
    leave_scratch(cpu);
}

ALWAYS_INLINE void wake(void *ctx, struct cpu_state *cpu, struct task_struct *task, u64 now) {
    struct thread_state *t = state_of(task);
    struct task_struct *waker;
    u32 context;

    if (!t)
        return;
    if (unlikely(t->since < armed_at)) {
        begin(t, task, task->on_cpu ? ACTIVITY_RUNNING : ACTIVITY_BLOCKED);
        t->exec_seen = task->se.sum_exec_runtime;
        t->delay_seen = task->sched_info.run_delay;
        if (!task->on_cpu)
            classify(ctx, NULL, t, task, task->__state);
    }
    waker = bpf_get_current_task_btf();
    context = context_of(ctx, cpu, waker);
    t->wake_ns = now;
    t->waker_task = (u64)waker;
    t->waker_tid = waker->pid;
    t->waker_tgid = waker->tgid;
    t->waker_user_stack = 0;
    t->waker_kernel_stack = 0;
    if (t->activity == ACTIVITY_BLOCKED &&
        (context == CONTEXT_UNSURE || wants_stack(t, t->reason, now - t->since)))
        take_waker_stacks(ctx, cpu, t, context);
    if (context == CONTEXT_INTERRUPT || (context == CONTEXT_UNSURE && !t->waker_kernel_stack))
        t->waker_task = t->waker_tid = t->waker_tgid = 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task) {
    u64 now = bpf_ktime_get_ns();
    struct cpu_state *cpu = this_cpu();
    u64 began;

    if (!cpu || !armed(now))
        return 0;
    began = begin_run(cpu);
    wake(ctx, cpu, task, now);
    end_run(cpu, began);
    return 0;
}

/* A waiting thread is moved to another CPU: from now on others run instead of it. */
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *task, int to) {
    u64 now = bpf_ktime_get_ns();
    struct thread_state *t;

    if (!armed(now))
        return 0;
    t = state_of(task);
    if (t) {
        t->moved_ns = now;
        t->moved_from = task->thread_info.cpu;
    }
    return 0;
}

/* ---- switch-in ---- */

struct interval {
    u64 start;
    u64 end;
    u64 runnable;
    u64 user_stack;
    u64 kernel_stack;
    u32 cpu;
    bool preempted;
    bool woken;
};

ALWAYS_INLINE void read_name(u8 *name, u64 task_address, u32 tid) {
    struct task_struct *task = (struct task_struct *)task_address;

    __builtin_memset(name, 0, COMM_LEN);
    if ((u32)BPF_CORE_READ(task, pid) == tid)
        bpf_core_read(name, COMM_LEN, &task->comm);
}

/* What a timeout was, is in user memory: read where `task` is current, at its switch-out or now. */
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

/* A record with what intervals off the CPU and page faults have in common; the rest of it says nothing. */
ALWAYS_INLINE struct stall_record *begin_stall(struct task_struct *task, struct thread_state *t,
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
    stall->lock_address = 0;
    stall->lock_owner = 0;
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
    return stall;
}

NOINLINE int send_stall(struct task_struct *task, struct thread_state *t, struct interval *interval) {
    struct stall_record *stall;
    u64 runnable_from;
    u32 cpu;

    if (!task || !t || !interval)
        return 0;
    stall = begin_stall(task, t, interval);
    if (!stall)
        return 0;
    stall->reason = t->reason;
    if (interval->preempted) {
        stall->flags |= STALL_PREEMPTED;
    } else {
        stall->syscall = t->syscall;
        if (t->futex_lock) {
            stall->flags |= STALL_LOCK;
            stall->lock_address = t->lock_address;
            if (t->owner_known) {
                stall->flags |= STALL_OWNER;
                stall->lock_owner = t->lock_owner;
            }
        }
        note_asked(stall, task, t, interval->start);
        if (t->reason == REASON_DISK)
            note_waited_file(task, stall, t->syscall);
    }
    /* Who had the CPU it waited for: the one it came back on, before a move the one it was on. */
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

ALWAYS_INLINE void count_interval(struct thread_state *t, struct interval *interval, u32 state, u32 what,
                                  u64 ns) {
    struct sample_key key = {
        .key = t->key,
        .second = t->second,
        .user_stack = interval->user_stack,
        .kernel_stack = interval->kernel_stack,
        .what = (u8)what,
    };

    if (!ns)
        return;
    if (interval->woken && what >= SAMPLE_BLOCKED) {
        key.woken = 1;
        key.waker_tid = t->waker_tid;
        key.waker_user_stack = t->waker_user_stack;
        key.waker_kernel_stack = t->waker_kernel_stack;
    }
    count_sample(&key, ns);
    if (state < SLEEPS + 2)
        t->carried[state] = 0;
}

/* The stack policy: at least `stall_ns` long, or enough unstacked time gathered. */
NOINLINE int take_interval_stack(void *ctx, struct thread_state *t, struct interval *interval) {
    struct cpu_state *cpu = this_cpu();
    u32 reason;

    if (!t || !interval || !cpu)
        return 0;
    reason = t->reason;
    if (reason >= SLEEPS)
        return 0;
    if (stacks_at_switch_out) {
        interval->user_stack = t->out_user_stack;
        interval->kernel_stack = t->out_kernel_stack;
    } else {
        take_stacks_at(ctx, cpu, place_of_wait(t, interval->preempted), &interval->user_stack,
                       &interval->kernel_stack);
    }
    if (interval->preempted) {
        count_interval(t, interval, CARRIED_PREEMPTED, SAMPLE_PREEMPTED, t->carried[CARRIED_PREEMPTED]);
    } else {
        if (reason < REASONS)
            count_interval(t, interval, reason, SAMPLE_BLOCKED + reason, t->carried[reason]);
        count_interval(t, interval, CARRIED_RUNNABLE, SAMPLE_RUNNABLE, t->carried[CARRIED_RUNNABLE]);
    }
    return 0;
}

/* What an interval was by its longer part, as user space names stalls; one within a fault is the fault's. */
ALWAYS_INLINE u32 off_cpu_metric(struct thread_state *t, struct interval *interval, u64 off) {
    u32 reason = t->reason;

    if (interval->preempted)
        return METRIC_OFF_CPU_PREEMPTED;
    if (reason >= REASONS)
        return METRIC_OFF_CPU;
    return interval->runnable > off - interval->runnable ? METRIC_OFF_CPU_RUNNABLE
                                                         : METRIC_OFF_CPU_BLOCKED + reason;
}

ALWAYS_INLINE bool worth_sending(struct thread_state *t, struct interval *interval) {
    u64 off = interval->end - interval->start;
    bool sent = off >= stall_ns;

    if (sent && !interval->preempted && is_chosen(t->reason) && interval->runnable < stall_ns)
        sent = off >= voluntary_stall_ns;
    if (!sent && off >= min_stall_ns)
        lose(LOSS_FOLDED);
    return sent;
}

/* The first event of a thread is that it gets a CPU. It has waited for one since arming, or its wakeup was
 * not seen: the scheduler's account of its waiting tells. */
ALWAYS_INLINE void begin_waiting(void *ctx, struct thread_state *t, struct task_struct *task, u64 now,
                                 u64 delay) {
    begin(t, task, ACTIVITY_PREEMPTED);
    t->exec_seen = task->se.sum_exec_runtime;
    if (!stacks_at_switch_out && delay - t->delay_seen < now - t->since) {
        t->activity = ACTIVITY_BLOCKED;
        classify(ctx, NULL, t, task, TASK_INTERRUPTIBLE);
    }
}

/* How long the thread has been awake at `now`, within its wait. Its next wakeup may already have happened:
 * interrupts are on between a switch and the end of it. */
ALWAYS_INLINE u64 since_wakeup(struct thread_state *t, u64 now) {
    u64 wake = t->wake_ns;

    if (wake > now)
        return 0;
    return now - (wake > t->since ? wake : t->since);
}

/* Back on a CPU, in the same page fault: the wait is the fault's, and is told with it. Global, so that the
 * verifier walks through it once and not for each path to it. */
__attribute__((noinline)) int resume_fault(struct thread_state *t, struct interval *interval) {
    struct fault_state *fault;
    u64 off;

    if (!t || !interval)
        return 0;
    fault = &t->fault;
    off = interval->end - interval->start;
    fault->charged_to = interval->end;
    fault->irq_seen = t->ledger.irq;
    fault->runnable += interval->runnable;
    fault->blocked += off - interval->runnable;
    fault->woken |= interval->woken;
    if (off > fault->longest && (interval->user_stack || interval->kernel_stack)) {
        fault->longest = off;
        fault->user_stack = interval->user_stack;
        fault->kernel_stack = interval->kernel_stack;
    }
    if (interval->runnable > fault->starved_to - fault->starved_from) {
        fault->starved_from = interval->end - interval->runnable;
        fault->starved_to = interval->end;
        fault->starved_cpu = interval->cpu;
    }
    return 0;
}

/* Closes the off-CPU interval of `task`, which got the CPU at `now`; with stacks_at_switch_out it is not
 * current yet. */
ALWAYS_INLINE void switch_in(void *ctx, struct task_struct *task, u64 now) {
    struct thread_state *t = state_of(task);
    struct interval interval = {};
    u64 off, delay, waited;
    bool stacked;

    if (!t || t->activity == ACTIVITY_RUNNING)
        return;
    delay = task->sched_info.run_delay;
    if (unlikely(t->since < armed_at))
        begin_waiting(ctx, t, task, now, delay);
    /* Never seen, but an interval must not end before it starts. */
    if ((s64)(now - t->since) < 0)
        now = t->since;
    interval.start = t->since;
    interval.end = now;
    interval.cpu = bpf_get_smp_processor_id();
    interval.preempted = t->activity != ACTIVITY_BLOCKED;
    interval.woken = !interval.preempted && t->wake_ns > t->run_ns;
    off = now - t->since;
    waited = delay - t->delay_seen;
    t->delay_seen = delay;
    if (interval.preempted)
        waited = off;
    else if (stacks_at_switch_out || waited > off)
        /* The scheduler has not added up this wait yet: from the wakeup on. */
        waited = interval.woken ? since_wakeup(t, now) : 0;
    if (!interval.preempted && !interval.woken)
        lose(LOSS_NO_WAKEUP);
    interval.runnable = waited;
    roll(t, now);
    charge_wait(t, now, waited, interval.preempted);
    t->run_ns = now;
    t->activity = ACTIVITY_RUNNING;
    if (!t->on_mask && cpu_wanted(interval.cpu))
        t->on_mask = 1;
    if (!off)
        return;
    count_latency(t, off_cpu_metric(t, &interval, off), off);
    count_latency(t, METRIC_RUN_QUEUE, interval.runnable);
    if (interval.preempted) {
        t->carried[CARRIED_PREEMPTED] += off;
        stacked = wants_stack(t, CARRIED_PREEMPTED, 0);
    } else {
        u64 blocked = off - interval.runnable;
        u32 reason = t->reason;

        if (reason >= SLEEPS)
            return;
        if (likely(reason < REASONS)) {
            count_latency(t, METRIC_BLOCKED + reason, blocked);
            t->carried[reason] += blocked;
        }
        t->carried[CARRIED_RUNNABLE] += interval.runnable;
        stacked = wants_stack(t, reason, 0) || wants_stack(t, CARRIED_RUNNABLE, 0);
    }
    if (stacked || off >= stack_ns)
        take_interval_stack(ctx, t, &interval);
    if (unlikely(t->faulting))
        resume_fault(t, &interval);
    else if (off >= min_stall_ns && cpu_wanted(interval.cpu) && worth_sending(t, &interval))
        send_stall(task, t, &interval);
}

/* ---- the tracepoints ---- */

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
             unsigned int prev_state) {
    u64 now = bpf_ktime_get_ns();
    struct cpu_state *cpu = this_cpu();
    u64 began;

    if (!cpu || !armed(now))
        return 0;
    began = begin_run(cpu);
    /* Interrupts do not nest across a switch: a depth that drifted (attached mid-interrupt) ends here. */
    cpu->interrupt_depth = 0;
    cpu->switch_ns = now;
    remember_run(cpu, next, now);
    if (guards)
        count_task(cpu, prev, now, true);
    if (prev->pid)
        switch_out(ctx, cpu, preempt, prev, prev_state, now);
    if (stacks_at_switch_out && next->pid)
        switch_in(ctx, next, now);
    end_run(cpu, began);
    return 0;
}

/* Runs in the incoming thread, new ones included, with interrupts on. */
SEC("tp_btf/sched_exit_tp")
int BPF_PROG(on_switched, bool is_switch) {
    struct task_struct *task;
    struct cpu_state *cpu;
    u64 began, now;

    if (!is_switch)
        return 0;
    cpu = this_cpu();
    if (!cpu)
        return 0;
    /* The switch's own time, so that out and in meet without a gap. */
    now = cpu->switch_ns;
    cpu->switch_ns = 0;
    task = bpf_get_current_task_btf();
    if (unlikely(!now)) {
        now = bpf_ktime_get_ns();
        if (!armed(now))
            return 0;
        /* The outgoing thread is one that the kernel keeps from being traced (seen: a sandbox's supervisor).
         */
        lose(LOSS_NO_SWITCH);
        remember_run(cpu, task, now);
    }
    if (!task->pid)
        return 0;
    began = begin_run(cpu);
    switch_in(ctx, task, now);
    end_run(cpu, began);
    return 0;
}
