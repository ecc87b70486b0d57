/* Taking stacks: the one place where frames are collected, hashed and kept.
 *
 * A stack is named by a hash over its content (the process and its exec generation included, because the same
 * addresses mean other functions there), so that finding it again costs one lookup and no copy. */
#pragma once

#include "state.h"

/* StackEnd of crates/model/src/stack.rs. */
#define END_COMPLETE 0
#define END_FRAME_POINTER 1
#define END_TRUNCATED 2
#define END_READ_FAILED 3

#define HASH_STEP 0x9e3779b97f4a7c15ULL

ALWAYS_INLINE u64 mix(u64 hash, u64 value) {
    hash = (hash ^ value) * HASH_STEP;
    return hash ^ (hash >> 29);
}

struct hash_walk {
    struct stack_record *room;
    u64 hash;
};

static long hash_step(u32 index, struct hash_walk *walk) {
    if (index >= MAX_FRAMES)
        return 1;
    walk->hash = mix(walk->hash, walk->room->address[index]);
    return 0;
}

/* Names and keeps the stack built in `room`, whose header and `frames` are set; 0 if it could not be kept. */
NOINLINE u64 keep_stack(struct stack_record *room) {
    struct hash_walk walk = {.room = room};
    u64 id;

    if (!room)
        return 0;
    walk.hash = mix(HASH_STEP, ((u64)room->tgid << 32) | room->exec_id);
    walk.hash = mix(walk.hash, ((u64)room->end << 32) | (room->from_probe << 16) | room->frames);
    bpf_loop(room->frames, hash_step, &walk, 0);
    id = walk.hash ?: 1;
    if (bpf_map_lookup_elem(&stacks, &id))
        return id;
    /* An equal stack kept by another CPU in between is the same stack. */
    if (bpf_map_update_elem(&stacks, &id, room, BPF_ANY)) {
        lose(LOSS_STACKS_FULL);
        return 0;
    }
    return id;
}

ALWAYS_INLINE struct stack_record *enter_scratch(struct cpu_state *cpu) {
    u32 level = cpu->scratch_level;
    struct stack_record *room;

    room = bpf_map_lookup_elem(&scratch, &level);
    if (!room) {
        lose(LOSS_SCRATCH_BUSY);
        return NULL;
    }
    cpu->scratch_level = level + 1;
    return room;
}

ALWAYS_INLINE void leave_scratch(struct cpu_state *cpu) { cpu->scratch_level--; }

/* Keeps the kernel stack of `bytes` that was read into `room`; 0 if none was. */
ALWAYS_INLINE u64 keep_kernel_stack(struct stack_record *room, long bytes, bool from_probe) {
    if (bytes <= 0)
        return 0;
    room->tgid = 0;
    room->exec_id = 0;
    room->from_probe = from_probe;
    room->frames = (u16)(bytes / 8);
    room->end = room->frames >= MAX_FRAMES ? END_TRUNCATED : END_COMPLETE;
    return keep_stack(room);
}

ALWAYS_INLINE u64 take_kernel_stack(void *ctx, struct stack_record *room, bool from_probe) {
    return keep_kernel_stack(room, bpf_get_stack(ctx, room->address, sizeof(room->address), 0), from_probe);
}

/* The current task's user stack; 0 for kernel threads. */
ALWAYS_INLINE u64 take_user_stack(void *ctx, struct stack_record *room, struct task_struct *current_task) {
    long bytes;

    if (current_task->flags & PF_KTHREAD)
        return 0;
    bytes = bpf_get_stack(ctx, room->address, sizeof(room->address), BPF_F_USER_STACK);
    if (bytes <= 0)
        return 0;
    room->tgid = current_task->tgid;
    room->exec_id = (u32)current_task->self_exec_id;
    room->from_probe = 0;
    room->frames = (u16)(bytes / 8);
    room->end = room->frames >= MAX_FRAMES ? END_TRUNCATED : END_FRAME_POINTER;
    return keep_stack(room);
}

/* Both stacks of the current task. `from_probe`: in a tracepoint, where the kernel stack begins with what led
 * to the probe; a sampled stack begins at the interrupted code. */
ALWAYS_INLINE void take_stacks(void *ctx, struct cpu_state *cpu, struct task_struct *current_task,
                               bool from_probe, u64 *user, u64 *kernel) {
    struct stack_record *room = enter_scratch(cpu);

    if (!room)
        return;
    *kernel = take_kernel_stack(ctx, room, from_probe);
    *user = take_user_stack(ctx, room, current_task);
    leave_scratch(cpu);
}
