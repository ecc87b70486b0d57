/* Sizes of what the kernel side keeps, each with its reason. */
#pragma once

/* Frames kept of one stack: twice what perf keeps, in a record of two kilobytes. */
#define MAX_FRAMES 255
/* What bpf_get_stack returns at most: sysctl perf_event_max_stack. */
#define MAX_KERNEL_FRAMES 127
/* Distinct stacks between two drains. User space drains every second, sooner when told. */
#define MAX_STACKS 8192
/* Distinct (thread, second, state, stacks) rows: two seconds' worth of a very busy machine. */
#define MAX_SAMPLES 32768
/* Distinct (thread, second, metric, bucket) cells. Reading a hash map costs by its size, full or empty: this
 * one and the samples together a millisecond, each second. */
#define MAX_LATENCY 65536
/* Distinct (thread, cpu, cause, second) cells. */
#define MAX_INTERRUPTS 16384
/* Distinct (guarded CPU, thread or sender, slice) cells: slices of a CPU that is far from kept for others. */
#define MAX_GUESTS 16384
/* CPUs that may be guarded. */
#define MAX_GUARDED 256
/* What runs on guarded CPUs is told by slices of this long: sooner than the ledgers' seconds. */
#define GUARD_SLICE_NS 250000000ULL
/* Distinct (caller, system call, function, second) cells. */
#define MAX_CROSS_CALLS 4096
/* Switches remembered per CPU, to tell who ran instead of a waiting thread. */
#define RUN_RING 256
/* Threads named in `ran_instead`, most recent first; the rest is summed up. */
#define MAX_RAN 8
/* Interrupts nest at most task, softirq, hardirq, NMI. A power of two: indices are masked. */
#define IRQ_DEPTH 8
/* Stack scratch: a tracepoint program, the sampler in the middle of it, and an NMI sampler in that. */
#define SCRATCH_LEVELS 4
#define MAX_CPUS 1024
/* Cgroups this deep are looked through to find the recorded one above them. */
#define MAX_CGROUP_DEPTH 32
/* Hierarchies of cgroups that a task is in: there are as many as controllers, and some with a name only. */
#define MAX_HIERARCHIES 32
/* Parents looked at, once, to find a process whose children are recorded: a chain of shells is some ten long.
 */
#define MAX_ANCESTORS 4096
#define MAX_SYSCALLS 512
/* Globs of --name: two kilobytes each. */
#define MAX_NAME_GLOBS 8
/* Of a program's file name this much is looked at, its NUL included; threads' names are shorter. */
#define NAME_BYTES 64
#define MAX_SITES 64
/* Functions that run softirqs for the current task, parts that compilers split off included. */
#define MAX_TASK_SOFTIRQS 8
/* How many frames are looked at to classify an uninterruptible sleep. */
#define SITE_FRAMES 16

/* How far the scheduler's clock and the tracepoint's time of one switch may lie apart. More than that is
 * stolen or interrupt time, which sum_exec_runtime leaves out and wall time does not. */
#define SWITCH_LAG_NS 20000ULL

/* One run in this many is timed. Prime, so that no pattern of switches and wakeups hides a program. */
#define TIMED_EVERY 61
