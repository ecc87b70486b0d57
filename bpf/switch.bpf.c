// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Switches. sched_switch closes the interval of the outgoing thread. The incoming one is settled in
 * sched_exit_tp, which runs in its own context with its user stack readable; without that tracepoint, in
 * sched_switch. */
#include "noise.h"
#include "ran_instead.h"
#include "switch_in.h"
#include "switch_out.h"

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
             unsigned int prev_state) {
    u64 now = bpf_ktime_get_ns();
    struct cpu_state *cpu = this_cpu();
    u64 started;

    if (!cpu)
        return 0;
    /* Also before the window: that of its end may be in it. */
    cpu->switch_ns = now;
    cpu->switch_to = (u64)next;
    if (!armed(now))
        return 0;
    started = start_run(cpu);
    /* Interrupts do not nest across a switch. A depth that drifted (attached inside an interrupt) ends
     * here. */
    cpu->interrupt_depth = 0;
    record_run(cpu, next, now);
    if (guards)
        count_task(cpu, prev, now, true);
    if (prev->pid)
        switch_out(ctx, cpu, preempt, prev, prev_state, now);
    if (stacks_at_switch_out && next->pid)
        switch_in(ctx, cpu, next, now);
    end_run(cpu, started);
    return 0;
}

/* Runs in the incoming thread, also in a new one, with interrupts on. */
SEC("tp_btf/sched_exit_tp")
int BPF_PROG(on_switched, bool is_switch) {
    struct task_struct *task;
    struct cpu_state *cpu;
    u64 started, now;

    if (!is_switch)
        return 0;
    cpu = this_cpu();
    if (!cpu)
        return 0;
    task = bpf_get_current_task_btf();
    /* The time of the switch, so that switch-out and switch-in meet without a gap. It is of another switch
     * where the kernel kept that one's incoming thread from being traced, and then its outgoing. */
    now = cpu->switch_to == (u64)task ? cpu->switch_ns : 0;
    cpu->switch_ns = 0;
    if (unlikely(!now)) {
        now = bpf_ktime_get_ns();
        if (!armed(now))
            return 0;
        /* The kernel keeps the outgoing thread from being traced (seen: the supervisor of a sandbox). */
        lose(LOSS_NO_SWITCH);
        record_run(cpu, task, now);
    }
    if (!task->pid || unlikely(!armed(now)))
        return 0;
    started = start_run(cpu);
    switch_in(ctx, cpu, task, now);
    end_run(cpu, started);
    return 0;
}
