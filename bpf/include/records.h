/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Everything that crosses from the kernel side to user space, declared once. Plain integers, no padding:
 * Rust's view of these is generated from the object's type information. Times are CLOCK_MONOTONIC ns. */
#pragma once

#include "integers.h"
#include "limits.h"
#include "reasons.h"

#define COMM_LEN 16

/* Everything that a thread can sleep for: the reasons, and then the page fault that it is in. */
enum sleep {
    SLEEP_FAULT_MINOR = REASONS,
    SLEEP_FAULT_MAJOR,
    SLEEPS,
};

/* The class of a system call, which says what a sleep in it waits for. Below REASONS: the reason itself. */
enum syscall_class {
    CLASS_NONE = 32,
    CLASS_FUTEX = 33,       /* by operation and value */
    CLASS_FILE = 34,        /* first argument is a descriptor: by its type */
    CLASS_FCNTL = 35,       /* a lock if the command waits for one */
    CLASS_CHILD_IF_D = 36,  /* clone, vfork: uninterruptible means waiting for the vforked child */
    CLASS_DISK_IF_D = 37,   /* fsync and similar calls wait uninterruptibly without in_iowait */
    CLASS_MEMORY_IF_D = 38, /* mmap, munmap …: uninterruptible means the mmap lock */
    CLASS_COMPLETION = 39,  /* io_uring_enter: like poll, though the kernel says iowait */
};

/* What a thread does between two events. */
enum activity {
    ACTIVITY_UNKNOWN = 0, /* no event since arming; the first one, or the iterator, determines it */
    ACTIVITY_RUNNING = 1,
    ACTIVITY_PREEMPTED = 2,
    ACTIVITY_BLOCKED = 3, /* woken when wake_ns is later than run_ns */
    ACTIVITY_NEW = 4,     /* created, waiting for its first CPU */
    ACTIVITY_DEAD = 5,
};

/* Why a thread is recorded: the given targets that match it, a bit each. */
#define TARGET_THREAD 1         /* -t: this thread, not the tasks that it starts */
#define TARGET_PROCESS 2        /* -p: later threads of the process, too */
#define TARGET_TREE 4           /* -p --children, -- CMD: also the processes that it starts */
#define TARGET_NAMED_THREAD 8   /* --name, by the thread's own name */
#define TARGET_NAMED_PROCESS 16 /* --name, by the process's: later threads, too */
#define TARGET_GROUP 32         /* --cgroup */

/* How a page fault ends. */
enum fault_end {
    FAULT_MINOR = 0,
    FAULT_MAJOR = 1,
    FAULT_FAILED = 2, /* a signal instead of a page, or an error instead of data */
};

#define FAULT_ENDS 3

/* A thread's wall time by state, cumulative since arming, ns; and counts. */
struct ledger {
    u64 on_cpu;
    u64 irq;
    u64 runnable;
    u64 preempted;
    u64 blocked[SLEEPS];
    u64 fault_on_cpu; /* the part of on_cpu that is in blocked[SLEEP_FAULT_…] */
    u64 faults[FAULT_ENDS];
    u64 voluntary;
    u64 involuntary;
    u64 user_samples;
    u64 kernel_samples;
};

_Static_assert(sizeof(struct ledger) == 8 * (4 + SLEEPS + 1 + FAULT_ENDS + 4), "ledger has no padding");

enum record_type {
    RECORD_THREAD = 1,
    RECORD_STALL = 2,
    RECORD_OPEN = 3,
    RECORD_DELAY = 4,
    RECORD_SECOND = 5,
    RECORD_HOLDER_SAMPLE = 6,
    RECORD_SPAN = 7,
    RECORD_LATE = 8,
    RECORD_MARKED = 9,
    RECORD_PROBED = 10,
};

/* A thread as it is now: from the iterator, and once more when it ends. */
struct thread_record {
    u32 type;
    u32 key; /* this recording's number of the thread */
    u32 tid;
    u32 tgid;
    u32 ns_tid;
    u32 ns_tgid;
    u64 start_boottime;
    u64 observed_from; /* arming or the thread's creation */
    u64 now;           /* when this record was made */
    u64 since;         /* the ledger is complete up to here */
    u64 run_ns;        /* last switch-in */
    u64 wake_ns;       /* last wakeup */
    u64 boundary;      /* the last end of a second that the thread has passed with an event; 0: none */
    u32 exec_id;
    u8 activity;
    u8 reason;
    u8 kernel_thread;
    u8 on_mask; /* it ran on one of the CPUs of -C */
    u8 comm[COMM_LEN];
    u8 process[COMM_LEN];
    struct ledger ledger;
    struct ledger at_boundary;
};

/* A thread's sums at a second's end, and its activity from its last event before that to there. */
struct second_record {
    u32 type;
    u32 key;
    u64 boundary; /* the second's end, or the last one of several without an event */
    u64 since;
    u64 run_ns;
    u64 wake_ns;
    u8 activity;
    u8 reason;
    u8 unused[6];
    struct ledger ledger;
};

_Static_assert(sizeof(struct second_record) == 48 + sizeof(struct ledger), "second_record has no padding");

/* Another thread, named without a reference to it. */
struct other_thread {
    u32 tid;
    u32 tgid;
    u8 comm[COMM_LEN];
};

struct ran {
    struct other_thread thread;
    u64 ns;
};

enum stall_flags {
    STALL_PREEMPTED = 1,
    STALL_WOKEN = 2,          /* waker is valid */
    STALL_LOCK = 4,           /* lock_address is valid */
    STALL_OWNER = 8,          /* lock_owner is valid */
    STALL_ASKED = 16,         /* asked_ns is valid */
    STALL_FAULT = 32,         /* a page fault: blocked_ns and fault are valid, reason is SLEEP_FAULT_… */
    STALL_FILE = 64,          /* a wait for a disk or the kernel: `fault` has the file */
    STALL_WORD = 128,         /* word and word_definition are valid */
    STALL_PEER = 256,         /* peer is valid */
    STALL_KERNEL_OWNER = 512, /* kernel_owner is valid: it has the lock of the kernel that is waited for */
    STALL_BRIEF = 1024,       /* too short for a stall: only its place is of interest */
    STALL_OWNER_IF_IT_WOKE = 2048, /* lock_owner may be a number of another pid namespace */
    STALL_TRACE = 4096,            /* trace is valid */
    STALL_NEW = 8192,              /* beside STALL_PREEMPTED: it was created, and waited for its first CPU */
};

enum fault_access {
    ACCESS_UNKNOWN = 0,
    ACCESS_READ = 1,
    ACCESS_WRITE = 2,
    ACCESS_EXEC = 3,
};

enum fault_mapping {
    MAPPING_UNKNOWN = 0,
    MAPPING_FILE = 1,
    MAPPING_ANONYMOUS = 2,
    MAPPING_STACK = 3,
    MAPPING_HEAP = 4,
    MAPPING_HUGE = 5, /* reserved huge pages */
};

#define FILE_NAME_LEN 64
/* file_offset of a call about the whole file. */
#define NO_OFFSET (~0ULL)

/* The facts of a page fault; or, with STALL_FILE, the file of a system call. */
struct fault_facts {
    u64 address; /* with STALL_FILE the descriptor */
    u64 inode;   /* these three with MAPPING_FILE only */
    u64 file_offset;
    u32 device;
    u8 access;
    u8 mapping;
    u8 unused[2];
    u8 file_name[FILE_NAME_LEN]; /* without its directories */
};

/* What the threads do that wait voluntarily at a place. User space judges by the threads that end the
 * waits. */
enum place_verdict {
    PLACE_UNKNOWN = 0,
    PLACE_IDLE = 1,
    PLACE_NOT_IDLE = 2,   /* they wait for each other, as for a lock */
    PLACE_NO_LOCK = 3,    /* of a wait whose value alone says that it is for a lock: it is for none */
    PLACE_IDLE_ASKED = 4, /* it was idle: whether it still is, its waits, one by one again, have to say */
};

struct wait_place {
    u32 sent; /* waits that were emitted because the place is unknown */
    u32 verdict;
};

/* How the code of a process finds the variable `otel_thread_ctx_v1` of the running thread, in which threads
 * publish the trace that they work for (OpenTelemetry's OTEP 4947): `trace_at` is, by psABI for x86-64 and
 * "ELF Handling For Thread-Local Storage", */
enum trace_access {
    TRACE_NONE = 0,      /* nothing: there is no such variable */
    TRACE_OFFSET = 1,    /* its distance from the thread pointer */
    TRACE_OFFSET_AT = 2, /* the address of that distance */
    TRACE_INDEX_AT = 3,  /* the address of the number of its module and of its offset in the module's block */
    TRACE_DESCRIPTOR = 4, /* the address of a TLS descriptor, whose second word is the distance or leads to
                             number and offset */
};

/* Bytes of an entry in a thread's vector of blocks: a block and what to free, or the block alone. */
#define GLIBC_DTV_ENTRY 16
#define MUSL_DTV_ENTRY 8

/* What the threads of a process say in words of its memory. User space finds them. */
struct process_words {
    u64 wait;       /* the address of what they wait for; 0: none */
    u64 trace_at;   /* by `trace` */
    u32 exec_id;    /* the process image that has them */
    u32 definition; /* user space's number for the rule that names the word `wait` */
    u8 bytes;       /* of that word: 1 to 8 */
    u8 is_pointer;  /* `wait` has a pointer to the word */
    u8 trace;       /* enum trace_access */
    u8 dtv_entry;   /* GLIBC_DTV_ENTRY or MUSL_DTV_ENTRY */
    u8 unused[4];
};

_Static_assert(sizeof(struct process_words) == 32, "process_words has no padding");

/* The ids of a trace and of its span, as in memory: the bytes of W3C's Trace Context in their order. */
struct trace_ids {
    u64 trace_id[2];
    u64 span_id;
};

enum peer_kind {
    PEER_TCP = 1,
    PEER_UDP = 2,
    PEER_UNIX = 3,
    PEER_PIPE = 4,
};

/* The side of a connection that the waiting thread is on. */
enum peer_role {
    PEER_ROLE_UNKNOWN = 0,
    PEER_ROLE_CLIENT = 1, /* it made the connection */
    PEER_ROLE_SERVER = 2, /* it accepted the connection */
};

/* Whether something was sent since the thread waited on the same connection the last time. */
enum peer_asked {
    ASKED_UNKNOWN = 0,
    ASKED_NO = 1,
    ASKED_YES = 2,
};

/* The aim of a thread that polls one descriptor. Of several it is not known which one is waited for. */
enum peer_polled {
    POLLED_NOTHING = 0, /* several, or it does not poll */
    POLLED_DATA = 1,
    POLLED_SPACE = 2,
    POLLED_CONNECTION = 3, /* that the thread has begun to make, or is to accept */
};

/* The other end of the socket or the pipe that a thread waits on. */
struct wait_peer {
    u64 inode;     /* of the thread's own socket, or of the pipe */
    u8 local[16];  /* as on the wire; an IPv4 address has four bytes */
    u8 remote[16]; /* likewise */
    u16 local_port;
    u16 remote_port;
    u32 pid; /* of a unix socket: who listened there, or who connected; 0: not known */
    u8 kind;
    u8 family; /* of the addresses: 4, 6, or 0 without them */
    u8 role;
    u8 asked;
    u8 by_child; /* a child of the process ended the wait */
    u8 polled;   /* POLLED_…: of a wait in poll */
    u8 unused[2];
};

_Static_assert(sizeof(struct wait_peer) == 56, "wait_peer has no padding");

/* One off-CPU interval or page fault that is emitted by itself. */
struct stall_record {
    u32 type;
    u32 key;
    u64 start;
    u64 end;
    u64 runnable_ns;
    u64 blocked_ns;
    u64 user_stack; /* 0: none */
    u64 kernel_stack;
    u64 waker_user_stack;
    u64 waker_kernel_stack;
    u64 lock_address;
    u64 place; /* of a voluntary wait, as wait_place.h numbers it; or of one whose value alone says that it is
                * for a lock, as futex.h does; 0: none */
    u64 asked_ns;
    u64 slack_ns; /* how much later than asked for the kernel may be by its own rules */
    u64 word;     /* what the process's word said when the wait began */
    u32 word_definition;
    s32 priority;   /* the kernel's: below 100 real-time, 120 ordinary, less is more urgent; with what it
                       inherits */
    u32 lock_owner; /* tid in the waiting thread's pid namespace */
    s32 syscall;    /* -1: not in one */
    u32 cpu;
    u16 flags;
    u8 reason;
    u8 rans;
    u8 comm[COMM_LEN];
    struct other_thread waker;
    struct ran ran[MAX_RAN];
    struct fault_facts fault;
    struct wait_peer peer;
    struct other_thread kernel_owner;
    struct trace_ids trace;
};

_Static_assert(sizeof(struct stall_record) % 8 == 0, "stall_record is a multiple of eight");

/* One sample of a running thread that holds a lock for which another one waits. */
struct holder_sample_record {
    u32 type;
    u32 key;
    u64 now;
    u64 user_stack;
};

enum look_flags {
    LOOK_KERNEL_THREAD = 1,
    LOOK_LOCK = 4,         /* lock_address is valid */
    LOOK_OWNER = 8,        /* lock_owner is valid */
    LOOK_MOVED = 16,       /* it ran in each walk of its stacks: it has none */
    LOOK_WORD = 32,        /* word and word_definition are valid */
    LOOK_KERNEL_OWNER = 2, /* kernel_owner is valid: the holder of a lock of the kernel */
};

/* What a look at all threads does. */
enum look_pass {
    LOOK_LISTS = 0,   /* who they are, without stacks */
    LOOK_WALKS = 1,   /* threads off the CPU */
    LOOK_AT_REST = 2, /* the threads that had the CPU before */
};

/* One thread as it is now. */
struct look_record {
    u32 key;
    u32 tid;
    u32 tgid;
    u32 ns_tid;
    u32 ns_tgid;
    u32 exec_id;
    u64 start_boottime;
    u64 now;   /* when it was looked at */
    u64 since; /* scheduler's clock: it has been doing this since then, if that clock counts all time */
    u64 since_latest; /* scheduler's clock: at least since then; 0: not known */
    u64 user_stack;   /* 0: none */
    u64 kernel_stack;
    u64 lock_address;
    u32 lock_owner; /* tid in the thread's pid namespace */
    s32 syscall;    /* -1: not in one */
    u8 activity;    /* ACTIVITY_RUNNING, ACTIVITY_PREEMPTED (waits for a CPU) or ACTIVITY_BLOCKED */
    u8 reason;
    u8 walks;
    u8 flags;
    u32 word_definition;
    u64 word; /* what the process's word says about its wait */
    struct other_thread kernel_owner;
    u8 comm[COMM_LEN];
    u8 process[COMM_LEN];
};

_Static_assert(sizeof(struct look_record) == 160, "look_record has no padding");

/* Why the kernel delays a thread. */
enum delay_kind {
    DELAY_RECLAIM = 0,    /* frees memory, because there was none or a cgroup has reached its limit */
    DELAY_COMPACTION = 1, /* compacts memory, for a large allocation */
    DELAY_LOCK = 2,       /* waits for a lock of the kernel's own */
};

#define DELAYS 3

/* One interval of it. */
struct delay_record {
    u32 type;
    u32 key;
    u64 start;
    u64 end;
    u32 kind;
    u32 mmap_lock; /* DELAY_LOCK: for the process's memory map */
};

/* A distinct stack; the key of its map is a hash over everything in it. */
struct stack_record {
    u32 tgid; /* 0: a kernel stack */
    u32 exec_id;
    u16 frames;
    u16 end;        /* crates/model/src/stack.rs StackEnd */
    u32 from_probe; /* taken in a tracepoint: the leaf frames are the probe's own */
    u64 address[MAX_FRAMES];
};

enum sample_what {
    SAMPLE_USER = 0,
    SAMPLE_KERNEL = 1,
    SAMPLE_FAULT_MINOR = 3,
    SAMPLE_FAULT_MAJOR = 4,
    SAMPLE_RUNNABLE = 5,
    SAMPLE_PREEMPTED = 6,
    SAMPLE_BLOCKED = 16, /* + reason */
    SAMPLE_EVENT = 64,   /* + index in event */
};

struct sample_key {
    u32 key;
    u32 second;
    u64 user_stack;
    u64 kernel_stack;
    u64 waker_user_stack;
    u64 waker_kernel_stack;
    u32 waker_tid;
    u16 event;
    u8 what;
    u8 woken;
};

struct sample_value {
    u64 weight;
    u64 count;
};

enum latency_metric {
    METRIC_OFF_CPU = 0, /* within faults; the metrics from METRIC_OFF_CPU_PREEMPTED on have the others: */
    METRIC_RUN_QUEUE = 1,
    METRIC_FAULT = 2,
    METRIC_OFF_CPU_PREEMPTED = 3,
    METRIC_OFF_CPU_RUNNABLE = 4,
    METRIC_BLOCKED = 16,         /* + reason: the blocked part */
    METRIC_OFF_CPU_BLOCKED = 32, /* + reason: the whole interval */
};

/* More reasons than this need other codes here, in the recording and in crates/model/src/state.rs. */
_Static_assert(REASONS <= (int)METRIC_OFF_CPU_BLOCKED - (int)METRIC_BLOCKED,
               "reasons fit between the metrics");
_Static_assert(REASONS <= (int)SAMPLE_EVENT - (int)SAMPLE_BLOCKED,
               "reasons fit between the kinds of samples");
_Static_assert((int)SLEEPS <= (int)CLASS_NONE, "a class is no reason");

struct latency_key {
    u32 key;
    u32 second;
    u16 metric;
    u16 bucket;
};

struct latency_value {
    u64 count;
    u64 total;
    u64 max;
};

/* A part of a thread's ledger. */
struct span_states {
    u64 on_cpu; /* with interrupts, and with fault_on_cpu */
    u64 irq;
    u64 runnable;
    u64 preempted;
    u64 fault_on_cpu; /* the part of on_cpu that is in blocked[SLEEP_FAULT_…] */
    u64 blocked[SLEEPS];
};

/* One busy period. The sums have it, too. */
struct span_record {
    u32 type;
    u32 key;
    u64 start;
    u64 end;
    struct span_states states;
};

_Static_assert(sizeof(struct span_record) == 24 + sizeof(struct span_states), "span_record has no padding");

/* What a thread did late in a busy period: a sample of the ledger's clock, or a wait that no stall is. And
 * each such sample in a span that the thread marks: user space knows how long that had lasted by then. The
 * samples by stack have them, too. */
#define LATE_IN_BUSY 1
#define LATE_IN_MARKED 2
#define LATE_IN_PROBED 4

struct late_record {
    u32 type;
    u32 key;
    u64 at; /* when the sample was taken or the wait was over */
    u64 ns; /* what the sample stands for; of a wait the part before its wakeup */
    u64 runnable_ns;
    u64 user_stack;
    u64 kernel_stack;
    u32 what;   /* enum sample_what */
    u32 within; /* LATE_IN_… */
};

/* `id` of a marked_record that is no span. */
#define MARK_UNREADABLE (~0ULL)
#define MARK_SLOT_FOUND (~1ULL)

/* A thread, by its number inside of its pid namespace: the process may not know another one. */
struct mark_slot_key {
    u32 tgid;
    u32 ns_tid;
};

/* Where a thread marks its spans: the address of the number of its current one. */
struct mark_slot {
    u64 address;
    u32 exec_id;
    u32 unused;
};

/* What a thread was not running for in one span that it marked, as far as it was seen. Running time counts
 * from one reading to the next, not from the span's start. */
struct marked_record {
    u32 type;
    u32 key;
    u64 id;
    u64 from;       /* the span was read first then */
    u64 at;         /* another one, or none, was read then */
    u64 incomplete; /* records were lost between the two, perhaps of other spans */
    struct span_states states;
};

_Static_assert(sizeof(struct marked_record) == 40 + sizeof(struct span_states),
               "marked_record has no padding");

/* What the cookie of a probe of --span has: the number of the option, and whether the probe is at a
 * function's start or end. */
#define SPAN_PROBE_MASK (MAX_SPAN_PROBES - 1)
#define SPAN_PROBE_CALL 0x100
/* The probe is at a conditional jump out of the function: `tttn` of its opcode follows. */
#define SPAN_PROBE_CONDITION 0x200
#define SPAN_PROBE_CONDITION_SHIFT 12

/* One span of --span, and what the ledger gained meanwhile: its running time up to the last switch only. */
struct probed_record {
    u32 type;
    u32 key;
    u64 start;
    u64 end;
    u32 span; /* the number of its --span */
    u32 unused;
    struct span_states states;
};

_Static_assert(sizeof(struct probed_record) == 32 + sizeof(struct span_states),
               "probed_record has no padding");

struct span_key {
    u32 key;
    u32 second;
    u32 bucket;
};

/* Busy periods of one thread, second and length. */
struct span_value {
    u64 count;
    u64 max;
    struct span_states states;
};

enum interrupt_kind {
    INTERRUPT_IRQ = 0,
    INTERRUPT_SOFTIRQ = 1,
    INTERRUPT_VECTOR = 2,
};

struct interrupt_key {
    u32 key; /* victim; 0: the idle task or a thread that is not recorded */
    u32 second;
    u16 cpu;
    u16 kind;
    u32 number; /* irq, softirq index, or vector index of include/vectors.h */
};

enum noise_kind {
    NOISE_TASK = 0, /* ran there */
    NOISE_SENT = 1, /* an interrupt that another CPU sent there */
};

struct noise_key {
    u64 function; /* the function to be called there, by its address; 0: none, the CPU is to look for another
                     task */
    u64 interval; /* number of the GUARD_INTERVAL_NS of the wall clock */
    u32 tid;      /* the task, or the sender; 0: sent from an interrupt or an idle CPU */
    u16 cpu;
    u16 kind;
};

struct noise_counts {
    u64 count; /* runs that ended, or interrupts */
    u64 total;
    u64 max;
    u32 tgid;
    u32 kernel_thread;
    u8 comm[COMM_LEN];
};

/* Functions called on other CPUs. */
struct cross_call_key {
    u64 function; /* a kernel address */
    u32 tid;      /* the caller */
    u32 tgid;
    s32 syscall; /* -1: not in one */
    u32 second;
};

struct cross_call_value {
    u64 count;
    u8 comm[COMM_LEN];
};

enum loss {
    LOSS_RING_FULL = 0,    /* stall events */
    LOSS_STACKS_FULL = 1,  /* distinct stacks */
    LOSS_SAMPLES_FULL = 2, /* sample rows */
    LOSS_LATENCY_FULL = 3, /* latency cells */
    LOSS_INTERRUPTS_FULL = 4,
    LOSS_THREADS_FULL = 5, /* no memory for a thread's state */
    LOSS_SCRATCH_BUSY = 6, /* nested deeper than SCRATCH_LEVELS */
    LOSS_NO_WAKEUP = 7,    /* sleeps that ended without a wakeup that was seen */
    LOSS_INTERRUPT_DEPTH = 8,
    LOSS_FOLDED = 9, /* waits below a threshold that was raised under load: in the ledger, not one by one */
    LOSS_NO_SWITCH = 10,  /* switch-outs that were not seen */
    LOSS_NOISE_FULL = 11, /* rows about guarded CPUs */
    LOSS_CROSS_CALLS_FULL = 12,
    LOSS_SPANS_FULL = 13,
    LOSS_OVER_BUDGET = 14,       /* busy periods over their budget, not emitted one by one */
    LOSS_ENDS_FULL = 15,         /* ends of threads that found a full ring */
    LOSS_PROBED_SPANS = 16,      /* spans of --span that found a full ring, or no memory for their start */
    LOSS_SPANS_WITHOUT_END = 17, /* spans of --span that began again before their end */
    LOSS_LATE = 18,              /* samples and waits late in spans that found a full ring */
    LOSS_PERIODS_ABANDONED = 19,
    LOSSES = 20,
};

/* A glob over names as an automaton, one bit a state. State i: i characters are matched. */
struct name_glob {
    u64 takes[256]; /* by byte: the states from which it leads to the next one */
    u64 loops;      /* states that any byte leads back to: before a `*` */
    u64 accepts;    /* the last state */
};

/* A half-open range of kernel text whose sleepers have this reason. */
struct text_range {
    u64 from;
    u64 to;
    u64 reason;
};
