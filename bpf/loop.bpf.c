// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Turns of loops around a poll: --span loop.
 *
 * A loop with more work does not sleep: its poll returns at once. Where the loop is known to wait for work
 * there, this is the end of one busy period and the start of the next. Each system call of the machine pays
 * for it, so that the program is loaded only where it is asked for. */
#include "cpu_state.h"
#include "fault_time.h"
#include "include/syscalls.h"
#include "seconds.h"
#include "span.h"

/* From Linux 7.2 on, a program at the end of a system call can be preempted, and a switch would charge the
 * ledger meanwhile. Up to 6.14 the verifier takes no call of a global function in between, and preemption is
 * off anyway: each kernel with sched_exit_tp is newer. */
extern void bpf_preempt_disable(void) __weak __ksym;
extern void bpf_preempt_enable(void) __weak __ksym;

ALWAYS_INLINE void keep_cpu(void) {
    if (!stacks_at_switch_out && bpf_ksym_exists(bpf_preempt_disable))
        bpf_preempt_disable();
}

ALWAYS_INLINE void yield_cpu(void) {
    if (!stacks_at_switch_out && bpf_ksym_exists(bpf_preempt_disable))
        bpf_preempt_enable();
}

/* Whether loops wait for work in this system call. Each number would be a path of its own for the verifier.
 */
GLOBAL int is_poll(s32 nr, u64 third_argument) {
    switch (nr) {
    case NR_POLL:
    case NR_SELECT:
    case NR_IO_GETEVENTS:
    case NR_EPOLL_WAIT:
    case NR_PSELECT6:
    case NR_PPOLL:
    case NR_EPOLL_PWAIT:
    case NR_IO_PGETEVENTS:
    case NR_EPOLL_PWAIT2:
        return 1;
    case NR_IO_URING_ENTER: /* the least number of completions to wait for */
        return (u32)third_argument != 0;
    }
    return 0;
}

/* Charges the running time up to `now`. How much of it the scheduler has counted is settled at the next
 * switch. A sample, in an interrupt, can end the thread's second in between: then its charge stands. */
ALWAYS_INLINE void charge_run(struct thread_state *t, u64 now) {
    u64 from = t->since;

    if ((s64)(now - from) <= 0 || __sync_val_compare_and_swap(&t->since, from, now) != from)
        return;
    t->exec_seen += now - from;
    t->ledger.on_cpu += now - from;
}

/* The thread, which is current, returns from a poll at `place`, with or without events. */
GLOBAL int end_turn(struct thread_state *t, u64 place, u32 found, u64 now) {
    bool slept;

    if (!t)
        return 0;
    slept = t->busy_in_call && place == t->place;
    t->busy_in_call = false;
    if (slept || !is_idle_place(t, place))
        return 0;
    if (unlikely(t->faulting))
        abandon_fault(t);
    roll(t, now);
    charge_run(t, now);
    if (t->busy_from && t->busy_from < t->since)
        count_span(t);
    start_period(t, place, t->since, 0);
    t->busy_after_nothing = !found;
    return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_system_call_end, struct pt_regs *regs, long result) {
    struct task_struct *task = bpf_get_current_task_btf();
    s32 nr = syscall_of(task, regs);
    struct thread_state *t;
    struct cpu_state *cpu;
    u64 started, now;

    if (likely(!is_poll(nr, regs->dx)))
        return 0;
    t = state_of(task);
    if (!t || !t->busy_from)
        return 0;
    keep_cpu();
    cpu = this_cpu();
    now = bpf_ktime_get_ns();
    if (cpu && armed(now) && t->since >= armed_at && t->activity == ACTIVITY_RUNNING) {
        started = start_run(cpu);
        follow_words(task, t);
        note_wait_word(task, t);
        end_turn(t, place_of(task, t, nr), result > 0, now);
        end_run(cpu, started);
    }
    yield_cpu();
    return 0;
}
