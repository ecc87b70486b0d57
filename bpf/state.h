/* What the kernel side remembers, and the ledger's arithmetic.
 *
 * Owns every map and the per-thread state. Times are CLOCK_MONOTONIC ns. Nothing here attaches to anything.
 */
#pragma once

#include "include/kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "include/histogram.h"
#include "include/records.h"
#include "include/vectors.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))

/* ---- set before loading ---- */

/* Take both stacks at switch-out: kernels without sched_exit_tp have no better moment. */
const volatile bool stacks_at_switch_out = false;
/* Record every thread; else those with a state, which target selection and inheritance create. */
const volatile bool every_thread = false;
/* --children: there is a TARGET_TREE. */
const volatile bool follow_children = false;
const volatile bool limit_cpus = false;
const volatile u64 cpu_mask[MAX_CPUS / 64] = {};
/* -C: threads count once they ran on one of these CPUs; samples and stalls are taken there only. */
const volatile u8 syscall_class[MAX_SYSCALLS] = {};
/* --cgroup: the group's id (0: none is recorded) and its hierarchy's number (0: cgroup v2). */
const volatile u64 cgroup_id = 0;
const volatile u32 cgroup_hierarchy = 0;
/* --name. */
const volatile u32 name_glob_count = 0;
const volatile struct name_glob name_globs[MAX_NAME_GLOBS] = {};

/* ---- written by user space while running ---- */

/* Kernel functions that tell what their sleepers wait for. Written after loading: reading the kernel's
 * symbols takes as long as loading, and goes on beside it. */
volatile struct text_range sites[MAX_SITES] = {};
volatile u32 site_count = 0;

/* The window of the recording: [armed_at, armed_at + window). A window of 0 is disarmed. */
volatile u64 armed_at = 0;
volatile u64 window = 0;
/* CLOCK_REALTIME - CLOCK_MONOTONIC, for the one-second buckets. */
volatile u64 epoch_offset = 0;
/* Waits that the thread chose and that are shorter are not sent one by one; user space raises it under load.
 */
volatile u64 voluntary_stall_ns = 100000;
volatile u64 stall_ns = 100000;
/* The least stall that the user asked for; a service may be told another one while it runs. */
volatile u64 min_stall_ns = 100000;
/* Waits this long get stacks each, and shorter ones when they have gathered so much, those that the thread
 * chose rather more; user space raises all three, and takes the stacks of one sample in so many, to keep to a
 * budget. */
volatile u64 stack_ns = 100000;
volatile u64 carry_ns = 1000000;
volatile u64 chosen_carry_ns = 10000000;
volatile u64 sample_stride = 1;
/* Open waits older than this are reported by the open_waits iterator. */
volatile u64 open_after_ns = 1000000000;
/* The iterator leaves out threads without news since then. */
volatile u64 last_snapshot = 0;
/* Whether each second of a thread is sent when it is over: for who takes snapshots less often than that. */
volatile u32 tell_seconds = 0;

/* `targets` is valid: the threads of the first look have no state yet. A pid is another process's later. */
volatile u32 finding_targets = 0;

/* ---- given out by the kernel side ---- */

/* A process with threads got a name that is asked for, or moved into the recorded cgroup: create_states is to
 * run again. Cleared by user space. */
volatile u32 look_again = 0;
/* Threads that have begun to end and have not left the CPU for the last time. */
u32 ending_threads = 0;

u32 next_thread_key = 0;

/* The page fault that a thread is in. */
struct fault_state {
    u64 start;
    u64 charged_to; /* its time on the CPU is in the ledger up to here */
    u64 irq_seen;   /* of ledger.irq, then */
    u64 frame;      /* where the registers of the code that faulted lie in the kernel */
    u64 ip;         /* its instruction pointer there, as long as the fault is not over */
    u64 address;
    u64 ran;       /* on the CPU, interrupts left out */
    u64 unsettled; /* in a fault state since the second began: it may go to the other one yet */
    u64 blocked;
    u64 runnable; /* or preempted */
    u64 longest;  /* wait: with these stacks */
    u64 user_stack;
    u64 kernel_stack;
    u64 starved_from; /* the longest time without a CPU */
    u64 starved_to;
    u32 starved_cpu;
    u8 sleep; /* SLEEP_FAULT_…: what it is taken for */
    u8 access;
    u8 woken;
    u8 unused;
};

/* The state of one recorded thread. Hot fields first: a switch touches two cache lines. */
struct thread_state {
    u64 since;      /* the ledger is complete up to here */
    u64 run_ns;     /* last switch-in */
    u64 wake_ns;    /* last wakeup */
    u64 second_end; /* the ledger's current one-second bucket ends here */
    u64 exec_seen;  /* se.sum_exec_runtime already charged */
    u64 borrowable; /* how much of the last wait's charge may turn out to have been running time */
    u64 delay_seen; /* sched_info.run_delay already charged */
    u64 nvcsw_seen; /* the kernel's count of voluntary switches */
    u32 key;
    u32 second; /* the bucket's name: seconds since the epoch */
    u8 activity;
    u8 reason;
    u8 on_mask;
    u8 news; /* a name changed: the next snapshot must carry it */
    u8 futex_lock;
    u8 owner_known;
    u8 lender;   /* the state it would be taken from: a reason, or CARRIED_… */
    u8 faulting; /* `fault` is valid */
    s32 syscall;
    u32 lock_owner;
    u32 moved_from; /* CPU left at moved_ns while waiting */
    struct ledger ledger;
    u64 carried[SLEEPS + 2]; /* unstacked ns by sleep, then runnable, then preempted */
    struct fault_state fault;
    u64 lock_address;
    u64 waker_task;
    u64 waker_user_stack;
    u64 waker_kernel_stack;
    u32 waker_tid; /* 0: an interrupt */
    u32 waker_tgid;
    u64 moved_ns;
    u64 out_user_stack; /* with stacks_at_switch_out, these and what the thread asked for */
    u64 out_kernel_stack;
    u64 out_asked_ns;
    u64 out_slack_ns;
    bool out_asked;
    u64 work_since[WORKS]; /* 0: not at it */
    u64 work_lock;
    u8 ending;         /* counted in ending_threads */
    u32 why;           /* TARGET_…: the targets that match it; 0 where everything is recorded */
    u64 open_reported; /* start of the wait that open_waits has reported */
    u64 observed_from;
    u64 boundary;
    u32 ns_tid;
    u32 ns_tgid;
    struct ledger at_boundary;
};

#define CARRIED_RUNNABLE SLEEPS
#define CARRIED_PREEMPTED (SLEEPS + 1)

/* task → its state. Created by the start-up iterator and by task_newtask; deleted by the kernel with the
 * task. Full means no memory: counted as LOSS_THREADS_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, struct thread_state);
} threads SEC(".maps");

/* tid or tgid → TARGET_THREAD, TARGET_PROCESS and TARGET_TREE: what the first look finds. Written by user
 * space before it; read while `finding_targets`. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, u32);
    __type(value, u8);
} targets SEC(".maps");

/* CPU → ring of stall, thread and second records. Created by user space, one a CPU; a full ring is
 * LOSS_RING_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, MAX_CPUS);
    __type(key, u32);
    __array(
        values, struct {
            __uint(type, BPF_MAP_TYPE_RINGBUF);
            __uint(max_entries, 4096);
        });
} rings SEC(".maps");

/* Hash of a stack → the stack. Written here, drained and deleted by user space; content-addressed, so that a
 * stack deleted and met again only costs another copy. Full: LOSS_STACKS_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_STACKS);
    __type(key, u64);
    __type(value, struct stack_record);
} stacks SEC(".maps");

/* Weights by thread, second and stacks. User space deletes the rows of past seconds, which nobody writes any
 * more: a thread's bucket is closed before its next event is counted. Full: LOSS_SAMPLES_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_SAMPLES);
    __type(key, struct sample_key);
    __type(value, struct sample_value);
} samples SEC(".maps");

/* Latency cells by thread and second; same life as `samples`. Full: LOSS_LATENCY_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_LATENCY);
    __type(key, struct latency_key);
    __type(value, struct latency_value);
} latency SEC(".maps");

/* Interrupt time by victim, CPU, cause and second; same life as `samples`. Full: LOSS_INTERRUPTS_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_INTERRUPTS);
    __type(key, struct interrupt_key);
    __type(value, struct latency_value);
} interrupts SEC(".maps");

struct loss_counts {
    u64 by_reason[LOSSES]; /* enum loss */
};

/* 0 → what this CPU has lost. Read by user space, every second: one value, not one a reason. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct loss_counts);
} losses SEC(".maps");

struct interrupt_frame {
    u64 entered;
    u64 inner; /* ns of interrupts nested in this one */
    u32 number;
    u32 kind;
};

struct run_entry {
    u64 from;
    u64 task; /* address, to look up the name if it is still the same task */
    u32 tid;
    u32 tgid;
};

struct cpu_state {
    u64 switch_ns; /* time of the switch under way; 0: none, or not recorded */
    u64 runs;      /* of the probes on this CPU */
    u64 next_timed;
    u64 timed_ns; /* one run in TIMED_EVERY, times TIMED_EVERY */
    u32 scratch_level;
    u32 interrupt_depth;
    u64 context;             /* address of the arguments of the tracepoint under way */
    u64 interrupt_stack_end; /* context.h; 0: not known yet */
    u64 guest_from;          /* on a guarded CPU: the current task is counted up to here */
    u64 guest_began;         /* and was switched in then */
    u64 run_count;           /* who was switched in here: newest at (run_count - 1) % RUN_RING */
    struct interrupt_frame interrupt[IRQ_DEPTH];
    struct run_entry run[RUN_RING];
};

/* 0 → this CPU's state. Other CPUs read who ran here: a torn entry costs a wrong name in `ran_instead`, at
 * worst. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct cpu_state);
} cpus SEC(".maps");

/* ---- small tools ---- */

ALWAYS_INLINE void lose(u32 what) {
    u32 zero = 0;
    struct loss_counts *counts = bpf_map_lookup_elem(&losses, &zero);

    if (counts && what < LOSSES)
        counts->by_reason[what]++;
}

ALWAYS_INLINE struct cpu_state *this_cpu(void) {
    u32 zero = 0;

    return bpf_map_lookup_elem(&cpus, &zero);
}

/* Whether `now` is inside the recording. Wraps for times before arming, which is outside too. */
ALWAYS_INLINE bool armed(u64 now) { return now - armed_at < window; }

ALWAYS_INLINE bool cpu_wanted(u32 cpu) {
    return !limit_cpus || (cpu < MAX_CPUS && (cpu_mask[cpu / 64] >> (cpu % 64)) & 1);
}

ALWAYS_INLINE struct thread_state *state_of(struct task_struct *task) {
    return bpf_task_storage_get(&threads, task, NULL, 0);
}

/* ---- what is sent one by one ---- */

ALWAYS_INLINE void *reserve(u64 size) {
    u32 cpu = bpf_get_smp_processor_id();
    void *ring = bpf_map_lookup_elem(&rings, &cpu);
    void *room = ring ? bpf_ringbuf_reserve(ring, size, 0) : NULL;

    if (!room)
        lose(LOSS_RING_FULL);
    return room;
}

/* Wakes the reader only when a ring fills up; it comes by itself several times a second. */
ALWAYS_INLINE u64 ring_flags(void) {
    u32 cpu = bpf_get_smp_processor_id();
    void *ring = bpf_map_lookup_elem(&rings, &cpu);

    if (ring && bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) > bpf_ringbuf_query(ring, BPF_RB_RING_SIZE) / 4)
        return BPF_RB_FORCE_WAKEUP;
    return BPF_RB_NO_WAKEUP;
}

/* ---- the ledger ---- */

/* Adds [t->since, to) to the counter of the current activity, split at `wake` into blocked and runnable, and
 * moves `since`. The general form: exact by the tracepoints' own times. */
ALWAYS_INLINE void charge_until(struct thread_state *t, u64 to) {
    u64 from = t->since;
    u64 wake;

    if ((s64)(to - from) <= 0)
        return;
    t->since = to;
    switch (t->activity) {
    case ACTIVITY_RUNNING:
        t->ledger.on_cpu += to - from;
        break;
    case ACTIVITY_PREEMPTED:
        t->ledger.preempted += to - from;
        break;
    case ACTIVITY_BLOCKED:
        wake = t->wake_ns > t->run_ns ? t->wake_ns : to;
        if (wake < from)
            wake = from;
        if (wake > to)
            wake = to;
        if (t->reason < SLEEPS)
            t->ledger.blocked[t->reason] += wake - from;
        t->ledger.runnable += to - wake;
        break;
    case ACTIVITY_NEW:
        t->ledger.runnable += to - from;
        break;
    }
}

/* ---- the page fault a thread is in: its time on the CPU moves from `kernel` to a fault state ---- */

/* A fault that failed is over without an event: the kernel then changes where its code goes on (the handler
 * of a signal, or of the error in the kernel). */
ALWAYS_INLINE bool fault_goes_on(struct thread_state *t) {
    struct pt_regs *regs = (struct pt_regs *)t->fault.frame;

    return t->fault.start >= armed_at && BPF_CORE_READ(regs, ip) == t->fault.ip;
}

/* What it took so far stays where it is; the rest is the thread's running time. */
ALWAYS_INLINE void abandon_fault(struct thread_state *t) {
    t->faulting = 0;
    t->ledger.faults[FAULT_FAILED]++;
}

ALWAYS_INLINE void charge_fault_run(struct thread_state *t, u64 to) {
    u64 interrupted = t->ledger.irq - t->fault.irq_seen;
    u64 ns = to - t->fault.charged_to;
    u32 sleep = t->fault.sleep;

    if ((s64)ns <= 0 || sleep >= SLEEPS)
        return;
    /* An interrupt that was under way when this was last charged is counted only now, with what was charged
     * then: the rest of it comes off the next time. */
    if (interrupted > ns)
        interrupted = ns;
    t->fault.irq_seen += interrupted;
    t->fault.charged_to = to;
    ns -= interrupted;
    t->ledger.blocked[sleep] += ns;
    t->ledger.fault_on_cpu += ns;
    t->fault.ran += ns;
    t->fault.unsettled += ns;
}

/* Minor or major is told at the end. What lies in past seconds stays as it was taken for. */
ALWAYS_INLINE void settle_fault(struct thread_state *t, u32 sleep) {
    u32 before = t->fault.sleep;

    if (sleep == before || before >= SLEEPS || sleep >= SLEEPS)
        return;
    t->ledger.blocked[sleep] += t->fault.unsettled;
    t->ledger.blocked[before] -= t->fault.unsettled;
    if (t->lender == before)
        t->lender = sleep;
    t->fault.sleep = sleep;
}

/* Tells user space what one looks like. */
const struct second_record no_second = {.type = RECORD_SECOND};

/* Sends the second that `at_boundary` closes; the thread had been at it since `since`. Global, so that the
 * verifier walks through it once and not for each path to it. */
__attribute__((noinline)) int send_second(struct thread_state *t, u64 since) {
    struct second_record *record;

    if (!t)
        return 0;
    record = reserve(sizeof(*record));
    if (!record)
        return 0;
    record->type = RECORD_SECOND;
    record->key = t->key;
    record->boundary = t->boundary;
    record->since = since;
    record->run_ns = t->run_ns;
    record->wake_ns = t->wake_ns;
    record->activity = t->activity;
    record->reason = t->reason;
    __builtin_memset(record->unused, 0, sizeof(record->unused));
    record->ledger = t->at_boundary;
    bpf_ringbuf_submit(record, ring_flags());
    return 0;
}

/* Closes the one-second bucket: charges up to the last second's end before `now` and keeps a copy of the
 * ledger as it was then. Rare: once a second and thread. */
NOINLINE int roll_slow(struct thread_state *t, u64 now) {
    u64 offset, epoch, end, since;

    if (!t)
        return 0;
    since = t->since;
    offset = epoch_offset;
    epoch = now + offset;
    end = epoch - epoch % 1000000000ULL;
    if (end - offset > since && end - offset <= now && since >= armed_at) {
        if (t->activity == ACTIVITY_RUNNING) {
            t->exec_seen += end - offset - since;
            if (t->faulting && fault_goes_on(t))
                charge_fault_run(t, end - offset);
        }
        charge_until(t, end - offset);
        t->fault.unsettled = 0;
        t->borrowable = 0;
        t->boundary = end - offset;
        t->at_boundary = t->ledger;
        if (unlikely(tell_seconds))
            send_second(t, since);
    }
    t->second = epoch / 1000000000ULL;
    t->second_end = end - offset + 1000000000ULL;
    return 0;
}

/* ---- own cost: one run in TIMED_EVERY is timed, since a reading of the clock costs as much as a short run
 * ---- */

ALWAYS_INLINE u64 begin_run(struct cpu_state *cpu) {
    if (likely(cpu->runs++ < cpu->next_timed))
        return 0;
    cpu->next_timed = cpu->runs + TIMED_EVERY - 1;
    return bpf_ktime_get_ns();
}

ALWAYS_INLINE void end_run(struct cpu_state *cpu, u64 began) {
    if (unlikely(began))
        cpu->timed_ns += (bpf_ktime_get_ns() - began) * TIMED_EVERY;
}

/* Must come before anything is counted for the thread at `now`. True if the bucket changed. */
ALWAYS_INLINE bool roll(struct thread_state *t, u64 now) {
    if (likely(now < t->second_end))
        return false;
    roll_slow(t, now);
    return true;
}

ALWAYS_INLINE void count_latency(struct thread_state *t, u32 metric, u64 ns) {
    struct latency_key key = {
        .key = t->key, .second = t->second, .metric = (u16)metric, .bucket = (u16)bucket_from_ns(ns)};
    struct latency_value *cell = bpf_map_lookup_elem(&latency, &key);

    /* One writer: a thread's intervals end on the CPU it comes back on. */
    if (likely(cell)) {
        cell->count++;
        cell->total += ns;
        if (ns > cell->max)
            cell->max = ns;
        return;
    }
    struct latency_value first = {.count = 1, .total = ns, .max = ns};
    if (bpf_map_update_elem(&latency, &key, &first, BPF_ANY))
        lose(LOSS_LATENCY_FULL);
}

ALWAYS_INLINE void count_sample(struct sample_key *key, u64 weight) {
    struct sample_value *row = bpf_map_lookup_elem(&samples, key);

    if (row) {
        __sync_fetch_and_add(&row->weight, weight);
        __sync_fetch_and_add(&row->count, 1);
        return;
    }
    struct sample_value first = {.weight = weight, .count = 1};
    if (!bpf_map_update_elem(&samples, key, &first, BPF_NOEXIST))
        return;
    row = bpf_map_lookup_elem(&samples, key);
    if (!row) {
        lose(LOSS_SAMPLES_FULL);
        return;
    }
    __sync_fetch_and_add(&row->weight, weight);
    __sync_fetch_and_add(&row->count, 1);
}
