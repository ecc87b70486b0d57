/* Taking stacks: the one place where frames are collected, hashed and kept.
 *
 * A stack is named by a hash over its content (the process and its exec generation included, because the same
 * addresses mean other functions there), so that finding it again costs one lookup and no copy. */
#pragma once

#include "state.h"
#include "tables.h"

#define HASH_STEP 0x9e3779b97f4a7c15ULL

ALWAYS_INLINE u64 mix(u64 hash, u64 value) {
    hash = (hash ^ value) * HASH_STEP;
    return hash ^ (hash >> 29);
}

#include "unwind.h"

/* Stacks of more frames are not remembered. */
#define MEMO_FRAMES 64

/* A kernel stack as it was walked: kernel_stack.h. */
struct kernel_memo {
    u64 id;
    u32 place;
    u16 frames; /* 0: nothing is remembered */
    u16 first;  /* frame above the probe's context; those below depend on the place alone */
    u16 listed; /* frame behind the last one that has a position */
    u16 near;   /* bytes read of the stack */
    u16 link;   /* where in them the address of the interrupted stack is; 0: there is none */
    u16 far;    /* bytes read of that */
    u16 tail;   /* the outermost return address, from its stack's top; 0: it has a position, too */
    u16 strikes;
    u16 position[MEMO_FRAMES]; /* of return addresses in the pieces, by frame */
    u64 address[MEMO_FRAMES];
};

/* What is read of a kernel stack: upwards from the probe's context, on an interrupt's stack, too; of the
 * stack that was interrupted; and the end where a thread's stack begins. */
#define NEAR_BYTES 2048
#define FAR_BYTES 1536
#define TAIL_BYTES 256
#define FAR_AT NEAR_BYTES
#define TAIL_AT (NEAR_BYTES + FAR_BYTES)
#define PIECES_BYTES 4096 /* a power of two: positions are masked */

/* Nesting level → room to build one stack. A sampler may hit in the middle of a walk. */
struct stack_room {
    struct stack_record stack;
    struct walk walk;
    struct kernel_memo memo;
    u8 pieces[PIECES_BYTES];
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, SCRATCH_LEVELS);
    __type(key, u32);
    __type(value, struct stack_room);
} scratch SEC(".maps");

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

/* Puts the stack in `room` where user space learns what it is; 0 where that is full. An equal one that
 * another CPU has put there meanwhile is the same stack. */
ALWAYS_INLINE u64 put_stack(struct stack_record *room, u64 id) {
    if (!bpf_map_update_elem(&stacks, &id, room, BPF_ANY))
        return id;
    lose(LOSS_STACKS_FULL);
    return 0;
}

/* Names and keeps the stack built in `room`, whose header is set; `hash` is over its frames. 0 if it could
 * not be kept. */
NOINLINE u64 keep_stack(struct stack_record *room, u64 hash) {
    u64 id;

    if (!room)
        return 0;
    id = mix(hash, ((u64)room->tgid << 32) | room->exec_id);
    id = mix(id, ((u64)room->end << 32) | (room->from_probe << 16) | room->frames) ?: 1;
    return bpf_map_lookup_elem(&stacks, &id) ? id : put_stack(room, id);
}

ALWAYS_INLINE struct stack_room *enter_scratch(struct cpu_state *cpu) {
    u32 level = cpu->scratch_level;
    struct stack_room *room;

    room = bpf_map_lookup_elem(&scratch, &level);
    if (!room) {
        lose(LOSS_SCRATCH_BUSY);
        return NULL;
    }
    cpu->scratch_level = level + 1;
    return room;
}

ALWAYS_INLINE void leave_scratch(struct cpu_state *cpu) { cpu->scratch_level--; }

/* ---- kernel stacks ---- */

/* Everything of a kernel stack but its frames. */
ALWAYS_INLINE void begin_kernel_stack(struct stack_record *room, u16 frames, bool from_probe) {
    room->tgid = 0;
    room->exec_id = 0;
    room->from_probe = from_probe;
    room->frames = frames;
    room->end = frames >= MAX_KERNEL_FRAMES ? END_TRUNCATED : END_COMPLETE;
}

/* Keeps the kernel stack in `room`. */
ALWAYS_INLINE u64 keep_kernel_stack(struct stack_record *room) {
    struct hash_walk walk = {.room = room, .hash = HASH_STEP};

    bpf_loop(room->frames, hash_step, &walk, 0);
    return keep_stack(room, walk.hash);
}

/* The same for a stack of `bytes` that was just read; 0 if none was. */
ALWAYS_INLINE u64 keep_read_stack(struct stack_record *room, long bytes, bool from_probe) {
    if (bytes <= 0)
        return 0;
    begin_kernel_stack(room, (u16)(bytes / 8), from_probe);
    return keep_kernel_stack(room);
}

#define KERNEL_STACK_BYTES (MAX_KERNEL_FRAMES * 8)

ALWAYS_INLINE u64 take_kernel_stack(void *ctx, struct stack_record *room, bool from_probe, u32 bytes) {
    return keep_read_stack(room, bpf_get_stack(ctx, room->address, bytes, 0), from_probe);
}

/* ---- user stacks ---- */

/* A thread that has not run since it was cloned: it has a stack, and no frame on it. What the C library's
 * unwind entry says there holds for its creator, which returns from the same instruction. */
ALWAYS_INLINE bool is_unstarted(struct task_struct *task, struct pt_regs *regs) {
    if (regs->ax || (regs->orig_ax != SYSCALL_CLONE && regs->orig_ax != SYSCALL_CLONE3))
        return false;
    return task->pid != task->tgid || task->mm == task->real_parent->mm;
}

/* Sets a walk off at the user registers of `task`. False for threads without user memory: kernel threads, and
 * those that have given it back on their way out. */
ALWAYS_INLINE bool begin_walk(struct stack_room *room, struct task_struct *task) {
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
    struct walk *walk = &room->walk;
    struct unwind_process *process = NULL;

    if ((task->flags & PF_KTHREAD) || !task->mm)
        return false;
    room->stack.tgid = task->tgid;
    room->stack.exec_id = (u32)task->self_exec_id;
    room->stack.from_probe = 0;
    room->stack.frames = 0;
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
        process = mappings_of(room->stack.tgid, room->stack.exec_id);
        if (process) {
            walk->known = 1;
            walk->list = process->list;
            walk->mappings = process->mappings;
        }
    }
    return true;
}

struct walk_loop {
    struct stack_room *room;
    struct task_struct *of;
};

ALWAYS_INLINE long step_in_room(u32 depth, struct stack_room *room, struct task_struct *of) {
    if (depth >= MAX_FRAMES)
        return 1;
    room->stack.frames = (u16)(depth + 1);
    return walk_frame(&room->walk, of, &room->stack.address[depth], depth);
}

static long walk_step(u32 depth, struct walk_loop *loop) { return step_in_room(depth, loop->room, NULL); }

/* Walks the current task's user stack; false for kernel threads. Global, so that the verifier walks through
 * it once and not for each caller. */
__attribute__((noinline)) bool walk_user_stack(struct stack_room *room) {
    struct walk_loop loop = {.room = room};

    if (!room || !begin_walk(room, bpf_get_current_task_btf()))
        return false;
    bpf_loop(MAX_FRAMES, walk_step, &loop, 0);
    room->stack.end = room->walk.end;
    return true;
}

/* The current task's user stack; 0 for kernel threads. */
ALWAYS_INLINE u64 take_user_stack(struct stack_room *room) {
    return walk_user_stack(room) ? keep_stack(&room->stack, room->walk.hash) : 0;
}

/* Both stacks of the current task. `from_probe`: in a tracepoint, where the kernel stack begins with what led
 * to the probe; a sampled stack begins at the interrupted code. `kernel_bytes`: at most this much of the
 * kernel stack; 0 for none, which is no branch: two ways would make the verifier walk what follows twice. */
ALWAYS_INLINE void take_stacks(void *ctx, struct cpu_state *cpu, bool from_probe, u32 kernel_bytes, u64 *user,
                               u64 *kernel) {
    struct stack_room *room = enter_scratch(cpu);

    if (!room)
        return;
    *kernel = take_kernel_stack(ctx, &room->stack, from_probe, kernel_bytes);
    *user = take_user_stack(room);
    leave_scratch(cpu);
}
