/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* One recorded thread: what it is doing, its ledger, and the page fault that it is in. */
#pragma once

#include "settings.h"

/* Who has a lock of the kernel that a thread waits for. */
struct kernel_owner {
    u64 task;
    u32 tid; /* 0: none is known */
    u32 tgid;
};

/* The page fault that a thread is in. */
struct fault_state {
    u64 start;
    u64 charged_to; /* its time on the CPU is in the ledger up to here */
    u64 irq_seen;   /* ledger.irq at that time */
    u64 frame;      /* address of the registers of the code that faulted, in the kernel */
    u64 ip;         /* its instruction pointer there, while the fault is not over */
    u64 address;
    u64 ran;       /* on the CPU, interrupts left out */
    u64 unsettled; /* in a fault state since the second started: it can still move to the other fault state */
    u64 earlier;   /* in the other fault state, where it stays: that of the seconds before */
    u64 blocked;
    u64 runnable; /* or preempted */
    u64 longest;  /* longest wait, which has these stacks */
    u64 user_stack;
    u64 kernel_stack;
    u64 starved_from; /* the longest time without a CPU */
    u64 starved_to;
    struct kernel_owner owner; /* of the lock that the longest wait was for */
    u32 starved_cpu;
    u8 sleep; /* SLEEP_FAULT_…: the state it is charged to so far */
    u8 access;
    u8 woken;
    u8 unused;
};

/* Whether a place is idle, as looked up in that second. */
struct known_place {
    u64 number;
    u32 second;
    u32 is_idle;
};

/* The state of one recorded thread. Hot fields come first: a switch touches two cache lines. */
struct thread_state {
    u64 since;      /* the ledger is complete up to here */
    u64 run_ns;     /* last switch-in */
    u64 wake_ns;    /* last wakeup */
    u64 second_end; /* the ledger's current one-second bucket ends here */
    u64 exec_seen;  /* se.sum_exec_runtime already charged */
    u64 borrowable; /* the part of the last wait's charge that may turn out to be running time */
    u64 delay_seen; /* sched_info.run_delay already charged */
    u64 nvcsw_seen; /* the kernel's count of voluntary switches */
    u32 key;
    u32 second; /* the bucket: seconds since the epoch */
    u8 activity;
    u8 reason;
    u8 on_mask;
    u8 changed;     /* a name changed: the next snapshot must contain the thread */
    u8 futex;       /* enum futex_use */
    u8 owner_known; /* enum owner_known */
    u8 lender;      /* the state that `borrowable` is taken from: a reason, or CARRIED_… */
    u8 faulting;    /* `fault` is valid */
    s32 syscall;
    u32 lock_owner;
    u32 moved_from; /* CPU left at moved_ns while waiting */
    u8 kernel_lock; /* enum kernel_lock: the lock of the kernel that it waits for, at `delay_lock` */
    u16 awaits;     /* 1 + the slot of the thread whose lock it waits for, in `awaited`; 0: none */
    struct ledger ledger;
    s64 carried[SLEEPS + 2]; /* ns without stacks, by sleep, then runnable, then preempted; below 0: counted
                              * with a stack, and found to be running time since */
    struct fault_state fault;
    u64 lock_address;
    u64 two_site;    /* of a wait whose value alone says that it is for a lock, futex.h; 0: another wait */
    u64 number_word; /* of the last futex that it waited for as for no lock; 0: none */
    u64 waker_task;
    u64 waker_user_stack;
    u64 waker_kernel_stack;
    u32 waker_tid; /* 0: an interrupt */
    u32 waker_tgid;
    u64 moved_ns;
    u64 out_user_stack; /* with stacks_at_switch_out: these stacks, and the timeout that the thread asked for
                         */
    u64 out_kernel_stack;
    u64 out_asked_ns;
    u64 out_slack_ns;
    bool out_asked;
    u64 delay_since[DELAYS]; /* by delay_kind; 0: not in one */
    u64 delay_lock;
    struct kernel_owner kernel_owner; /* of that lock, when the thread went to sleep */
    u8 ending;                        /* counted in ending_threads */
    u8 looked;                        /* its record of this look is written */
    u32 matches;       /* TARGET_…: the targets that match the thread; 0 where everything is recorded */
    u64 open_reported; /* start of the wait that open_waits has emitted */
    u64 observed_from;
    u64 boundary;
    u32 ns_tid;
    u32 ns_tgid;
    struct ledger at_boundary;
    u32 words_seen; /* the version of `process_words` that `words` is from */
    bool word_known;
    bool trace_known;
    u32 word_definition; /* these two: read at the start of the wait, if word_known */
    u64 word;
    u64 place;     /* of a voluntary wait, wait_place.h; 0: its start was not seen */
    u64 call_from; /* the last system call that it slept in: where it was made, and when the sleep began */
    u64 call_since;
    bool continued; /* the present wait goes on with that one */
    struct process_words words;
    struct trace_ids trace; /* read with the present stall, if trace_known */
    u64 asked_sock; /* the connection that the thread last waited on as a client, and what it had sent then */
    u32 asked_sequence;
    u8 asked_parts;  /* how often it slept there since it sent something, after the first time */
    u8 asked_rounds; /* how often in a row it slept there for an answer in few parts */
    u8 asked;        /* ASKED_…: of the present wait */
    u8 polled;       /* POLLED_…: of the present wait, for polled_fd */
    u32 polled_fd;
    u64 busy_from;           /* start of the busy period, span.h; 0: none yet */
    u64 busy_place;          /* where the wait was that ended then */
    bool idle;               /* the present wait is at an idle place */
    bool busy_in_call;       /* of the busy period, loop.bpf.c: no poll has returned since its start */
    bool busy_after_nothing; /* and this one: it started with a poll that found nothing */
    u64 busy_longest;        /* of busy_second */
    u32 busy_second;
    u32 busy_count;
    u64 late_ns;    /* about one period in twenty lasts longer */
    u64 rare_ns;    /* about one in a thousand does */
    u32 late_spans; /* these four: of busy_second */
    u32 rare_spans;
    u32 late_waits;
    u32 over_spans;
    struct span_states busy_states; /* what the ledger had at the period's start */
    struct known_place known_places[KNOWN_PLACES];
    u32 marks_seen; /* the version of `mark_slots` that the next two are from; mark.h */
    u32 mark_exec_id;
    u64 mark_slot; /* where the thread marks its spans; 0: it does not */
    u64 marked;    /* the span that was last read; 0: none */
    u64 marked_ns; /* the ledger's time off the CPU, in faults and interrupts then */
    u64 marked_from;
    u64 marks_lost_from; /* 0: no record found a full ring since the last one */
    bool marking;
    struct span_states marked_base; /* the ledger then */
};

#define CARRIED_RUNNABLE SLEEPS
#define CARRIED_PREEMPTED (SLEEPS + 1)

/* task → its state. Created by the start-up iterator and by task_newtask, deleted by the kernel with the
 * task. Without memory for it the thread is not recorded: LOSS_THREADS_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, struct thread_state);
} threads SEC(".maps");

ALWAYS_INLINE struct thread_state *state_of(struct task_struct *task) {
    return bpf_task_storage_get(&threads, task, NULL, 0);
}

/* A thread's first event since arming: it has been in `activity`, which now ends, since `armed_at`. */
ALWAYS_INLINE void start_observing(struct thread_state *t, struct task_struct *task, u8 activity) {
    u64 from = armed_at;

    if (t->observed_from > from)
        from = t->observed_from;
    t->since = from;
    t->observed_from = from;
    t->run_ns = from;
    t->wake_ns = 0;
    t->second_end = 0;
    t->borrowable = 0;
    t->activity = activity;
    t->reason = REASON_OTHER;
    t->syscall = -1;
    t->word_known = false;
    t->trace_known = false;
    t->place = 0;
    t->asked = ASKED_UNKNOWN;
    t->polled = POLLED_NOTHING;
    t->busy_from = 0;
    t->idle = false;
    t->awaits = 0; /* the slots were cleared since */
    if (t->fault.start < from)
        t->faulting = 0;
    t->nvcsw_seen = task->nvcsw;
}
