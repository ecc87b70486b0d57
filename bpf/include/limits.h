/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Sizes of the kernel side's maps and buffers, each with its reason. */
#pragma once

/* Frames kept of one stack: twice perf's limit, in a record of two kilobytes. */
#define MAX_FRAMES 255
/* The most frames that bpf_get_stack returns: sysctl perf_event_max_stack. */
#define MAX_KERNEL_FRAMES 127
/* Distinct stacks between two reads. User space reads every second, sooner when it is woken. */
#define MAX_STACKS 8192
/* Distinct (thread, second, state, stacks) rows: two seconds of a very busy machine. */
#define MAX_SAMPLES 32768
/* Distinct (thread, second, metric, bucket) cells. Reading a hash map costs by its size, full or empty:
 * this map and the samples cost a millisecond together, each second. */
#define MAX_LATENCY 65536
/* Distinct (thread, cpu, cause, second) cells. */
#define MAX_INTERRUPTS 16384
/* Distinct (guarded CPU, thread or sender, interval) cells: intervals of a CPU that is badly guarded. */
#define MAX_NOISE 16384
/* CPUs that can be guarded. */
#define MAX_GUARDED 256
/* The noise on guarded CPUs is counted by intervals of this length, which are shorter than the ledgers'
 * seconds. */
#define GUARD_INTERVAL_NS 250000000ULL
/* Distinct (caller, system call, function, second) cells. */
#define MAX_CROSS_CALLS 4096
/* Places of voluntary waits that a busy machine has at a time: a thread has a few. */
#define MAX_PLACES 8192
/* Places of a thread whose verdicts it remembers for a second. A power of two. */
#define KNOWN_PLACES 4
/* Rows of busy periods: thread, second, length. */
#define MAX_SPAN_CELLS 65536
#define MAX_MARK_SLOTS 65536
/* Options --span. A power of two. */
#define MAX_SPAN_PROBES 8
#define MARK_FLUSH_NS 10000
/* Busy periods of a thread that are emitted one by one: the first of each second, one in so many after that,
 * some that last longer than most and than nearly all, and each that is longer than those before it in its
 * second. */
#define FIRST_SPANS 8
#define MAX_LATE_SPANS 32
#define MAX_RARE_SPANS 32
#define MAX_OVER_SPANS 64 /* that last longer than the budget */
#define ONE_SPAN_IN 512
/* A turn of a loop that follows a poll without events and is over sooner than this is spinning, no period. */
#define SPIN_TURN_NS 5000
/* Waits late in busy periods that are emitted of a thread in a second. */
#define MAX_LATE_WAITS 64
/* Waits that are emitted of a place whose verdict is not known: enough for a verdict and for examples. */
#define FIRST_WAITS 64
/* Slots by which the kernel side knows the threads that hold locks for which others wait: more than there are
 * such threads at a time on a busy machine. A power of two, at most 65,535. */
#define AWAITED_SLOTS 8192
/* Switches kept per CPU, to name the threads that ran instead of a waiting thread. */
#define RUN_RING 256
/* Of them, times kept per CPU in which it was the recorder's. A longer wait counts only the last ones. */
#define OWN_RING 16
/* Threads named in `ran_instead`, most recent first; the time of the others is not divided. */
#define MAX_RAN 8
/* Interrupts nest at most task, softirq, hardirq, NMI. A power of two: indices are masked. */
#define IRQ_DEPTH 8
/* Stack scratch buffers: a tracepoint program, the sampler that interrupts it, and an NMI sampler in that. */
#define SCRATCH_LEVELS 4
#define MAX_CPUS 1024
/* The recorded cgroup is looked for this many levels up. */
#define MAX_CGROUP_DEPTH 32
/* Hierarchies of cgroups that a task is in: one a controller, and some with a name only. */
#define MAX_HIERARCHIES 32
/* Parents that are searched, once, to find a process whose children are recorded: a chain of shells is
 * some ten long. */
#define MAX_ANCESTORS 4096
#define MAX_SYSCALLS 512
/* Globs of --name: two kilobytes each. */
#define MAX_NAME_GLOBS 8
/* This much of a program's file name is matched, its NUL included; threads' names are shorter. */
#define NAME_BYTES 64
#define MAX_SITES 128
/* Functions that run softirqs for the current task, including parts that compilers split off. */
#define MAX_TASK_SOFTIRQS 8
#define MAX_REGISTER_WRITERS 8
/* Frames that are searched to classify an uninterruptible sleep. */
#define SITE_FRAMES 16

/* The largest distance between the scheduler's clock and the tracepoint's time of one switch. A larger one
 * is steal or interrupt time, which sum_exec_runtime leaves out and wall time does not. */
#define SWITCH_LAG_NS 20000ULL

/* One run in this many is timed. Prime, so that no pattern of switches and wakeups hides a program. */
#define TIMED_EVERY 61
