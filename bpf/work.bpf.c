/* What the kernel does in a thread's name that takes its time: freeing memory, moving memory together,
 * waiting for the kernel's own locks. Each stretch of at least `stall_ns` is told by itself; user space finds
 * the stall in which it lies.
 *
 * Locks that are waited for by spinning are left out: that wait is running time, and this would be part of
 * it. */
#include "context.h"
#include "reason.h"

/* What every record begins as; also tells user space what one looks like. */
const struct work_record no_work = {.type = RECORD_WORK};

ALWAYS_INLINE void begin_work(u32 kind, u64 lock) {
    struct thread_state *t = state_of(bpf_get_current_task_btf());
    u64 now;

    if (!t || kind >= WORKS)
        return;
    now = bpf_ktime_get_ns();
    if (!armed(now))
        return;
    /* A mutex says it once while it spins and once more before it sleeps. */
    if (lock && t->work_since[kind] >= armed_at && t->work_lock == lock)
        return;
    t->work_since[kind] = now;
    if (lock)
        t->work_lock = lock;
}

ALWAYS_INLINE bool is_mmap_lock(struct task_struct *task, u64 lock) {
    u64 memory = (u64)BPF_CORE_READ(task, mm);

    return memory && lock == memory + bpf_core_field_offset(struct mm_struct, mmap_lock);
}

NOINLINE int end_work(u32 kind) {
    struct task_struct *task = bpf_get_current_task_btf();
    struct thread_state *t = state_of(task);
    struct work_record *record;
    u64 now, since;

    if (!t || kind >= WORKS || !t->work_since[kind])
        return 0;
    since = t->work_since[kind];
    t->work_since[kind] = 0;
    now = bpf_ktime_get_ns();
    if (!armed(now) || since < armed_at || now - since < stall_ns)
        return 0;
    record = reserve(sizeof(*record));
    if (!record)
        return 0;
    *record = no_work;
    record->key = t->key;
    record->start = since;
    record->end = now;
    record->kind = kind;
    record->mmap_lock = kind == WORK_LOCK && is_mmap_lock(task, t->work_lock);
    bpf_ringbuf_submit(record, ring_flags());
    return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(on_direct_reclaim_begin) {
    begin_work(WORK_RECLAIM, 0);
    return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(on_direct_reclaim_end) { return end_work(WORK_RECLAIM); }

/* The limit of a cgroup is reached. */
SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(on_group_reclaim_begin) {
    begin_work(WORK_RECLAIM, 0);
    return 0;
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(on_group_reclaim_end) { return end_work(WORK_RECLAIM); }

SEC("tp_btf/mm_compaction_begin")
int BPF_PROG(on_compaction_begin) {
    begin_work(WORK_COMPACTION, 0);
    return 0;
}

SEC("tp_btf/mm_compaction_end")
int BPF_PROG(on_compaction_end) { return end_work(WORK_COMPACTION); }

SEC("tp_btf/contention_begin")
int BPF_PROG(on_contention_begin, void *lock, unsigned int flags) {
    if (!(flags & LOCK_SPINS) || (flags & LOCK_IS_MUTEX))
        begin_work(WORK_LOCK, (u64)lock);
    return 0;
}

/* On its way into and out of a sleep a thread meets spinlocks, in interrupts, too: where they were contended,
 * their end is told as well, and is not that of the wait (seen in one in nine of them under load). */
SEC("tp_btf/contention_end")
int BPF_PROG(on_contention_end, void *lock) {
    struct thread_state *t = state_of(bpf_get_current_task_btf());

    return t && t->work_lock == (u64)lock ? end_work(WORK_LOCK) : 0;
}

/* ---- who calls functions on other CPUs, which interrupts them ---- */

/* Calls by caller, system call and function; same life as `samples`. Full: LOSS_CROSS_CALLS_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_CROSS_CALLS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct cross_call_key);
    __type(value, struct cross_call_value);
} cross_calls SEC(".maps");

/* An interrupt that calls has no caller: the current task is a bystander. Not by its type information: the
 * verifier knows no arguments that are functions. */
SEC("raw_tp/csd_queue_cpu")
int BPF_PROG(on_cross_call, unsigned int target, unsigned long from, void *function) {
    struct task_struct *task = bpf_get_current_task_btf();
    struct cpu_state *cpu = this_cpu();
    struct cross_call_value first = {.count = 1};
    struct cross_call_value *known;
    struct cross_call_key key = {};
    u64 now;

    if (!cpu || context_of(ctx, cpu, task) != CONTEXT_TASK)
        return 0;
    now = bpf_ktime_get_ns();
    if (!armed(now))
        return 0;
    key.function = (u64)function;
    key.tid = task->pid;
    key.tgid = task->tgid;
    key.syscall = syscall_of(task, (struct pt_regs *)bpf_task_pt_regs(task));
    key.second = (now + epoch_offset) / 1000000000ULL;
    known = bpf_map_lookup_elem(&cross_calls, &key);
    if (known) {
        __sync_fetch_and_add(&known->count, 1);
        return 0;
    }
    bpf_probe_read_kernel(first.comm, COMM_LEN, task->comm);
    if (bpf_map_update_elem(&cross_calls, &key, &first, BPF_ANY))
        lose(LOSS_CROSS_CALLS_FULL);
    return 0;
}
