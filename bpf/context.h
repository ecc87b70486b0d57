/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The context in which a probe runs: the current task's own, or that of an interrupt that hit this task by
 * chance.
 *
 * An interrupt runs on the interrupt stack of its CPU if it hit the kernel, and on the thread's own stack
 * if it hit user mode (run_sysvec_on_irqstack_cond in arch/x86/include/asm/irq_stack.h). Softirqs run
 * after the exit tracepoints of the interrupt that raised them, so they must be recognised separately. A
 * softirq that a task runs in local_bh_enable is on the interrupt stack too; its caller there is
 * do_softirq. */
#pragma once

#include "cpu_state.h"
#include "include/records.h"
#include "syscall.h"

enum context {
    CONTEXT_TASK = 0,
    CONTEXT_INTERRUPT = 1, /* the current task is a bystander */
    CONTEXT_UNSURE = 2,    /* only the kernel stack can decide */
};

/* The size of a thread's stack on x86-64 (THREAD_SIZE), and of a CPU's interrupt stack (IRQ_STACK_SIZE). */
#define STACK_BYTES 16384ULL
#define PAGE_BYTES 4096ULL

/* include/linux/interrupt.h: softirqs that interrupts raise and tasks do not. A task that runs one in its
 * local_bh_enable does so by chance. */
#define SOFTIRQS_OF_INTERRUPTS                                                                               \
    (1u << 1 /* TIMER */ | 1u << 4 /* BLOCK */ | 1u << 5 /* IRQ_POLL */ | 1u << 7 /* SCHED */ |              \
     1u << 8 /* HRTIMER */ | 1u << 9 /* RCU */)

/* Kernel text that runs softirqs on behalf of the current task. Written after loading, with `sites`; empty
 * where the kernel's symbols are hidden. */
volatile struct text_range task_softirqs[MAX_TASK_SOFTIRQS] = {};
volatile u32 task_softirq_count = 0;

/* The address of a tracepoint's arguments, which lie in the frame of the probe's caller. It goes through
 * `memory` of a map, so that the verifier treats it as a number. */
ALWAYS_INLINE u64 address_of_context(void *ctx, u64 *memory) {
    *memory = (u64)ctx;
    barrier();
    return *(volatile u64 *)memory;
}

/* The end of the interrupt stack that holds `address`: the page behind it is not mapped (map_irq_stack in
 * arch/x86/kernel/irq_64.c). 0: not found. */
GLOBAL u64 find_interrupt_stack_end(u64 address) {
    u64 page = address & ~(PAGE_BYTES - 1);
    u64 word;
    u32 i;

    for (i = 0; i < STACK_BYTES / PAGE_BYTES; i++) {
        page += PAGE_BYTES;
        if (bpf_probe_read_kernel(&word, sizeof(word), (void *)page))
            return page;
    }
    return 0;
}

/* Whether `address`, on the stack of a probe while `task` is current, lies on the CPU's interrupt stack.
 * The end of that stack is found once. Before that, a stack that is not the task's is the interrupt stack. */
ALWAYS_INLINE bool is_on_interrupt_stack(struct cpu_state *cpu, struct task_struct *task, u64 address) {
    if (likely(cpu->interrupt_stack_end))
        return cpu->interrupt_stack_end - address <= STACK_BYTES;
    if (address - (u64)BPF_CORE_READ(task, stack) < STACK_BYTES)
        return false;
    cpu->interrupt_stack_end = find_interrupt_stack_end(address);
    return true;
}

/* Whether a task that runs its own softirqs called the code on the interrupt stack. The last word of the
 * stack is the stack pointer of the stack before; below it is the outermost return address (call_on_stack
 * in irq_stack.h). */
ALWAYS_INLINE bool is_task_softirq(struct cpu_state *cpu) {
    u64 caller = 0;
    u32 i;

    if (bpf_probe_read_kernel(&caller, sizeof(caller), (void *)(cpu->interrupt_stack_end - 16)))
        return false;
    for (i = 0; i < MAX_TASK_SOFTIRQS; i++) {
        if (i >= task_softirq_count)
            break;
        if (caller >= task_softirqs[i].from && caller < task_softirqs[i].to)
            return true;
    }
    return false;
}

/* Whether a task may have raised the code that runs: softirq `number`, or code that no tracepoint
 * announced. */
ALWAYS_INLINE bool may_be_of_task(bool softirq, u32 number) {
    return !softirq || !((SOFTIRQS_OF_INTERRUPTS >> (number & 31)) & 1);
}

/* The context of a tracepoint with the arguments `ctx`, while `task` is current. Interrupts are off at
 * wakeups, so that `cpu->context` belongs to this probe. */
ALWAYS_INLINE u32 context_of(void *ctx, struct cpu_state *cpu, struct task_struct *task) {
    u64 address = address_of_context(ctx, &cpu->context);
    bool interrupts = is_on_interrupt_stack(cpu, task, address);
    u32 depth = cpu->interrupt_depth, number = 0;
    bool softirq = false;

    if (!task->pid)
        return CONTEXT_INTERRUPT;
    if (depth && depth <= IRQ_DEPTH) {
        struct interrupt_frame *interrupt = &cpu->interrupt[(depth - 1) & (IRQ_DEPTH - 1)];

        if (interrupt->kind != INTERRUPT_SOFTIRQ)
            return CONTEXT_INTERRUPT;
        softirq = true;
        number = interrupt->number;
    }
    if (interrupts)
        return may_be_of_task(softirq, number) && is_task_softirq(cpu) ? CONTEXT_TASK : CONTEXT_INTERRUPT;
    /* Interrupts leave the stacks of kernel threads for the stack of the CPU. The softirqs of ksoftirqd
     * are its own. */
    if (is_kernel_only(task))
        return CONTEXT_TASK;
    /* Not negative in a system call. Negative after an interrupt or a page fault in user mode. In a
     * softirq it was an interrupt, since the softirqs of a page fault run on the interrupt stack. */
    if ((s64)((struct pt_regs *)bpf_task_pt_regs(task))->orig_ax >= 0)
        return CONTEXT_TASK;
    if (softirq || !task_softirq_count)
        return CONTEXT_INTERRUPT;
    return CONTEXT_UNSURE;
}
