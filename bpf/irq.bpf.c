// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The time that interrupts took from the thread that they hit: by CPU, cause and victim.
 *
 * Each entry is pushed on a small stack of its CPU, so that an interrupt inside another one is counted
 * once. */
#include "cpu_state.h"
#include "include/vectors.h"
#include "losses.h"
#include "mark.h"
#include "seconds.h"
#include "thread_state.h"

/* Victim, CPU, cause and second → interrupt time. Same lifetime as `samples`. Full: LOSS_INTERRUPTS_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_INTERRUPTS);
    __type(key, struct interrupt_key);
    __type(value, struct latency_value);
} interrupts SEC(".maps");

/* Those that were under way when an earlier recording ended have an unknown end, and a pause within. */
ALWAYS_INLINE void forget_old_interrupts(struct cpu_state *cpu) {
    if (unlikely(cpu->interrupt_depth && cpu->interrupt[0].entered < armed_at))
        cpu->interrupt_depth = 0;
}

ALWAYS_INLINE void enter_interrupt(u32 kind, u32 number) {
    u64 now = bpf_ktime_get_ns();
    struct cpu_state *cpu = this_cpu();
    struct interrupt_frame *frame;
    u32 depth;

    if (!cpu || !armed(now))
        return;
    cpu->runs++;
    forget_old_interrupts(cpu);
    depth = cpu->interrupt_depth;
    if (depth >= IRQ_DEPTH) {
        lose(LOSS_INTERRUPT_DEPTH);
        return;
    }
    barrier_var(depth); /* the mask is what 6.1 knows the bounds by */
    frame = &cpu->interrupt[depth & (IRQ_DEPTH - 1)];
    frame->entered = now;
    frame->inner = 0;
    frame->kind = kind;
    frame->number = number;
    cpu->interrupt_depth = depth + 1;
}

ALWAYS_INLINE void count_interrupt(u32 key, u32 second, struct interrupt_frame *frame, u64 ns) {
    struct interrupt_key cell_key = {
        .key = key,
        .second = second,
        .cpu = (u16)bpf_get_smp_processor_id(),
        .kind = (u16)frame->kind,
        .number = frame->number,
    };
    struct latency_value *cell = bpf_map_lookup_elem(&interrupts, &cell_key);

    if (cell) {
        cell->count++;
        cell->total += ns;
        if (ns > cell->max)
            cell->max = ns;
        return;
    }
    struct latency_value first = {.count = 1, .total = ns, .max = ns};
    if (bpf_map_update_elem(&interrupts, &cell_key, &first, BPF_ANY))
        lose(LOSS_INTERRUPTS_FULL);
}

ALWAYS_INLINE void close_interrupt(struct cpu_state *cpu, u32 kind, u64 now) {
    struct interrupt_frame *frame;
    struct task_struct *task;
    struct thread_state *t;
    u32 depth, second;
    u64 whole, own;

    forget_old_interrupts(cpu);
    depth = cpu->interrupt_depth;
    if (depth == 0 || depth > IRQ_DEPTH)
        return; /* entered before arming */
    depth--;
    barrier_var(depth);
    frame = &cpu->interrupt[depth & (IRQ_DEPTH - 1)];
    if (frame->kind != kind)
        return;
    cpu->interrupt_depth = depth;
    whole = now - frame->entered;
    own = whole > frame->inner ? whole - frame->inner : 0;
    if (depth > 0)
        cpu->interrupt[(depth - 1) & (IRQ_DEPTH - 1)].inner += whole;
    task = bpf_get_current_task_btf();
    t = task->pid ? state_of(task) : NULL;
    if (!t || t->activity != ACTIVITY_RUNNING) {
        second = (now + epoch_offset) / 1000000000ULL;
        count_interrupt(0, second, frame, own);
        return;
    }
    roll(t, now);
    note_mark(task, t, now);
    t->ledger.irq += own;
    flush_mark(t, now, MARK_FLUSH_NS);
    count_interrupt(t->key, t->second, frame, own);
}

NOINLINE int leave_interrupt(u32 kind) {
    u64 now = bpf_ktime_get_ns();
    struct cpu_state *cpu = this_cpu();
    u64 started;

    if (!cpu || !armed(now))
        return 0;
    started = start_run(cpu);
    close_interrupt(cpu, kind, now);
    end_run(cpu, started);
    return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq_entry, int irq) {
    enter_interrupt(INTERRUPT_IRQ, irq);
    return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_exit) { return leave_interrupt(INTERRUPT_IRQ); }

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int vector) {
    enter_interrupt(INTERRUPT_SOFTIRQ, vector);
    return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit) { return leave_interrupt(INTERRUPT_SOFTIRQ); }

#define VECTOR_PROGRAMS(number, name)                                                                        \
    SEC("tp_btf/" #name "_entry")                                                                            \
    int BPF_PROG(on_##name##_entry) {                                                                        \
        enter_interrupt(INTERRUPT_VECTOR, number);                                                           \
        return 0;                                                                                            \
    }                                                                                                        \
    SEC("tp_btf/" #name "_exit")                                                                             \
    int BPF_PROG(on_##name##_exit) { return leave_interrupt(INTERRUPT_VECTOR); }

FOR_EACH_VECTOR(VECTOR_PROGRAMS)
