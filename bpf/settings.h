/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What user space decides, before loading and while the programs run. Times are CLOCK_MONOTONIC ns. */
#pragma once

#include "bpf_api.h"
#include "include/records.h"

/* Take both stacks at switch-out: a kernel without sched_exit_tp has no better place. */
const volatile bool stacks_at_switch_out = false;
/* Record every thread; else only threads with a state, which target selection and inheritance create. */
const volatile bool every_thread = false;
/* --children: the targets contain a TARGET_TREE. */
const volatile bool follow_children = false;
/* -C: a thread counts once it has run on one of these CPUs. Samples and stalls are taken on them only. */
const volatile bool limit_cpus = false;
const volatile u64 cpu_mask[MAX_CPUS / 64] = {};
/* System call number → a reason, or enum syscall_class. */
const volatile u8 syscall_class[MAX_SYSCALLS] = {};
/* --budget busy=DURATION: longer busy periods are emitted one by one. */
const volatile u64 busy_budget_ns = ~0ULL;
/* --cgroup: the group's id (0: none is recorded) and its hierarchy's number (0: cgroup v2). */
const volatile u64 cgroup_id = 0;
const volatile u32 cgroup_hierarchy = 0;
/* --name: the globs, as automata. */
const volatile u32 name_glob_count = 0;
const volatile struct name_glob name_globs[MAX_NAME_GLOBS] = {};

/* The recording is the window [armed_at, armed_at + window). A window of 0 is disarmed. */
volatile u64 armed_at = 0;
volatile u64 window = 0;
/* CLOCK_REALTIME - CLOCK_MONOTONIC, for the one-second buckets. */
volatile u64 epoch_offset = 0;
/* Shorter voluntary waits are not emitted one by one. User space raises this under load. */
volatile u64 voluntary_stall_ns = 100000;
volatile u64 stall_ns = 100000;
/* The shortest stall that the user asked for. It can change while a service runs. */
volatile u64 min_stall_ns = 100000;
/* A wait of at least `stack_ns` gets its own stacks, and so does one that is emitted. Shorter ones get stacks
 * when they have added up to `carry_ns`, or to `voluntary_carry_ns` if they are voluntary. One sample in
 * `sample_stride` takes its stacks. User space raises all four to keep to a budget, and `stack_ns` with
 * `stall_ns`. */
volatile u64 stack_ns = 100000;
volatile u64 carry_ns = 1000000;
volatile u64 voluntary_carry_ns = 10000000;
volatile u64 sample_stride = 1;
/* Open waits older than this are reported by the open_waits iterator. */
volatile u64 open_after_ns = 1000000000;
/* The snapshot leaves out threads that have not changed since then. */
volatile u64 last_snapshot = 0;
/* Whether each second of a thread is emitted when it is over. Set where snapshots come less often than
 * that. */
volatile u32 emit_seconds = 0;

/* `targets` is valid: the threads of the first scan have no state yet. Later a pid can belong to another
 * process. */
volatile u32 finding_targets = 0;

/* Whether `now` is inside the recording. For times before arming the subtraction wraps, which is outside
 * too. */
ALWAYS_INLINE bool armed(u64 now) { return now - armed_at < window; }

ALWAYS_INLINE bool cpu_wanted(u32 cpu) {
    return !limit_cpus || (cpu < MAX_CPUS && (cpu_mask[cpu / 64] >> (cpu % 64)) & 1);
}
