/* exec gives a process other names: it comes to those that are recorded by name, or leaves them. */
#include "names.h"

/* Tells the thread's last record and forgets it, as if it had ended: what runs in it now was not asked for.
 */
ALWAYS_INLINE void leave(struct task_struct *task, struct thread_state *t) {
    u64 now = bpf_ktime_get_ns();

    if (armed(now)) {
        if (t->since < armed_at)
            begin(t, task, ACTIVITY_RUNNING);
        roll(t, now);
        charge_until(t, now);
        end_thread(task, t, now);
    }
    bpf_task_storage_delete(&threads, task);
}

/* Runs when the new program is in place, before its first instruction. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task) {
    u32 why = named(task, task->comm);
    struct thread_state *t;

    if (why) {
        join(task, why);
        return 0;
    }
    t = state_of(task);
    if (!t || !(t->why & (TARGET_NAMED_THREAD | TARGET_NAMED_PROCESS)))
        return 0;
    t->why &= ~(TARGET_NAMED_THREAD | TARGET_NAMED_PROCESS);
    if (!t->why)
        leave(task, t);
    return 0;
}
