// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Spans between two places in the code of a program: --span.
 *
 * A probe sits at each place (a uprobe: the thread traps into the kernel). The first notes what the thread's
 * ledger has, the second what the ledger has gained. User space has the length, and with it the running time.
 * A thread can be preempted in the middle of these programs.
 */
#include "span_probes.h"
#include "bpf_api.h"
#include "mark.h"
#include "rings.h"
#include "settings.h"
#include "thread_state.h"

/* Hits by number of --span, of all threads, also of those that are not recorded. Read by user space. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, MAX_SPAN_PROBES);
    __type(key, u32);
    __type(value, u64);
} span_probe_hits SEC(".maps");

/* Makes the record's type part of the object, from which its Rust view is generated. */
const struct probed_record empty_probed = {.type = RECORD_PROBED};

/* What the program attached a probe for, in its cookie. */
ALWAYS_INLINE u32 span_of(u64 cookie) { return cookie & SPAN_PROBE_MASK; }

/* Whether the conditional jump at the probe is about to be taken: Intel SDM, volume 2, appendix B, table
 * B-10. Without branches, which would double the verifier's paths. */
ALWAYS_INLINE bool jumps(u64 cookie, u64 flags) {
    u32 condition = (cookie >> SPAN_PROBE_CONDITION_SHIFT) & 15;
    u32 carry = flags & 1, zero = (flags >> 6) & 1, sign = (flags >> 7) & 1;
    u32 overflow = (flags >> 11) & 1, parity = (flags >> 2) & 1;
    u32 holds = overflow | carry << 1 | zero << 2 | (carry | zero) << 3 | sign << 4 | parity << 5 |
                (sign ^ overflow) << 6 | (zero | (sign ^ overflow)) << 7;

    return !(cookie & SPAN_PROBE_CONDITION) || ((holds >> (condition >> 1)) & 1) != (condition & 1);
}

ALWAYS_INLINE void count_hit(u32 span) {
    u64 *hits = bpf_map_lookup_elem(&span_probe_hits, &span);

    if (hits)
        __sync_fetch_and_add(hits, 1);
}

/* The thread's open spans, if it is recorded; those of a former image of its process are none of its. */
ALWAYS_INLINE struct open_spans *own_spans(struct task_struct *task, u64 flags) {
    struct open_spans *spans = bpf_task_storage_get(&open_spans, task, NULL, flags);
    u32 i;

    if (!spans || spans->exec_id == (u32)task->self_exec_id)
        return spans;
    spans->exec_id = task->self_exec_id;
    spans->count = 0;
    for (i = 0; i < MAX_SPAN_PROBES; i++)
        spans->span[i].start = 0;
    return spans;
}

/* Whether the call that began this span is still under way: its frame is further out than `sp`, and has the
 * address that it returns to. A longjmp or an exception leaves a function without its end. */
ALWAYS_INLINE bool is_under_way(struct open_span *open, u64 sp) {
    u64 caller;

    return sp < open->sp && !bpf_probe_read_user(&caller, sizeof(caller), (void *)open->sp) &&
           caller == open->caller;
}

/* Copies the ledger at one time, which it returns. A switch during the copy changes the time of the last
 * switch-in, and the ledger is copied again. */
ALWAYS_INLINE u64 keep_ledger(struct thread_state *t, struct span_states *base) {
    u64 run, now;
    u32 i;

    for (i = 0; i < 3; i++) {
        run = *(volatile u64 *)&t->run_ns;
        now = bpf_ktime_get_ns();
        keep_states(base, &t->ledger);
        barrier();
        if (likely(run == *(volatile u64 *)&t->run_ns))
            break;
    }
    return now;
}

ALWAYS_INLINE bool emit_probed(struct thread_state *t, u32 span, struct open_span *open) {
    struct probed_record *record = reserve_example(sizeof(*record));
    u32 i;

    if (!record)
        return false;
    record->type = RECORD_PROBED;
    record->key = t->key;
    record->span = span;
    record->unused = 0;
    record->start = open->start;
    record->end = keep_ledger(t, &record->states);
    for (i = 0; i < SLEEPS; i++)
        record->states.blocked[i] -= open->base.blocked[i];
    record->states.on_cpu -= open->base.on_cpu;
    record->states.irq -= open->base.irq;
    record->states.runnable -= open->base.runnable;
    record->states.preempted -= open->base.preempted;
    record->states.fault_on_cpu -= open->base.fault_on_cpu;
    bpf_ringbuf_submit(record, ring_flags());
    return true;
}

SEC("uprobe")
int on_span_start(struct pt_regs *ctx) {
    struct task_struct *task = bpf_get_current_task_btf();
    u64 cookie = bpf_get_attach_cookie(ctx), sp = ctx->sp;
    u32 span = span_of(cookie);
    struct open_spans *spans;
    struct thread_state *t;
    struct open_span *open;

    count_hit(span);
    t = state_of(task);
    if (!t || !armed(bpf_ktime_get_ns()))
        return 0;
    spans = own_spans(task, BPF_LOCAL_STORAGE_GET_F_CREATE);
    if (!spans) {
        lose(LOSS_PROBED_SPANS);
        return 0;
    }
    open = &spans->span[span];
    if (open->start) {
        /* A function that calls itself: the outer call is the span. */
        if ((cookie & SPAN_PROBE_CALL) && is_under_way(open, sp))
            return 0;
        lose(LOSS_SPANS_WITHOUT_END);
    } else {
        spans->count++;
    }
    open->sp = sp;
    open->caller = 0;
    if (cookie & SPAN_PROBE_CALL)
        bpf_probe_read_user(&open->caller, sizeof(open->caller), (void *)sp);
    open->start = keep_ledger(t, &open->base);
    return 0;
}

SEC("uprobe")
int on_span_end(struct pt_regs *ctx) {
    struct task_struct *task = bpf_get_current_task_btf();
    u64 cookie = bpf_get_attach_cookie(ctx);
    u32 span = span_of(cookie);
    struct open_spans *spans;
    struct thread_state *t;
    struct open_span *open;

    count_hit(span);
    if (!jumps(cookie, ctx->flags))
        return 0;
    t = state_of(task);
    if (!t)
        return 0;
    spans = own_spans(task, 0);
    if (!spans)
        return 0;
    open = &spans->span[span];
    if (!open->start || ((cookie & SPAN_PROBE_CALL) && ctx->sp != open->sp))
        return 0;
    /* One that begins before a pause, or ends in one, has waits that nobody charges. */
    if (open->start >= armed_at && armed(bpf_ktime_get_ns()) && !emit_probed(t, span, open))
        lose(LOSS_PROBED_SPANS);
    open->start = 0;
    spans->count--;
    return 0;
}
