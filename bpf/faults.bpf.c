// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Page faults on user addresses, each from its entry to its completion, in user code and in system calls.
 *
 * The exception's tracepoint marks the start. The kernel's software events mark the end, and whether it
 * was minor or major. Waits between the two belong to the fault, also in the programs of the scheduler. A
 * fault that fails has no end event: the next fault, a signal, a switch or a sample that finds the thread
 * elsewhere closes it. Short faults are only counted. */
#include "fault.h"
#include "fault_time.h"
#include "latency.h"
#include "mark.h"
#include "seconds.h"
#include "stack.h"
#include "stall.h"
#include "syscall.h"

/* ---- the end of a fault ---- */

NOINLINE int emit_fault_stall(struct task_struct *task, struct thread_state *t, struct interval *interval) {
    struct stall_record *stall;

    if (!task || !t || !interval)
        return 0;
    stall = start_stall(task, t, interval);
    if (!stall)
        return 0;
    note_facts(task, t, stall);
    name_kernel_owner(stall, &t->fault.owner);
    stall->blocked_ns = t->fault.blocked;
    stall->syscall = syscall_of(task, (struct pt_regs *)bpf_task_pt_regs(task));
    collect_ran(stall, t->fault.starved_cpu, t->fault.starved_from, t->fault.starved_to);
    bpf_ringbuf_submit(stall, ring_flags());
    return 0;
}

/* The stacks of the fault's longest wait, which show its cause; without a wait, those at its end. */
ALWAYS_INLINE void take_fault_stacks(struct cpu_state *cpu, struct task_struct *task, struct thread_state *t,
                                     struct interval *interval) {
    struct stack_scratch *scratch;

    interval->user_stack = t->fault.user_stack;
    interval->kernel_stack = t->fault.kernel_stack;
    if (t->fault.longest)
        return;
    scratch = enter_scratch(cpu);
    if (!scratch)
        return;
    /* The event's registers are those of the code that faulted, which has another kernel stack. */
    interval->kernel_stack = keep_read_stack(
        &scratch->stack, bpf_get_task_stack(task, scratch->stack.address, MAX_KERNEL_FRAMES * 8, 0), true);
    interval->user_stack = take_user_stack(scratch);
    leave_scratch(cpu);
}

/* Emits a fault that lasted from its start to `end`, and counts its stacks with the unstacked time of
 * earlier faults. Short ones are only in the sums. */
ALWAYS_INLINE void emit_fault(struct cpu_state *cpu, struct task_struct *task, struct thread_state *t,
                              u64 end) {
    u64 ns = end - t->fault.start;
    u64 earlier = t->fault.earlier;
    u32 sleep = t->fault.sleep;
    struct interval interval = {};
    s64 carried;

    barrier_var(sleep); /* one register for the check and the index */
    if (sleep >= SLEEPS)
        return;
    carried = t->carried[sleep];
    if (likely(ns < min_stall_ns && carried < (s64)carry_ns))
        return;
    interval.start = t->fault.start;
    interval.end = end;
    interval.runnable = t->fault.runnable;
    interval.cpu = bpf_get_smp_processor_id();
    interval.woken = t->fault.woken;
    take_fault_stacks(cpu, task, t, &interval);
    count_interval(t, &interval, sleep, SAMPLE_FAULT_MINOR + sleep - SLEEP_FAULT_MINOR, carried);
    if (earlier)
        count_interval(t, &interval, SLEEP_FAULT_MINOR, SAMPLE_FAULT_MINOR, t->carried[SLEEP_FAULT_MINOR]);
    if (ns < min_stall_ns || !cpu_wanted(interval.cpu))
        return;
    if (ns >= stall_ns)
        emit_fault_stall(task, t, &interval);
    else
        lose(LOSS_FOLDED);
}

/* A fault that did not get its page is emitted if it waited: a signal interrupts a long fault. */
NOINLINE int fail_fault(struct cpu_state *cpu, struct task_struct *task, struct thread_state *t) {
    if (!cpu || !task || !t)
        return 0;
    abandon_fault(t);
    t->trace_known = false; /* not of this fault: the thread may do something else by now */
    if (t->fault.start >= armed_at && t->fault.blocked + t->fault.runnable >= min_stall_ns)
        emit_fault(cpu, task, t, t->fault.charged_to);
    return 0;
}

NOINLINE int leave_fault(u32 end) {
    u64 now = bpf_ktime_get_ns();
    struct task_struct *task = bpf_get_current_task_btf();
    struct thread_state *t = state_of(task);
    struct cpu_state *cpu;
    u64 started;

    if (!t || !t->faulting || !armed(now) || t->fault.start < armed_at)
        return 0;
    cpu = this_cpu();
    if (!cpu)
        return 0;
    started = start_run(cpu);
    roll(t, now);
    charge_fault_run(t, now);
    settle_fault(t, end == FAULT_MAJOR ? SLEEP_FAULT_MAJOR : SLEEP_FAULT_MINOR);
    carry_fault(t);
    t->faulting = 0;
    t->ledger.faults[end == FAULT_MAJOR]++;
    count_latency(t, METRIC_FAULT, now - t->fault.start);
    flush_mark(t, now, MARK_FLUSH_NS);
    if (unlikely(now - t->fault.start >= min_stall_ns))
        note_trace(task, t);
    emit_fault(cpu, task, t, now);
    end_run(cpu, started);
    return 0;
}

SEC("perf_event")
int on_fault_minor(struct bpf_perf_event_data *ctx) { return leave_fault(FAULT_MINOR); }

SEC("perf_event")
int on_fault_major(struct bpf_perf_event_data *ctx) { return leave_fault(FAULT_MAJOR); }

/* ---- its start ---- */

/* `regs`: the registers of the code that faults, in the kernel. */
ALWAYS_INLINE void enter_fault(u64 address, u8 access, struct pt_regs *regs, u64 ip) {
    struct task_struct *task = bpf_get_current_task_btf();
    struct thread_state *t;
    struct cpu_state *cpu;
    u64 started, now;

    /* Accesses to user memory that may not wait, also those of these programs, fail at once. */
    if ((s64)address < 0 || task->pagefault_disabled)
        return;
    t = state_of(task);
    if (!t)
        return;
    now = bpf_ktime_get_ns();
    cpu = this_cpu();
    if (!cpu || !armed(now))
        return;
    started = start_run(cpu);
    if (unlikely(t->faulting))
        fail_fault(cpu, task, t);
    if (likely(t->activity == ACTIVITY_RUNNING || t->since < armed_at)) {
        struct fault_state *fault = &t->fault;

        note_mark(task, t, now);
        fault->start = now;
        fault->charged_to = now;
        fault->irq_seen = t->ledger.irq;
        fault->frame = (u64)regs;
        fault->ip = ip;
        fault->address = address;
        fault->ran = 0;
        fault->unsettled = 0;
        fault->earlier = 0;
        fault->blocked = 0;
        fault->runnable = 0;
        fault->longest = 0;
        fault->owner.tid = 0;
        fault->user_stack = 0;
        fault->kernel_stack = 0;
        fault->starved_from = 0;
        fault->starved_to = 0;
        fault->sleep = SLEEP_FAULT_MINOR;
        fault->access = access;
        fault->woken = 0;
        t->faulting = 1;
    }
    end_run(cpu, started);
}

ALWAYS_INLINE u8 access_from_error(u64 error) {
    if (error & PF_ERROR_EXEC)
        return ACCESS_EXEC;
    return error & PF_ERROR_WRITE ? ACCESS_WRITE : ACCESS_READ;
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(on_fault_in_user, unsigned long address, struct pt_regs *regs, unsigned long error) {
    enter_fault(address, access_from_error(error), regs, regs->ip);
    return 0;
}

/* The kernel touches user memory for the program, mostly inside a system call. */
SEC("tp_btf/page_fault_kernel")
int BPF_PROG(on_fault_in_kernel, unsigned long address, struct pt_regs *regs, unsigned long error) {
    enter_fault(address, access_from_error(error), regs, regs->ip);
    return 0;
}

/* For kernels without those tracepoints. The access is not known, nor, for a fault in the kernel, the
 * instruction: its user registers change when the system call ends. */
SEC("perf_event")
int on_fault_started(struct bpf_perf_event_data *ctx) {
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

    enter_fault(ctx->addr, ACCESS_UNKNOWN, regs, regs->ip);
    return 0;
}

/* The signal that ends a fault without a page: from here on the thread does other things. */
SEC("tp_btf/signal_generate")
int BPF_PROG(on_signal, int number, void *info, struct task_struct *task) {
    struct thread_state *t;
    struct cpu_state *cpu;

    if ((number != SIGNAL_SEGV && number != SIGNAL_BUS) || task != bpf_get_current_task_btf())
        return 0;
    t = state_of(task);
    cpu = this_cpu();
    if (t && cpu && t->faulting)
        fail_fault(cpu, task, t);
    return 0;
}
