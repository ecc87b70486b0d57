// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Interrupts that other CPUs send to guarded ones. The senders run on any CPU. Loaded only where a CPU is
 * guarded. */
#include "noise.h"

SEC("tp_btf/ipi_send_cpu")
int BPF_PROG(on_ipi_send_cpu, unsigned int cpu, unsigned long callsite, void *callback) {
    if (!callback || !calls_name_functions)
        count_sent(cpu, (u64)callback, sender_of(ctx));
    return 0;
}

struct mask_walk {
    void *mask;
    u64 function;
    bool by_task;
};

static long sent_to_guarded(u32 index, struct mask_walk *walk) {
    u32 cpu = index < MAX_GUARDED ? guarded[index] : MAX_CPUS;
    u64 word = 0;

    if (cpu >= MAX_CPUS)
        return 1;
    bpf_probe_read_kernel(&word, sizeof(word), walk->mask + cpu / 64 * sizeof(word));
    if ((word >> (cpu % 64)) & 1)
        count_sent(cpu, walk->function, walk->by_task ? bpf_get_current_task_btf() : NULL);
    return 0;
}

SEC("tp_btf/ipi_send_cpumask")
int BPF_PROG(on_ipi_send_cpumask, void *mask, unsigned long callsite, void *callback) {
    struct mask_walk walk = {.mask = mask, .function = (u64)callback, .by_task = sender_of(ctx) != NULL};

    if (!callback || !calls_name_functions)
        bpf_loop(guarded_count, sent_to_guarded, &walk, 0);
    return 0;
}

/* CSD_TYPE_TTWU of include/linux/smp_types.h: not a call, but a task to be woken there. */
#define CALL_TYPES 0xf0
#define CALL_IS_WAKEUP 0x30

/* (cpu, callsite, function, call): a program cannot read a pointer to a function, but it can read the
 * call. */
SEC("tp_btf/csd_queue_cpu")
int on_csd_queue_cpu(u64 *ctx) {
    struct __call_single_data *call = (struct __call_single_data *)ctx[3];
    u64 function = 0;

    if ((BPF_CORE_READ(call, node.u_flags) & CALL_TYPES) != CALL_IS_WAKEUP)
        function = (u64)BPF_CORE_READ(call, func);
    count_sent((u32)ctx[0], function, sender_of(ctx));
    return 0;
}
