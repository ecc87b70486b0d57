/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Taking stacks: the one place where frames are collected, hashed and kept.
 *
 * A stack is identified by a hash over its content, so that finding it again costs one lookup and no copy.
 * The hash includes the process and its exec generation, because the same addresses are other functions
 * there. */
#pragma once

#include "include/records.h"
#include "include/syscalls.h"
#include "stack_hash.h"
#include "stack_scratch.h"
#include "syscall.h"
#include "tables.h"

/* Hash of a stack → the stack. Written here, read and deleted by user space. It is addressed by content: a
 * stack that was deleted and is met again costs only another copy. Full: LOSS_STACKS_FULL. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_STACKS);
    __type(key, u64);
    __type(value, struct stack_record);
} stacks SEC(".maps");

struct hash_walk {
    struct stack_record *stack;
    u64 hash;
};

static long hash_step(u32 index, struct hash_walk *walk) {
    if (index >= MAX_FRAMES)
        return 1;
    walk->hash = mix(walk->hash, walk->stack->address[index]);
    return 0;
}

/* Inserts the stack for user space; 0 where the map is full. An equal one that another CPU has inserted
 * meanwhile is the same stack. */
ALWAYS_INLINE u64 put_stack(struct stack_record *stack, u64 id) {
    if (!bpf_map_update_elem(&stacks, &id, stack, BPF_ANY))
        return id;
    lose(LOSS_STACKS_FULL);
    return 0;
}

GLOBAL u64 id_of_stack(struct stack_record *stack, u64 hash) {
    u64 id;

    if (!stack)
        return 0;
    id = mix(hash, ((u64)stack->tgid << 32) | stack->exec_id);
    return mix(id, ((u64)stack->end << 32) | (stack->from_probe << 16) | stack->frames) ?: 1;
}

/* Identifies and keeps a stack whose header is set; `hash` is over its frames. 0 if it could not be kept. Not
 * GLOBAL: the stack is the value of a map. */
NOINLINE u64 keep_stack(struct stack_record *stack, u64 hash) {
    u64 id;

    if (!stack)
        return 0;
    id = id_of_stack(stack, hash);
    return bpf_map_lookup_elem(&stacks, &id) ? id : put_stack(stack, id);
}

/* ---- kernel stacks ---- */

/* Sets everything of a kernel stack but its frames. */
ALWAYS_INLINE void start_kernel_stack(struct stack_record *stack, u16 frames, bool from_probe) {
    stack->tgid = 0;
    stack->exec_id = 0;
    stack->from_probe = from_probe;
    stack->frames = frames;
    stack->end = frames >= MAX_KERNEL_FRAMES ? END_TRUNCATED : END_COMPLETE;
}

/* Keeps a kernel stack. */
ALWAYS_INLINE u64 keep_kernel_stack(struct stack_record *stack) {
    struct hash_walk walk = {.stack = stack, .hash = HASH_STEP};

    bpf_loop(stack->frames, hash_step, &walk, 0);
    return keep_stack(stack, walk.hash);
}

/* The same for a stack of `bytes` that was just read; 0 if none was. */
ALWAYS_INLINE u64 keep_read_stack(struct stack_record *stack, long bytes, bool from_probe) {
    if (bytes <= 0)
        return 0;
    start_kernel_stack(stack, (u16)(bytes / 8), from_probe);
    return keep_kernel_stack(stack);
}

#define KERNEL_STACK_BYTES (MAX_KERNEL_FRAMES * 8)

ALWAYS_INLINE u64 take_kernel_stack(void *ctx, struct stack_record *stack, bool from_probe, u32 bytes) {
    return keep_read_stack(stack, bpf_get_stack(ctx, stack->address, bytes, 0), from_probe);
}

/* ---- user stacks ---- */

/* A thread that has not run since it was cloned: its stack has no frame yet. The C library's unwind entry
 * at that instruction holds for its creator, which returns from the same instruction. */
ALWAYS_INLINE bool is_unstarted(struct task_struct *task, struct pt_regs *regs) {
    if (regs->ax || (regs->orig_ax != NR_CLONE && regs->orig_ax != NR_CLONE3))
        return false;
    return task->pid != task->tgid || BPF_CORE_READ(task, mm) == BPF_CORE_READ(task, real_parent, mm);
}

/* Starts a walk at the user registers of `task`. False for threads without user code: those of the kernel,
 * and threads that are exiting and have released it. */
ALWAYS_INLINE bool start_walk(struct stack_scratch *scratch, struct task_struct *task) {
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
    struct walk *walk = &scratch->walk;
    struct unwind_process *process = NULL;

    if (is_kernel_only(task) || !BPF_CORE_READ(task, mm))
        return false;
    scratch->stack.tgid = task->tgid;
    scratch->stack.exec_id = (u32)task->self_exec_id;
    scratch->stack.from_probe = 0;
    scratch->stack.frames = 0;
    walk->ip = regs->ip;
    walk->sp = regs->sp;
    walk->fp = regs->bp;
    walk->bx = regs->bx;
    walk->r10 = regs->r10;
    walk->link = regs->di;
    walk->hash = HASH_STEP;
    walk->window_len = 0;
    walk->exact = 1;
    walk->bx_known = 1;
    walk->r10_known = 1;
    walk->link_known = 1;
    walk->end = END_TRUNCATED;
    walk->unstarted = is_unstarted(task, regs);
    walk->code.len = 0;
    walk->tables = walk_by_tables;
    walk->known = 0;
    if (walk_by_tables) {
        process = mappings_of(scratch->stack.tgid, scratch->stack.exec_id);
        if (process) {
            walk->known = 1;
            walk->list = process->list;
            walk->mappings = process->mappings;
        }
    }
    return true;
}

struct walk_loop {
    struct stack_scratch *scratch;
    struct task_struct *of;
};

ALWAYS_INLINE long step_in_scratch(u32 depth, struct stack_scratch *scratch, struct task_struct *of) {
    if (depth >= MAX_FRAMES)
        return 1;
    scratch->stack.frames = (u16)(depth + 1);
    return walk_frame(&scratch->walk, of, &scratch->stack.address[depth], depth);
}

static long walk_step(u32 depth, struct walk_loop *loop) {
    return step_in_scratch(depth, loop->scratch, NULL);
}

/* Walks the current task's user stack; false for kernel threads. */
GLOBAL bool walk_user_stack(struct stack_scratch *scratch) {
    struct walk_loop loop = {.scratch = scratch};

    if (!scratch || !start_walk(scratch, bpf_get_current_task_btf()))
        return false;
    bpf_loop(MAX_FRAMES, walk_step, &loop, 0);
    scratch->stack.end = scratch->walk.end;
    return true;
}

/* Kernel text that writes the saved user registers one after the other, as a signal's handler starts or
 * returns. Written after loading, with `sites`. */
volatile struct text_range register_writers[MAX_REGISTER_WRITERS] = {};
volatile u32 register_writer_count = 0;

/* Whether the user registers may be of two functions, since the kernel was interrupted at `ip`. */
ALWAYS_INLINE bool registers_are_torn(u64 ip) {
    u32 i;

    for (i = 0; i < MAX_REGISTER_WRITERS; i++) {
        if (i >= register_writer_count)
            break;
        if (ip >= register_writers[i].from && ip < register_writers[i].to)
            return true;
    }
    return false;
}

/* The current task's user stack; 0 for kernel threads. */
ALWAYS_INLINE u64 take_user_stack(struct stack_scratch *scratch) {
    return walk_user_stack(scratch) ? keep_stack(&scratch->stack, scratch->walk.hash) : 0;
}

/* Both stacks of the current task. `from_probe`: in a tracepoint, where the kernel stack starts with the
 * calls that led to the probe; a sampled stack starts at the interrupted code. `kernel_bytes`: at most
 * this much of the kernel stack. It is 0 for none, without a branch: with two paths the verifier would
 * walk the rest twice. There is no user stack where its registers may be torn. */
ALWAYS_INLINE void take_stacks(void *ctx, struct cpu_state *cpu, bool from_probe, u32 kernel_bytes, u64 *user,
                               u64 *kernel) {
    struct stack_scratch *scratch = enter_scratch(cpu);

    if (!scratch)
        return;
    *kernel = take_kernel_stack(ctx, &scratch->stack, from_probe, kernel_bytes);
    if (likely(!*kernel || !registers_are_torn(scratch->stack.address[0])))
        *user = take_user_stack(scratch);
    leave_scratch(cpu);
}
